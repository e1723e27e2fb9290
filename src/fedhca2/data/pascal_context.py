"""PASCAL-Context in the folder layout of its multi-task archive."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor

from fedhca2.data.archive import Archive, Paths, Size, Source
from fedhca2.data.cache import shared_property
from fedhca2.data.config import CACHE, ROOT, SIZE, DataConfig, Place
from fedhca2.data.dataset import Dataset, Sample, Split
from fedhca2.data.files import (
    BrokenFileError,
    class_codes,
    read_colours,
    read_json,
    read_mat,
    read_normals,
    read_shades,
    read_values,
)
from fedhca2.data.label_spaces import PASCAL_CLASSES, PASCAL_LABELS
from fedhca2.labels import IGNORE
from fedhca2.metrics.edges import boundaries
from fedhca2.tasks import TASKS, LabelSpace, TaskSet

PART_CLASS = {
    **dict.fromkeys(("hair", "head", "lear", "rear", "lebrow", "rebrow", "leye", "reye", "mouth", "nose"), 1),
    **dict.fromkeys(("neck", "torso"), 2),
    **dict.fromkeys(("luarm", "ruarm"), 3),
    **dict.fromkeys(("llarm", "rlarm", "lhand", "rhand"), 4),
    **dict.fromkeys(("luleg", "ruleg"), 5),
    **dict.fromkeys(("llleg", "rlleg", "lfoot", "rfoot"), 6),
}
PERSON = 15
CONTEXT_CLASSES = 459
SALIENT_FROM = 128


def training_edges(label_map: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Pixels where the 4-neighbour Laplacian of a label map (mirrored at the borders) is not 0, thinned to lines."""
    from fedhca2.metrics.edge_kernels import thin  # numba is slow to import, and only edges need it

    return thin(scipy.ndimage.laplace(label_map.astype(np.int32), mode="mirror") != 0)


def part_map(path: Path, shape: Size) -> Tensor:
    """Paint the parts of all people in a PASCAL-Part annotation, in the file's order; uint8 [1, H, W].

    If no pixel belongs to a part, all pixels are unknown, 255.
    """
    painted = np.zeros(shape, np.uint8)
    annotation = read_mat(path, "anno")
    # Fields by position. anno: image name, objects; an object: name, class, mask, parts; a part: name, mask.
    people = [item for item in annotation[0][0][1].flat if item[1].item() == PERSON]
    parts = [(str(part[0].item()), part[1]) for person in people for part in person[3].flat]
    for name, mask in parts:
        if name not in PART_CLASS:
            raise BrokenFileError(path, f"a person's part should be one of {', '.join(PART_CLASS)}, found '{name}'")
        if mask.shape != shape:
            raise BrokenFileError(path, f"should be {shape[0]}×{shape[1]} like its image, found {name} {mask.shape}")
        painted[mask.astype(bool)] = PART_CLASS[name]
    if not painted.any():
        painted.fill(IGNORE)
    return torch.from_numpy(painted)[None]


def classes_with_normals(nyu: Collection[str], context: Mapping[str, int]) -> NDArray[np.bool_]:
    """Whether the normals of every id of the label map are valid, that is, whether NYUD has a class of that name.

    >>> classes_with_normals(["chair", "unknown"], {"chair": 2, "sky": 3, "tvmonitor": 4, "unknown": 5}).nonzero()[0]
    array([2, 4])
    """
    valid = np.zeros(CONTEXT_CLASSES + 1, bool)
    valid[[number for name, number in context.items() if name in nyu and name != "unknown"]] = True
    valid[context["tvmonitor"]] = True  # NYUD calls it "television"
    return valid


def read_label_map(path: Path) -> NDArray[np.int32]:
    """The classes of PASCAL-Context, 1 … 459, int32 [H, W]."""
    stored = read_mat(path, "LabelMap")
    if stored.ndim != 2 or stored.dtype.kind not in "biuf":
        raise BrokenFileError(path, f"LabelMap: expected a map of numbers, got {stored.dtype} {stored.shape}")
    if not np.isin(stored, np.arange(CONTEXT_CLASSES + 1)).all():
        found = f"{stored.min()} to {stored.max()}"
        raise BrokenFileError(path, f"LabelMap: expected whole numbers from 0 to {CONTEXT_CLASSES}, got {found}")
    label_map: NDArray[np.int32] = stored.astype(np.int32)
    return label_map


def _image(paths: Paths, size: Size) -> Tensor:
    return read_colours(paths[0])


def _semseg(paths: Paths, size: Size) -> Tensor:
    return class_codes(paths[0], read_values(paths[0]), len(PASCAL_CLASSES))


def _human_parts(paths: Paths, size: Size) -> Tensor:
    return part_map(paths[0], size)


def _sal(paths: Paths, size: Size) -> Tensor:
    return (read_shades(paths[0]) >= SALIENT_FROM).to(torch.uint8)


def _training_edge(paths: Paths, size: Size) -> Tensor:
    return torch.from_numpy(training_edges(read_label_map(paths[0]))).float()[None]


def _validation_edge(paths: Paths, size: Size) -> Tensor:
    return boundaries(torch.from_numpy(read_label_map(paths[0]))).float()[None]


