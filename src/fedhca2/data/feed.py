"""Batches for a GPU: from images that stay on it, or read early by threads and prepared on a stream of their own."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from math import prod
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedhca2.compiling import Graphs, capture_graph
from fedhca2.data.augmentation import Choices, InputFormat, Packed, Preparation, pack
from fedhca2.data.dataset import Sample, Size

T = TypeVar("T")
S = TypeVar("S")


def in_threads(make: Callable[[S], T], items: Iterable[S], threads: int, ahead: int) -> Iterator[T]:
    """Like `map`, but threads start now to make up to `ahead` results early, in order."""
    pool, source = ThreadPoolExecutor(threads), iter(items)
    waiting: deque[Future[T]] = deque(pool.submit(make, item) for item in islice(source, ahead))

    def results() -> Iterator[T]:
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(make, item) for item in islice(source, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)  # nobody wants the rest if an epoch ends early

    return results()


class DeviceFeed:
    """Prepares batches on a stream of its own while the GPU trains, or from images that stay on the GPU."""

    max_resident_bytes = 2**30  # of all images that stay on the GPU
    max_client_bytes = 2**29  # of one client's
    max_pixels = 2**19  # of resident images that are prepared at a time: of small ones, a batch has too little to do
    ahead = 3  # batches that are read early from memory or disk

    def __init__(self, device: torch.device, *, compile: bool) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.prepare = Preparation(compile=compile)
        self.prepare_odd = Preparation()  # small images, and a smaller last batch, are not worth compiling for
        self.residents: WeakKeyDictionary[object, ResidentImages] = WeakKeyDictionary()  # the last used ones are last
        self.graphs = Graphs(device)

    def resident(
        self, owner: object, indices: Sequence[int], read: Callable[[int], Sample], size: Size
    ) -> "ResidentImages | None":
        """The images with these indices, which `owner` always uses, if they are few enough to stay on the GPU."""
        images = self.residents.pop(owner, None)
        if images is None or images.indices is not indices:
            samples = read_if_few(indices, read, size, self.max_client_bytes)
            if samples is None:
                return None
            images = ResidentImages(indices, samples, size, self.device)
            total = sum(each.nbytes for each in self.residents.values()) + images.nbytes
            while self.residents and total > self.max_resident_bytes:
                total -= self.residents.pop(next(iter(self.residents))).nbytes
        self.residents[owner] = images
        return images

    def from_resident(
        self, images: "ResidentImages", positions: Sequence[int], choices: Choices, count: int, form: InputFormat
    ) -> Iterator[Sample]:
        """Yield batches of `count` of the images at these positions."""
        order, own_choices = torch.tensor(positions, device=self.device), choices.map(self._moved)

        def prepare(numbers: Tensor) -> Sample:
            own = numbers.to(self.device)
            return self._prepare_resident(images.pack(order[own], own_choices.map(lambda values: values[own])), form)

        return in_chunks(len(positions), count, self.max_pixels // prod(form.size), prepare)

    def _prepare_resident(self, packed: Packed, form: InputFormat) -> Sample:
        kind = tuple((name, canvas.shape) for name, canvas in packed.canvases.items())
        key = kind, packed.choices.crops.shape, form
        return self.graphs.get(key, lambda: CapturedPreparation(self.prepare_odd, packed, form))(packed)

    def batches(self, packed: Iterable[Packed], form: InputFormat) -> Iterator[Sample]:
        """Yield batches that were packed on the CPU, each ready on the current stream."""
        current = torch.cuda.current_stream(self.device)
        waiting: deque[tuple[Sample, torch.cuda.Event]] = deque()
        ends: deque[torch.cuda.Event] = deque()  # of the work on earlier batches
        count = 0
        for each in packed:
            ends.append(current.record_event(torch.cuda.Event(blocking=True)))  # type: ignore[no-untyped-call]
            # Memory of earlier batches is used again. `record_stream` does not protect it: the allocator forgets what
            # was recorded while any thread captures a graph.
            self.stream.wait_event(ends[-1])
            if len(ends) > self.ahead:
                ends.popleft().synchronize()  # or pinned memory would grow with the queue of the GPU
            count = count or len(each.lengths)
            prepare = self.prepare if len(each.lengths) == count else self.prepare_odd
            with torch.cuda.stream(self.stream):
                waiting.append((self.prepared(each, form, prepare), self.stream.record_event()))
            if len(waiting) > 1:
                yield _ready(current, *waiting.popleft())
        while waiting:
            yield _ready(current, *waiting.popleft())

    @torch.inference_mode(False)  # the same kind of tensors for every caller: code is compiled per kind
    @torch.no_grad()
    def prepared(self, packed: Packed, form: InputFormat, prepare: Preparation) -> Sample:
        """Move a batch that was packed on the CPU, and prepare it on the current stream."""
        return prepare(packed.map(self._moved), form)

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def _ready(stream: torch.cuda.Stream, sample: Sample, prepared: torch.cuda.Event) -> Sample:
    """Let the stream's next work wait until the sample is prepared."""
    stream.wait_event(prepared)
    return sample


