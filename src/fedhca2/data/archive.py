"""One split of a data set in folders: what the papers' two archives share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from torch import Tensor

from fedhca2.data.config import Cached, DataConfig, Root
from fedhca2.data.dataset import Cache, Dataset, SameForAll, Sample, Size, Split
from fedhca2.data.files import BrokenFileError, MissingFileError, file_in, read_size, reading
from fedhca2.data.transforms import check_fit
from fedhca2.tasks import TASKS, LabelSpace, TaskSet

Paths = tuple[Path, ...]


@dataclass(frozen=True)
class Source:
    """File patterns, with `*` for the id, and how to read the files as a tensor.

    `read` gets the files and, for a label, the size of its image. If the first pattern has no file for an id,
    `otherwise` has one.
    """

    places: tuple[str, ...]
    read: Callable[[Paths, Size], Tensor]
    otherwise: str | None = None

    @classmethod
    def single(cls, place: str, read: Callable[[Path], Tensor], otherwise: str | None = None) -> Self:
        """A source of one file per id."""
        return cls((place,), lambda paths, _: read(paths[0]), otherwise)


class Archive(SameForAll, ABC):
    """One split of a data set in folders: for every id an image, and one or two files per task.

    The files of images and `tasks` must exist when it is opened (None: no check); those of other tasks when they are
    read. Nothing is ever written.
    """

    spaces: Mapping[str, LabelSpace]
    input_size: Size

    def __init__(
        self,
        root: Path,
        split: Split,
        *,
        tasks: Sequence[str] | None = (),
        size: Size | None = None,
        cache: bool = False,
    ) -> None:
        """:param size: height and width of the network's input, if not `input_size`."""
        self.root, self.split, self.size = Path(root), split, size or self.input_size
        self.sources = self.find_sources()
        self.ids = self._read_ids()
        self._names: dict[Path, frozenset[str]] = {}
        self._cache = Cache() if cache else Cache(0)
        if tasks is not None:
            self._require_files("image")
            self.require(tasks)

    @abstractmethod
    def list_file(self) -> Path:
        """The file with the ids of this split."""

    @abstractmethod
    def find_sources(self) -> Mapping[str, Source]:
        """The sources of every task's labels, and under "image" of the images."""

    def _read_ids(self) -> tuple[str, ...]:
        path = self.list_file()
        with reading(path, "a list of ids"):
            ids = tuple(path.read_text(encoding="utf-8").split())
        if not ids or len(set(ids)) != len(ids):
            found = f"{len(ids)} ids, {len(set(ids))} of them different"
            raise BrokenFileError(path, f"expected every id once, got {found}")
        for number, id in enumerate(ids, 1):
            file_in(self.root, id, within=None, where=f"{path}: id {number}")
        return ids

    def _exists(self, path: Path) -> bool:
        folder = path.parent
        if folder not in self._names:  # a folder is listed once: far fewer calls than checking every file
            entries = folder.iterdir() if folder.is_dir() else ()
            self._names[folder] = frozenset(entry.name for entry in entries)
        return path.name in self._names[folder]

    def files(self, name: str, id: str) -> Paths:
        """The files of an image, or of its label for a task."""
        source = self.sources[name]
        paths = tuple(self.root / place.replace("*", id) for place in source.places)
        if source.otherwise is not None and not self._exists(paths[0]):
            instead = self.root / source.otherwise.replace("*", id)
            return (instead,) if self._exists(instead) else paths
        return paths

    def _require_files(self, name: str) -> None:
        missing = [path for id in self.ids for path in self.files(name, id) if not self._exists(path)]
        if missing:
            more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
            raise MissingFileError(missing[0], f"expected '{name}' of the {self.split} split, got no file{more}")

    def require(self, tasks: Sequence[str]) -> None:
        """Raise an error if a file that these tasks need is missing."""
        for task in tasks:
            if task not in self.labels:
                known = ", ".join(self.labels) or "none"
                raise MissingFileError(self.root, f"expected labels for '{task}', got {known}")
            self._require_files(task)

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks whose folders exist."""

        def is_there(source: Source) -> bool:
            first, *rest = [(self.root / place).parent.is_dir() for place in source.places]
            instead = source.otherwise is not None and (self.root / source.otherwise).parent.is_dir()
            return (first or instead) and all(rest)

        return {task: space for task, space in self.spaces.items() if is_there(self.sources[task])}

    def check_lists(self) -> None:
        """Raise an error if a further list of the split cannot be read; most archives have none."""

    def __len__(self) -> int:
        return len(self.ids)

    def require_fit(self) -> None:
        """Raise an error if an image is larger than the network's input: evaluation pads but never crops."""
        for id in self.ids:
            path = self.files("image", id)[0]
            own = read_size(path)
            try:
                check_fit(own, self.size)
            except ValueError as error:
                raise BrokenFileError(path, str(error)) from None

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All images; raises an error if a label of these tasks has no file."""
        self.require(tasks)
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
            tensor = self._cache.get((id, name), partial(self.sources[name].read, paths, size))
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
        """Open one split."""
        others = {"kind", "partition", "resize", "test"}  # which say how the archive is used
        own = {name: getattr(self, name) for name in type(self).model_fields.keys() - others}
        data = self.archive(split=split, **own)
        if split == "val" and not self.resize:
            data.require_fit()
        return data