class PascalContext(Archive):
    """One split of PASCAL-Context.

    Edges are thinned lines in training. In validation they are what odsF compares with: the boundaries of the label
    map.
    """

    spaces = PASCAL_LABELS

    def __init__(
        self,
        root: Path,
        split: Split,
        *,
        tasks: Sequence[str] | None = (),
        size: Size = (512, 512),
        cache: bool = False,
        released_parts_index: bool = False,
    ) -> None:
        super().__init__(root, split, tasks=tasks, size=size, cache=cache)
        self.released_parts_index = released_parts_index
        self._misread: dict[int, int] = {}

    def for_share(self, indices: Sequence[int]) -> Self:
        """The data set as seen by a client whose share is these images in this order: usually the same for all.

        It differs with `released_parts_index`: for the k-th image of a share, the authors' released code checks whether
        the k-th image of the whole split has a person, and otherwise drops the image or its parts.
        """
        share = copy(self)
        if self.released_parts_index:
            share._misread = {index: k for k, index in enumerate(indices)}
        return share

    def list_file(self) -> Path:
        """The file with the ids of this split."""
        return self.root / "ImageSets" / "Context" / f"{self.split}.txt"

    def find_sources(self) -> Mapping[str, Source]:
        """The sources of every task's labels, and under "image" of the images."""
        label_map = "pascal-context/trainval/*.mat"
        edge = _training_edge if self.split == "train" else _validation_edge
        return {
            "image": Source(("JPEGImages/*.jpg",), _image),
            "semseg": Source(("semseg/VOC12/*.png",), _semseg, otherwise="semseg/pascal-context/*.png"),
            "human_parts": Source(("human_parts/*.mat",), _human_parts),
            "sal": Source(("sal_distill/*.png",), _sal),
            "normals": Source(("normals_distill/*.png", label_map), self._normals),
            "edge": Source((label_map,), edge),
        }

    @shared_property
    def _valid(self) -> NDArray[np.bool_]:
        folder = self.root / "json"
        nyu, context = read_json(folder / "nyu_classes.json"), read_json(folder / "context_classes.json")
        if not isinstance(nyu, dict | list):
            raise BrokenFileError(folder / "nyu_classes.json", f"expected names of classes, got {nyu!r:.80}")
        if not isinstance(context, dict) or "tvmonitor" not in context:
            raise BrokenFileError(folder / "context_classes.json", "expected a class 'tvmonitor', got none")
        for name, number in context.items():
            if type(number) is not int or not 0 <= number <= CONTEXT_CLASSES:
                wanted = f"expected a number from 0 to {CONTEXT_CLASSES}"
                raise BrokenFileError(folder / "context_classes.json", f"{name!r:.80}: {wanted}, got {number!r:.80}")
        return classes_with_normals(nyu, context)

    def _normals(self, paths: Paths, size: Size) -> Tensor:
        normals, label_map = read_normals(paths[0]), read_label_map(paths[1])
        if normals.shape[-2:] != label_map.shape:
            raise BrokenFileError(
                paths[1], f"should be {normals.shape[-2:]} like {paths[0].name}, found {label_map.shape}"
            )
        return normals * torch.from_numpy(self._valid[label_map])

    @shared_property
    def _objects(self) -> dict[str, list[int]]:
        path = self.root / "ImageSets" / "Parts" / f"{self.split}.txt"
        objects: dict[str, list[int]] = read_json(path)
        if not isinstance(objects, dict) or not all(isinstance(classes, list) for classes in objects.values()):
            raise BrokenFileError(path, "expected a list of classes by id, got another form")
        missing = [id for id in self.ids if id not in objects]
        if missing:
            raise BrokenFileError(path, f"should have every id of the split, found none for {', '.join(missing[:3])}")
        return objects

    def check_lists(self) -> None:
        """Raise an error if the list of people is needed and cannot be read."""
        if any(TASKS[task].skips_empty for task in self.labels):
            self.has_person(0)

    def has_person(self, index: int) -> bool:
        """Whether an image shows a person, according to the split's list."""
        return PERSON in self._objects[self.ids[self._misread.get(index, index)]]

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All images, or for a client with only a task that skips empty ones, those with a person."""
        everything = super().usable(tasks)
        return [index for index in everything if self.has_person(index)] if TASKS.skips_empty(tasks) else everything

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """An image with the labels of these tasks, at its own size."""
        sample = super().load(index, tasks)
        if index in self._misread and not self.has_person(index):
            for task in tasks:
                if TASKS[task].skips_empty:
                    sample[task].fill_(IGNORE)
        return sample


class PascalContextData(DataConfig):
    """PASCAL-Context in a folder."""

    kind: Literal["pascal_context"] = "pascal_context"
    root: Annotated[Place, Field(description=ROOT)]
    size: Annotated[tuple[PositiveInt, PositiveInt], Field(description=SIZE)] = (512, 512)
    cache: Annotated[bool, Field(description=CACHE)] = False
    released_parts_index: Annotated[
        bool,
        Field(
            description="look for people in the k-th image of the split, not of the share, as the released code does"
        ),
    ] = False

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that the whole archive has labels for; missing files are noticed when it is opened and read."""
        return PASCAL_LABELS

    def open(self, split: Split, tasks: TaskSet = TASKS) -> Dataset:
        """Open one split."""
        data = PascalContext(
            self.root, split, size=self.size, cache=self.cache, released_parts_index=self.released_parts_index
        )
        if split == "val" and not self.resize:
            data.require_fit()
        return data