class ResidentImages:
    """Images and labels that stay on a GPU."""

    def __init__(self, indices: Sequence[int], samples: Sequence[Sample], size: Size, device: torch.device) -> None:
        self.indices = indices
        packed = pack(samples, Choices.none(len(samples)), size).map(lambda own: own.to(device, non_blocking=True))
        self.canvases, self.lengths = packed.canvases, packed.lengths
        self.nbytes = sum(canvas.nbytes for canvas in self.canvases.values())

    def pack(self, positions: Tensor, choices: Choices) -> Packed:
        """The images and labels at these positions, with choices for them."""
        canvases = {name: canvas.index_select(0, positions) for name, canvas in self.canvases.items()}
        return Packed(canvases, self.lengths[positions], choices)


def read_if_few(
    indices: Sequence[int], read: Callable[[int], Sample], size: Size, max_bytes: int
) -> list[Sample] | None:
    """Read samples, unless they are too large together on canvases of at least this size, or there are none."""
    if not indices or len(indices) * bytes_on_canvas(read(indices[0]), size) > max_bytes:
        return None
    samples = [read(index) for index in indices]
    largest = max(bytes_on_canvas(sample, size) for sample in samples)
    return samples if len(indices) * largest <= max_bytes else None


def bytes_on_canvas(sample: Sample, size: Size) -> int:
    """The bytes of a sample on a canvas of at least this size."""
    height, width = (max(length, own) for length, own in zip(size, sample["image"].shape[-2:], strict=True))
    return sum(
        value.element_size() * (len(value) if value.ndim == 1 else prod((*value.shape[:-2], height, width)))
        for value in sample.values()
    )


def in_chunks(total: int, count: int, most: int, prepare: Callable[[Tensor], Sample]) -> Iterator[Sample]:
    """Batches of `count` of all images, several of which are prepared together: at most `most`, at least one batch.

    `prepare` gets the numbers of images. All chunks have the same length: the last one repeats an image. It is `count`
    times a power of two, so that clients with other numbers of images have chunks of few other lengths.
    """
    chunk = count
    while chunk < total and 2 * chunk <= most:
        chunk *= 2
    for start in range(0, total, chunk):
        rest = min(chunk, total - start)
        prepared = prepare(torch.arange(start, start + chunk).clamp_(max=total - 1))
        for first in range(0, rest, count):
            yield {name: value[first : min(first + count, rest)] for name, value in prepared.items()}


class CapturedPreparation:
    """Prepares a number of images as one CUDA graph, on its own tensors."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, prepare: Preparation, packed: Packed, form: InputFormat) -> None:
        self.packed = packed.map(torch.clone)
        self.prepared: Sample = {}

        def run() -> None:
            self.prepared = prepare(self.packed, form)

        self.graph = capture_graph(run)

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, packed: Packed) -> Sample:
        """Prepare these images."""
        for own, value in zip(self.packed.tensors, packed.tensors, strict=True):
            own.copy_(value)
        self.graph.replay()
        return {name: value.clone() for name, value in self.prepared.items()}
