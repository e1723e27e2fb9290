"""How functions and modules are compiled and captured for a GPU."""

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

ALIGNMENT = 8  # matrix sizes are rounded up to a multiple of this, for the tensor cores
# Sizes never change within a run. Autotuning each elementwise kernel would double the compile time. Compiled code
# rounds where plain code does: otherwise a softmax has exact logits forwards and rounded ones backwards, and a gradient
# that lets large logits grow.
SETTINGS: dict[str, Any] = {
    "dynamic": False,
    "options": {"triton.autotune_pointwise": False, "emulate_precision_casts": True},
}


# Warnings about single kernels, which users can do nothing about.
warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")


def compiled(function: F, enabled: bool = True) -> F:
    """Compile the function on its first call, or return it unchanged if that is not wanted."""
    return cast(F, torch.compile(function, **SETTINGS)) if enabled else function


CAPTURING = Lock()  # torch captures one graph at a time


def capture_graph(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record the work that `run` starts on the GPU, after it has warmed up.

    It is recorded on the current stream, if that is not the default one: matrix products use scratch memory of their
    stream, so graphs from one stream must never run at the same time, and those from different streams may.
    """
    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), without_collecting():
        run()  # compiles, chooses kernels and allocates
        run()  # finds all that
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with CAPTURING, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        run()
    return graph


class Graphs:
    """The graphs of a device slot, each captured on first use.

    While a GPU has room for another two of the largest, all are kept. After that, those used longest ago make room:
    clients with models of their own would otherwise fill the GPU with graphs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, Any] = {}  # the last used one is last
        self._largest = 0  # bytes that a capture has taken

    def __len__(self) -> int:
        """How many there are."""
        return len(self._graphs)

    def get(self, kind: Hashable, capture: Callable[[], T]) -> T:
        """The graph of this kind, captured if there is none. Only the last one returned may be in use."""
        graph: T | None = self._graphs.pop(kind, None)
        if graph is None:
            self._make_room()
            before = torch.cuda.mem_get_info(self._device)[0]
            graph = capture()
            self._largest = max(self._largest, before - torch.cuda.mem_get_info(self._device)[0])
        self._graphs[kind] = graph
        return graph

    def _make_room(self) -> None:
        while self._graphs and torch.cuda.mem_get_info(self._device)[0] < 2 * self._largest:
            torch.cuda.synchronize(self._device)  # it may still be running
            del self._graphs[next(iter(self._graphs))]
            torch.cuda.empty_cache()


@contextmanager
def without_collecting() -> Iterator[None]:
    """Disable garbage collection, which takes 8 % of tracing, at unpredictable moments."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_CONSTANTS: ContextVar[dict[Hashable, Any] | None] = ContextVar("constants", default=None)


def constant(function: F) -> F:
    """Let a function that always returns the same tensor for the same arguments compute it once `with_constants`."""

    @wraps(function)
    def computed_once(*arguments: Hashable) -> Any:
        cache = None if torch.compiler.is_compiling() else _CONSTANTS.get()
        if cache is None:
            return function(*arguments)
        if (function, arguments) not in cache:
            cache[function, arguments] = function(*arguments)
        return cache[function, arguments]

    return cast(F, computed_once)


@contextmanager
def with_constants(cache: dict[Hashable, Any]) -> Iterator[None]:
    """Add the constants that are computed in this block to those known, and compute no known one again."""
    token = _CONSTANTS.set(cache)
    try:
        yield
    finally:
        _CONSTANTS.reset(token)
