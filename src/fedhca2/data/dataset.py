"""The interface of a data set (samples by index, with the requested labels), and what data sets keep in memory."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from threading import Lock, RLock
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from fedhca2.tasks import LabelSpace

T = TypeVar("T")
Split = Literal["train", "val"]
Size = tuple[int, int]  # height and width

# "image" is uint8 [3, H, W]. Labels are [C, H, W]: classes and sal uint8, 255 if unknown; edge float32 in
# 0 … 1; normals float32 unit vectors, zero if unknown; depth float32 in metres, zero if unknown.
Sample = dict[str, Tensor]


class Dataset(Protocol):
    """One split of a data set."""

    @property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that it has labels for."""

    @property
    def size(self) -> Size:
        """Height and width of the network's input."""

    @property
    def ids(self) -> Sequence[str]:
        """Names of the images, in order."""

    def __len__(self) -> int:
        """Number of images."""

    def for_share(self, indices: Sequence[int]) -> Self:
        """The data set as seen by a client whose share is these images in this order; usually the same for all."""

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """The images that a client with exactly these tasks can use."""

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """Load an image with the labels of these tasks."""


def input_shape(data: Dataset) -> tuple[int, ...]:
    """The shape of a network's input: of arrays their own, of images three channels of the data set's size."""
    return data.size if getattr(data, "are_arrays", False) else (3, *data.size)


class SameForAll:
    """A data set that looks the same to all clients."""

    def for_share(self, indices: Sequence[int]) -> Self:
        """Return itself."""
        return self


def shared_property(compute: Callable[[Any], T]) -> cached_property[T]:
    """A `cached_property` that is computed once, also for several threads: from Python 3.12 on, others have no lock."""
    name, lock = compute.__name__, RLock()

    @wraps(compute)
    def compute_once(instance: Any) -> T:
        with lock:
            if name not in vars(instance):
                vars(instance)[name] = compute(instance)
            value: T = vars(instance)[name]
            return value

    return cached_property(compute_once)


class Cache:
    """Decoded images and labels by key, up to a number of bytes; one per process, shared by its threads.

    It keeps what came first: epochs read everything in sequence, so evicting the oldest would never give a hit.
    """

    def __init__(self, limit: int = 4 * 2**30) -> None:
        self.limit = limit
        self.used = 0
        self._lock = Lock()
        self._tensors: dict[tuple[str, str], Tensor] = {}

    def get(self, key: tuple[str, str], make: Callable[[], Tensor]) -> Tensor:
        """The tensor of this key as a copy of the caller's own; computed if it is not cached."""
        cached = self._tensors.get(key)
        if cached is not None:
            return cached.clone()
        tensor = make()
        with self._lock:
            if key not in self._tensors and self.used + tensor.nbytes <= self.limit:
                self._tensors[key] = tensor.clone()
                self.used += tensor.nbytes
        return tensor


class Stacked:
    """Samples of equal shapes, kept in one tensor for each name and filled as they are read, up to a number of bytes.

    A batch is then one gather for each name.
    """

    def __init__(self, count: int, limit: int = 4 * 2**30) -> None:
        self.count, self.limit = count, limit
        self._stacks: dict[str, tuple[Tensor, Tensor]] = {}  # values, and which of them are filled
        self._lock = Lock()

    def batch(self, indices: Sequence[int], names: Sequence[str], load: Callable[[int], Sample]) -> Sample:
        """The samples at these indices, stacked; `load` reads those that are not kept yet."""
        chosen = torch.tensor(indices)
        with self._lock:
            if not all(name in self._stacks for name in names):
                first = load(indices[0])
                if self.count * sum(value.nbytes for value in first.values()) > self.limit:
                    samples = [load(index) for index in indices]
                    return {name: torch.stack([sample[name] for sample in samples]) for name in names}
                for name in first.keys() - self._stacks.keys():
                    is_filled = torch.zeros(self.count, dtype=torch.bool)
                    self._stacks[name] = torch.empty(self.count, *first[name].shape), is_filled
            filled = torch.stack([self._stacks[name][1][chosen] for name in names]).all(dim=0)
            for index in chosen[~filled].tolist():
                for name, value in load(index).items():
                    values, is_filled = self._stacks[name]
                    values[index], is_filled[index] = value, True
            return {name: self._stacks[name][0][chosen] for name in names}
