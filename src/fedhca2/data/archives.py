"""Data sets in folders with a file per image and task, among them the papers': PASCAL-Context and NYUD-v2."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedhca2.data import files
from fedhca2.data.config import Cached, DataConfig, InputSize, Root
from fedhca2.data.dataset import Cache, Dataset, SameForAll, Sample, Size, Split, shared_property
from fedhca2.data.files import CONTEXT_CLASSES, BrokenFileError, MissingFileError, file_in, reading
from fedhca2.data.label_spaces import NYUD_CLASSES, NYUD_LABELS, PASCAL_CLASSES, PASCAL_LABELS, PERSON
from fedhca2.data.transforms import check_fit
from fedhca2.labels import IGNORE
from fedhca2.metrics.edges import boundaries
from fedhca2.tasks import TASKS, LabelSpace, TaskSet

ArchiveKind = Literal["pascal_context", "nyud"]
Paths = tuple[Path, ...]


@dataclass(frozen=True)
class Source:
    """File patterns, with `*` for the id, and how to read the files as a tensor.

    `read` gets the files and, for a label, the size of its image. If the first pattern has no file for an id,
    `otherwise` has one.
    """

    patterns: tuple[str, ...]
    read: Callable[[Paths, Size], Tensor]
    otherwise: str | None = None

    @classmethod
    def single(cls, pattern: str, read: Callable[[Path], Tensor], otherwise: str | None = None) -> Self:
        """A source of one file per id."""
        return cls((pattern,), lambda paths, _: read(paths[0]), otherwise)


class Archive(SameForAll, ABC):
    """One split of a data set in folders: for every id an image, and one or two files per task.

    The files of images and labels must exist when a client's images are chosen by `usable`. Nothing is ever written.
    """

    spaces: Mapping[str, LabelSpace]
    input_size: Size

    def __init__(self, root: Path, split: Split, *, size: Size | None = None, cache: bool = False) -> None:
        """:param size: height and width of the network's input, if not `input_size`."""
        self.root, self.split, self.size = Path(root), split, size or self.input_size
        self._listed: dict[Path, frozenset[Path]] = {}
        self._cache = Cache() if cache else Cache(0)
        self.sources, path = self.find_sources(), self.list_file()
        with reading(path, "a list of ids"):
            self.ids = tuple(path.read_text(encoding="utf-8").split())
        if not self.ids or len(set(self.ids)) != len(self.ids):
            actual = f"{len(self.ids)} ids, {len(set(self.ids))} of them different"
            raise BrokenFileError(path, f"expected every id once, got {actual}")
        for number, id in enumerate(self.ids, 1):
            file_in(self.root, id, within=None, where=f"{path}: id {number}")

    @abstractmethod
    def list_file(self) -> Path:
        """The file with the ids of this split."""

    @abstractmethod
    def find_sources(self) -> Mapping[str, Source]:
        """The sources of every task's labels, and under "image" of the images."""

    def _exists(self, path: Path) -> bool:
        if (folder := path.parent) not in self._listed:  # once: far fewer calls than checking every file
            self._listed[folder] = frozenset(folder.iterdir() if folder.is_dir() else ())
        return path in self._listed[folder]

    def files(self, name: str, id: str) -> Paths:
        """The files of an image, or of its label for a task."""
        source = self.sources[name]
        paths = tuple(self.root / pattern.replace("*", id) for pattern in source.patterns)
        if source.otherwise is not None and not self._exists(paths[0]):
            instead = self.root / source.otherwise.replace("*", id)
            return (instead,) if self._exists(instead) else paths
        return paths

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks whose folders exist."""

        def is_there(source: Source) -> bool:
            first, *rest = ((self.root / pattern).parent.is_dir() for pattern in source.patterns)
            return all(rest) and (first or bool(source.otherwise and (self.root / source.otherwise).parent.is_dir()))

        return {task: space for task, space in self.spaces.items() if is_there(self.sources[task])}

    def __len__(self) -> int:
        return len(self.ids)

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All images; raises an error if an image, or a label of these tasks, has no file."""
        for name in ("image", *tasks):
            if name not in ("image", *self.labels):
                labelled = ", ".join(self.labels) or "none"
                raise MissingFileError(self.root, f"expected labels for '{name}', got {labelled}")
            if missing := [path for id in self.ids for path in self.files(name, id) if not self._exists(path)]:
                more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
                raise MissingFileError(missing[0], f"expected '{name}' of the {self.split} split, got no file{more}")
        return range(len(self))

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """An image with the labels of these tasks, at its own size."""
        id = self.ids[index]
        image = self.read("image", id)
        size = (image.shape[-2], image.shape[-1])
        return {"image": image} | {task: self.read(task, id, size) for task in tasks}

    def read(self, name: str, id: str, size: Size = (0, 0)) -> Tensor:
        """Read an image, or its label for a task, which should have this size."""
        paths = self.files(name, id)
        with reading(paths[0], f"a file readable as '{name}'"):
            tensor = self._cache.get((id, name), lambda: self.sources[name].read(paths, size))
        if name != "image" and tensor.shape[-2:] != size:
            height, width = tensor.shape[-2:]
            raise BrokenFileError(paths[0], f"expected {size[0]}×{size[1]} like its image, got {height}×{width}")
        return tensor


