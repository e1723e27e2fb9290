"""NYUD-v2 in the folder layout of its multi-task archive."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedhca2.data.archive import Archive, Paths, Size, Source
from fedhca2.data.config import CACHE, ROOT, SIZE, DataConfig, Place
from fedhca2.data.dataset import Dataset, Split
from fedhca2.data.files import (
    BrokenFileError,
    class_codes,
    read_colours,
    read_mat,
    read_normals,
    read_npy,
    read_shades,
    read_values,
)
from fedhca2.data.label_spaces import NYUD_CLASSES, NYUD_LABELS
from fedhca2.metrics.edges import boundaries
from fedhca2.tasks import TASKS, LabelSpace, TaskSet

INPUT = (448, 576)


def _image(paths: Paths, size: Size) -> Tensor:
    return read_colours(paths[0])


def _semseg(paths: Paths, size: Size) -> Tensor:
    codes = class_codes(paths[0], read_values(paths[0]), len(NYUD_CLASSES) + 1)
    return torch.where(codes == 255, 255, codes - 1)  # 0, unlabelled, wraps around to 255


def _normals(paths: Paths, size: Size) -> Tensor:
    return read_normals(paths[0])


def _edge(paths: Paths, size: Size) -> Tensor:
    return read_shades(paths[0]).float() / 255


def _edge_is_there(paths: Paths, size: Size) -> Tensor:
    return (read_shades(paths[0]) > 0).float()


def _annotated_edge(paths: Paths, size: Size) -> Tensor:
    """The boundaries of the annotation's map "Boundaries", which odsF handles like any label map."""
    drawn = read_mat(paths[0], "groundTruth")[0, 0]["Boundaries"][0, 0]
    return boundaries(torch.from_numpy(drawn.astype(np.int32))).float()[None]


def _depth(paths: Paths, size: Size) -> Tensor:
    depth = read_npy(paths[0])
    if depth.ndim != 2 or depth.dtype.kind != "f":
        raise BrokenFileError(paths[0], f"should be a map of floats, found {depth.dtype} {depth.shape}")
    if not np.isfinite(depth).all() or depth.min() < 0:
        raise BrokenFileError(paths[0], f"should hold metres of at least 0, found {depth.min()} to {depth.max()}")
    return torch.from_numpy(depth.astype(np.float32))[None]


class Nyud(Archive):
    """One split of NYUD-v2. In validation, edges are what odsF compares with: from `edge_mat` if it exists."""

    spaces = NYUD_LABELS

    def __init__(
        self, root: Path, split: Split, *, tasks: Sequence[str] | None = (), size: Size = INPUT, cache: bool = False
    ) -> None:
        super().__init__(root, split, tasks=tasks, size=size, cache=cache)

    def list_file(self) -> Path:
        """The file with the ids of this split."""
        return self.root / "gt_sets" / f"{self.split}.txt"

    def find_sources(self) -> Mapping[str, Source]:
        """The sources of every task's labels, and under "image" of the images."""
        if self.split == "train":
            edge = Source(("edge/*.png",), _edge)
        elif (self.root / "edge_mat").is_dir():
            edge = Source(("edge_mat/*.mat",), _annotated_edge)
        else:
            edge = Source(("edge/*.png",), _edge_is_there)
        return {
            "image": Source(("images/*.png",), _image),
            "semseg": Source(("segmentation/*.png",), _semseg),
            "normals": Source(("normals/*.png",), _normals),
            "edge": edge,
            "depth": Source(("depth/*.npy",), _depth),
        }


class NyudData(DataConfig):
    """NYUD-v2 in a folder."""

    kind: Literal["nyud"] = "nyud"
    root: Annotated[Place, Field(description=ROOT)]
    size: Annotated[tuple[PositiveInt, PositiveInt], Field(description=SIZE)] = INPUT
    cache: Annotated[bool, Field(description=CACHE)] = False

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that the whole archive has labels for; missing files are noticed when it is opened and read."""
        return NYUD_LABELS

    def open(self, split: Split, tasks: TaskSet = TASKS) -> Dataset:
        """Open one split."""
        data = Nyud(self.root, split, size=self.size, cache=self.cache)
        if split == "val" and not self.resize:
            data.require_fit()
        return data
