"""One split of a user's own data set, behind the interface that all data sets have."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from fedhca2.data.archive import CACHE_BYTES, Cache
from fedhca2.data.arrays import to_array, to_image, to_label
from fedhca2.data.dataset import Sample, Split
from fedhca2.data.files import BrokenFileError, FileError
from fedhca2.data.transforms import require_fit
from fedhca2.imports import told
from fedhca2.tasks import LabelSpace, get_task, skips_empty

Names = Sequence[str] | int | LabelSpace | None  # how a data set describes the labels of a task


def label_space(names: Names) -> LabelSpace:
    """The label space of a task, from the names of its classes, their number, or nothing if it has none.

    >>> label_space(["table", "chair"]).classes, label_space(3).classes, label_space(None).classes
    (2, 3, None)
    """
    if isinstance(names, LabelSpace):
        return names
    if names is None or isinstance(names, int):
        return LabelSpace(names)
    return LabelSpace(names=tuple(map(str, names)))


def label_spaces(labels: Any) -> dict[str, LabelSpace]:
    """The label spaces of all tasks of a data set."""
    try:
        return {str(task): label_space(names) for task, names in labels.items()}
    except (AttributeError, TypeError):
        raise ValueError(f"labels should be class names by task, found {labels!r:.200}") from None


class OwnSamples:
    """One split of a user's data set, with every sample converted and checked."""

    def __init__(self, held: Any, size: tuple[int, int], split: Split, *, cache: bool, fits: bool = True) -> None:
        """`fits`: images of the validation split should not be larger than the network's input."""
        self.held = held
        self.fits = fits
        self.size = size
        self.split = split
        self.are_arrays = hasattr(held, "shape")
        self.labels = label_spaces(held.labels)
        self.ids: Sequence[str] = [str(id) for id in getattr(held, "ids", range(len(held)))]
        if len(set(self.ids)) != len(held) or not self.ids:
            found = f"{len(held)} images and {len(set(self.ids))} different ids"
            raise BrokenFileError(Path(split), f"should have some images, each with an id of its own, found {found}")
        self._cache = Cache(CACHE_BYTES if cache else 0)

    def __len__(self) -> int:
        return len(self.ids)

    def for_share(self, indices: Sequence[int]) -> Self:
        """Return itself: all clients see the same."""
        return self

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All images, or for a client with only a task that skips empty ones, those with something to label."""
        if not skips_empty(tasks):
            return range(len(self))
        task = get_task(tasks[0])
        return [i for i in range(len(self)) if task.known(self.load(i, tasks)[task.name]).any()]

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """An image with the labels of these tasks."""
        read = cache(lambda: self._read(index))
        sample: Sample = {}
        for name in ("image", *tasks):
            convert = partial(self._converted, index, name, read, sample)
            sample[name] = self._cache.get((str(index), name), convert)
        return sample

    def _converted(self, index: int, name: str, read: Callable[[], Mapping[str, Any]], sample: Sample) -> Tensor:
        found = read()
        key = "input" if name == "image" and self.are_arrays else name
        if key not in found:
            listed = ", ".join(map(str, found)) or "nothing"
            raise BrokenFileError(self._place(index), f"should have {key!r}, found {listed}")
        try:
            if key == "input":
                return to_array(found[key], self.size)
            if name == "image":
                image = to_image(found[name])
                if self.split == "val" and self.fits:
                    require_fit({"image": image}, self.size)
                return image
            height, width = sample["image"].shape[-2:]
            return to_label(found[name], get_task(name), self.labels[name], (height, width))
        except ValueError as error:
            raise BrokenFileError(self._place(index), f"{key!r} {error}") from error
        except OSError as error:  # Pillow reads a file when its pixels are needed
            raise BrokenFileError(self._place(index), f"{name!r} should be readable, found {told(error)}") from error

    def _read(self, index: int) -> Mapping[str, Any]:
        try:
            found = self.held[index]
        except (FileError, MemoryError):
            raise
        except Exception as error:  # it may raise anything
            raise BrokenFileError(self._place(index), f"should be a sample, found {told(error)}") from error
        if not isinstance(found, Mapping):
            fault = f"should be {{'image': …, task: …}}, found {type(found).__name__}"
            raise BrokenFileError(self._place(index), fault)
        return found

    def _place(self, index: int) -> Path:
        own = f" ({self.ids[index]})" if self.ids[index] != str(index) else ""
        return Path(f"{self.split}[{index}]{own}")