class ArchiveData(DataConfig):
    """An archive in a folder."""

    root: Root
    cache: Cached = False
    archive: ClassVar[type[Archive]]

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that the whole archive has labels for; missing files are noticed when it is opened and read."""
        return self.archive.spaces

    def open(self, split: Split, tasks: TaskSet = TASKS) -> Dataset:
        """Open one split; raises an error if an image to evaluate is larger than the network's input."""
        data = self.archive(split=split, **self.model_dump(exclude=DataConfig.model_fields.keys() - {"size"}))
        for id in data.ids if split == "val" and not self.resize else ():  # evaluation pads but never crops
            own = files.read_size(path := data.files("image", id)[0])
            try:
                check_fit(own, data.size)
            except ValueError as error:
                raise BrokenFileError(path, str(error)) from None
        return data


def training_edges(label_map: Tensor) -> Tensor:
    """Pixels where the 4-neighbour Laplacian of a label map (mirrored at the borders) is not 0, thinned to lines."""
    from fedhca2.metrics.edge_kernels import thin  # numba is slow to import, and only edges need it

    return torch.from_numpy(thin(scipy.ndimage.laplace(label_map.numpy().astype(np.int32), mode="mirror") != 0))


class PascalContext(Archive):
    """One split of PASCAL-Context.

    Edges are thinned lines in training. In validation they are what odsF compares with: the boundaries of the label
    map.
    """

    spaces = PASCAL_LABELS
    input_size = (512, 512)

    def __init__(
        self,
        root: Path,
        split: Split,
        *,
        size: Size | None = None,
        cache: bool = False,
        released_parts_index: bool = False,
    ) -> None:
        super().__init__(root, split, size=size, cache=cache)
        self.released_parts_index = released_parts_index
        self._read_instead: dict[int, int] = {}

    def for_share(self, indices: Sequence[int]) -> Self:
        """The data set as seen by a client whose share is these images in this order: usually the same for all.

        It differs with `released_parts_index`: for the k-th image of a share, the authors' released code checks whether
        the k-th image of the whole split has a person, and otherwise drops the image or its parts.
        """
        share = copy(self)
        if self.released_parts_index:
            share._read_instead = {index: k for k, index in enumerate(indices)}
        return share

    def list_file(self) -> Path:
        """The file with the ids of this split."""
        return self.root / "ImageSets" / "Context" / f"{self.split}.txt"

    def find_sources(self) -> Mapping[str, Source]:
        """The sources of every task's labels, and under "image" of the images."""
        label_map = "pascal-context/trainval/*.mat"
        return {
            "image": Source.single("JPEGImages/*.jpg", files.read_colours),
            "semseg": Source.single(
                "semseg/VOC12/*.png",
                lambda path: files.class_codes(path, files.read_values(path), len(PASCAL_CLASSES)),
                otherwise="semseg/pascal-context/*.png",
            ),
            "human_parts": Source(("human_parts/*.mat",), lambda paths, size: files.read_parts(paths[0], size)),
            "sal": Source.single("sal_distill/*.png", lambda path: (files.read_shades(path) >= 128).byte()),
            "normals": Source(("normals_distill/*.png", label_map), self._read_normals),
            "edge": Source.single(label_map, self._read_edges),
        }

    def _read_edges(self, path: Path) -> Tensor:
        label_map = torch.from_numpy(files.read_label_map(path))
        edges = training_edges(label_map) if self.split == "train" else boundaries(label_map)
        return edges.float()[None]

    @shared_property
    def _valid(self) -> NDArray[np.bool_]:
        nyu_path, context_path = (self.root / "json" / f"{name}_classes.json" for name in ("nyu", "context"))
        nyu, context = files.read_json(nyu_path), files.read_json(context_path)
        if not isinstance(nyu, dict | list):
            raise BrokenFileError(nyu_path, f"expected names of classes, got {nyu!r:.80}")
        if not isinstance(context, dict) or "tvmonitor" not in context:
            raise BrokenFileError(context_path, "expected a class 'tvmonitor', got none")
        for name, number in context.items():
            if type(number) is not int or not 0 <= number <= CONTEXT_CLASSES:
                expected = f"expected a number from 0 to {CONTEXT_CLASSES}"
                raise BrokenFileError(context_path, f"{name!r:.80}: {expected}, got {number!r:.80}")
        valid = np.zeros(CONTEXT_CLASSES + 1, bool)  # the normals of classes that NYUD has too
        valid[[number for name, number in context.items() if name in nyu and name != "unknown"]] = True
        valid[context["tvmonitor"]] = True  # NYUD calls it "television"
        return valid

    def _read_normals(self, paths: Paths, size: Size) -> Tensor:
        normals, label_map = files.read_normals(paths[0]), files.read_label_map(paths[1])
        if normals.shape[-2:] != label_map.shape:
            expected = f"expected {tuple(normals.shape[-2:])} like {paths[0].name}"
            raise BrokenFileError(paths[1], f"{expected}, got {label_map.shape}")
        return normals * torch.from_numpy(self._valid[label_map])

    @shared_property
    def _objects(self) -> dict[str, list[int]]:
        path = self.root / "ImageSets" / "Parts" / f"{self.split}.txt"
        objects: dict[str, list[int]] = files.read_json(path)
        if not isinstance(objects, dict) or not all(isinstance(classes, list) for classes in objects.values()):
            raise BrokenFileError(path, "expected a list of classes by id, got another form")
        if missing := [id for id in self.ids if id not in objects]:
            raise BrokenFileError(path, f"expected every id of the split, got none for {', '.join(missing[:3])}")
        return objects

    def has_person(self, index: int) -> bool:
        """Whether an image shows a person, according to the split's list."""
        return PERSON in self._objects[self.ids[self._read_instead.get(index, index)]]

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All images, or for a client with only a task that skips empty ones, those with a person."""
        everything = super().usable(tasks)
        return [index for index in everything if self.has_person(index)] if TASKS.skips_empty(tasks) else everything

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """An image with the labels of these tasks, at its own size."""
        sample = super().load(index, tasks)
        if index in self._read_instead and not self.has_person(index):
            for task in tasks:
                if TASKS[task].skips_empty:
                    sample[task].fill_(IGNORE)
        return sample


class PascalContextData(ArchiveData):
    """PASCAL-Context in a folder."""

    archive = PascalContext
    kind: Literal["pascal_context"] = "pascal_context"
    size: InputSize = PascalContext.input_size
    released_parts_index: bool = Field(
        False, description="look for people in the k-th image of the split, not of the share, as the released code does"
    )


class Nyud(Archive):
    """One split of NYUD-v2. In validation, edges are what odsF compares with: from `edge_mat` if it exists."""

    spaces = NYUD_LABELS
    input_size = (448, 576)

    def list_file(self) -> Path:
        """The file with the ids of this split."""
        return self.root / "gt_sets" / f"{self.split}.txt"

    def find_sources(self) -> Mapping[str, Source]:
        """The sources of every task's labels, and under "image" of the images."""
        if self.split == "train":
            edge = Source.single("edge/*.png", lambda path: files.read_shades(path).float() / 255)
        elif (self.root / "edge_mat").is_dir():
            edge = Source.single("edge_mat/*.mat", files.read_boundaries)
        else:
            edge = Source.single("edge/*.png", lambda path: (files.read_shades(path) > 0).float())
        return {
            "image": Source.single("images/*.png", files.read_colours),
            "semseg": Source.single("segmentation/*.png", self._read_classes),
            "normals": Source.single("normals/*.png", files.read_normals),
            "edge": edge,
            "depth": Source.single("depth/*.npy", files.read_depth),
        }

    def _read_classes(self, path: Path) -> Tensor:
        codes = files.class_codes(path, files.read_values(path), len(NYUD_CLASSES) + 1)
        return torch.where(codes == 255, 255, codes - 1)  # 0, unlabelled, wraps around to 255


class NyudData(ArchiveData):
    """NYUD-v2 in a folder."""

    archive = Nyud
    kind: Literal["nyud"] = "nyud"
    size: InputSize = Nyud.input_size
