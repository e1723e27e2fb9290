"""One split of a data set in folders: what the two archives share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from torch import Tensor

from fedhca2.data.cache import CACHE_BYTES, Cache
from fedhca2.data.dataset import Sample, Split
from fedhca2.data.files import BrokenFileError, MissingFileError, file_in, read_file, read_size
from fedhca2.data.transforms import misfit
from fedhca2.tasks import LabelSpace

Paths = tuple[Path, ...]
Size = tuple[int, int]


@dataclass(frozen=True)
class Source:
    """File patterns, with `*` for the id, and how to read the files as a tensor.

    `read` gets the files and, for a label, the size of its image. If the first pattern has no file for an id,
    `otherwise` has one.
    """

    places: tuple[str, ...]
    read: Callable[[Paths, Size], Tensor]
    otherwise: str | None = None


class Archive(ABC):
    """One split of a data set in folders: for every id an image, and one or two files per task.

    The files of images and `tasks` must exist when it is opened (None: no check); those of other tasks when they are
    read. Nothing is ever written.
    """

    spaces: Mapping[str, LabelSpace]

    def __init__(
        self, root: Path, split: Split, *, tasks: Sequence[str] | None = (), size: Size, cache: bool = False
    ) -> None:
        self.root = Path(root)
        self.split = split
        self.size = size
        self.sources = self.find_sources()
        self.ids = self._read_ids()
        self._names: dict[Path, frozenset[str]] = {}
        self._cache = Cache(CACHE_BYTES if cache else 0)
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
        ids = tuple(read_file(path, "a list of ids", lambda path: path.read_text(encoding="utf-8")).split())
        if not ids or len(set(ids)) != len(ids):
            raise BrokenFileError(
                path, f"should list every id once, found {len(ids)} ids, {len(set(ids))} of them different"
            )
        for number, id in enumerate(ids, 1):
            try:
                file_in(self.root, id, within=None)
            except ValueError as error:
                raise BrokenFileError(path, f"id {number}: {error}") from None
        return ids

    def _exists(self, path: Path) -> bool:
        folder = path.parent
        if folder not in self._names:  # a folder is listed once: far fewer calls than checking every file
            self._names[folder] = (
                frozenset(entry.name for entry in folder.iterdir()) if folder.is_dir() else frozenset()
            )
        return path.name in self._names[folder]

    def files(self, name: str, id: str) -> Paths:
        """The files of an image, or of its label for a task."""
        source = self.sources[name]
        paths = tuple(self.root / place.replace("*", id) for place in source.places)
        if source.otherwise is not None and not self._exists(paths[0]):
            instead = self.root / source.otherwise.replace("*", id)
            return (instead,) if self._exists(instead) else paths
        return paths

    def missing(self, name: str) -> list[Path]:
        """The missing files of a task (or "image")."""
        return [path for id in self.ids for path in self.files(name, id) if not self._exists(path)]

    def _require_files(self, name: str) -> None:
        missing = self.missing(name)
        if missing:
            more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
            raise MissingFileError(
                missing[0], f"'{name}' of the {self.split} split should be here, found no file{more}"
            )

    def require(self, tasks: Sequence[str]) -> None:
        """Raise an error if a file that these tasks need is missing."""
        for task in tasks:
            if task not in self.labels:
                raise MissingFileError(
                    self.root, f"should have labels for '{task}', found {', '.join(self.labels) or 'none'}"
                )
            self._require_files(task)

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks whose folders exist."""

        def present(source: Source) -> bool:
            first, *rest = [(self.root / place).parent.is_dir() for place in source.places]
            instead = source.otherwise is not None and (self.root / source.otherwise).parent.is_dir()
            return (first or instead) and all(rest)

        return {task: space for task, space in self.spaces.items() if present(self.sources[task])}

    def check_lists(self) -> None:  # noqa: B027
        """Raise an error if a further list of the split cannot be read; most archives have none."""

    def __len__(self) -> int:
        return len(self.ids)

    def for_share(self, indices: Sequence[int]) -> Self:
        """Return itself: all clients see the same."""
        return self

    def require_fit(self) -> None:
        """Raise an error if an image is larger than the network's input: evaluation pads but never crops."""
        for id in self.ids:
            path = self.files("image", id)[0]
            if fault := misfit(read_size(path), self.size):
                raise BrokenFileError(path, fault)

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
        decode = partial(read_file, paths[0], f"readable as '{name}'", lambda _: self.sources[name].read(paths, size))
        tensor = self._cache.get((id, name), decode)
        if name != "image" and tensor.shape[-2:] != size:
            height, width = tensor.shape[-2:]
            raise BrokenFileError(paths[0], f"should be {size[0]}×{size[1]} like its image, found {height}×{width}")
        return tensor
