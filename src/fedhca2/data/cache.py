"""What stays in memory: decoded images and labels, and properties that several threads ask for."""

from collections.abc import Callable
from functools import cached_property, wraps
from threading import Lock, RLock
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")
CACHE_BYTES = 4 * 2**30


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
    """Tensors by key, up to a number of bytes; one per process, shared by its threads.

    It keeps what came first: epochs read everything in sequence, so evicting the oldest would never give a hit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = Lock()
        self._kept: dict[tuple[str, str], Tensor] = {}

    def __reduce__(self) -> tuple[type["Cache"], tuple[int]]:
        return Cache, (self.limit,)  # another process starts with an empty cache

    def get(self, key: tuple[str, str], make: Callable[[], Tensor]) -> Tensor:
        """The tensor of this key as a copy of the caller's own; computed if it is not cached."""
        kept = self._kept.get(key)
        if kept is not None:
            return kept.clone()
        made = make()
        with self._lock:
            if key not in self._kept and self.used + made.nbytes <= self.limit:
                self._kept[key] = made.clone()
                self.used += made.nbytes
        return made
