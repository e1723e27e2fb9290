"""Batches of one client, whose order and augmentation depend only on seed, client and epoch; and their way to a GPU.

A GPU prepares them from images that stay on it, or that threads read early, on a stream of its own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice, pairwise
from math import prod
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedhca2.compiling import Graphs, capture_graph
from fedhca2.data.augmentation import SCALES, Choices, InputFormat, Packed, Preparation, pack
from fedhca2.data.dataset import Dataset, Sample, Size
from fedhca2.data.own import OwnSamples
from fedhca2.data.transforms import Placement, check_fit, collate, fit_to_input, own_size, place_image
from fedhca2.seeds import derive
from fedhca2.tasks import TASKS, Task, TaskSet

T = TypeVar("T")
Read = Callable[[int], Sample]  # an image by its number


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
        # Images that stay on the GPU, with their indices; the last used ones are last.
        self.residents: WeakKeyDictionary[object, tuple[Sequence[int], Packed]] = WeakKeyDictionary()
        self.graphs = Graphs(device)

    def resident(self, owner: object, indices: Sequence[int], read: Read, size: Size) -> Packed | None:
        """The images with these indices, which `owner` always uses, if they are few enough to stay on the GPU."""
        kept, images = self.residents.pop(owner, ((), None))
        if images is None or kept is not indices:
            if (samples := read_if_few(indices, read, size, self.max_client_bytes)) is None:
                return None
            images = pack(samples, Choices.none(len(samples)), size).map(self._moved)
            total = sum(each.nbytes for _, each in self.residents.values()) + images.nbytes
            while self.residents and total > self.max_resident_bytes:
                total -= self.residents.pop(next(iter(self.residents)))[1].nbytes
        self.residents[owner] = indices, images
        return images

    def from_resident(
        self, images: Packed, positions: Sequence[int], choices: Choices, count: int, form: InputFormat
    ) -> Iterator[Sample]:
        """Yield batches of `count` of the images at these positions."""
        order, own_choices = torch.tensor(positions, device=self.device), choices.map(self._moved)

        def prepare(numbers: Tensor) -> Sample:
            own = numbers.to(self.device)
            packed = images.chosen(order[own], own_choices.map(lambda values: values[own]))
            kind = tuple((name, canvas.shape) for name, canvas in packed.canvases.items())
            key = kind, packed.choices.crops.shape, form
            return self.graphs.get(key, lambda: capture_preparation(self.prepare_odd, packed, form))(packed)

        return in_chunks(len(positions), count, self.max_pixels // prod(form.size), prepare)

    def batches(self, packed: Iterable[Packed], form: InputFormat) -> Iterator[Sample]:
        """Yield batches that were packed on the CPU, each ready on the current stream."""
        current = torch.cuda.current_stream(self.device)
        waiting: deque[tuple[Sample, torch.cuda.Event]] = deque()
        ends: deque[torch.cuda.Event] = deque()  # of the work on earlier batches
        count = 0

        def ready() -> Sample:
            sample, prepared = waiting.popleft()
            current.wait_event(prepared)
            return sample

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
                yield ready()
        while waiting:
            yield ready()

    @torch.inference_mode(False)  # the same kind of tensors for every caller: code is compiled per kind
    @torch.no_grad()
    def prepared(self, packed: Packed, form: InputFormat, prepare: Preparation) -> Sample:
        """Move a batch that was packed on the CPU, and prepare it on the current stream."""
        return prepare(packed.map(self._moved), form)

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def read_if_few(indices: Sequence[int], read: Read, size: Size, max_bytes: int) -> list[Sample] | None:
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


@torch.inference_mode(False)
@torch.no_grad()
def capture_preparation(prepare: Preparation, packed: Packed, form: InputFormat) -> Callable[[Packed], Sample]:
    """Capture the preparation of as many images as one CUDA graph, on tensors of its own."""
    own, prepared = packed.map(torch.clone), Sample()
    graph = capture_graph(lambda: prepared.update(prepare(own, form)))

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(packed: Packed) -> Sample:
        for tensor, value in zip(own.tensors, packed.tensors, strict=True):
            tensor.copy_(value)
        graph.replay()
        return {name: value.clone() for name, value in prepared.items()}

    return run


@dataclass(frozen=True)
class Batch:
    """Inputs of the network's size, with each task's labels of that size, or with each image's labels at its own size.

    `keep` has the draws of stochastic depth, if the model that trains on the batch uses it.
    """

    image: Tensor
    labels: Mapping[str, Tensor]
    keep: Tensor | None = None
    own: Sequence[tuple[Placement, Sample]] = ()

    @classmethod
    def of(cls, sample: Sample) -> "Batch":
        """A batch from inputs and labels under one name each, as data sets give them."""
        return cls(sample["image"], {name: label for name, label in sample.items() if name != "image"})

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs, the labels of all tasks, and the draws."""
        return [self.image, *self.labels.values(), *([] if self.keep is None else [self.keep])]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The same with each of its tensors changed."""
        labels = {task: change(label) for task, label in self.labels.items()}
        keep = None if self.keep is None else change(self.keep)
        return replace(self, image=change(self.image), labels=labels, keep=keep)

    def parts(self, count: int) -> Iterator["Batch"]:
        """The batch in this many parts, or one for each image if it has fewer; sizes differ by one at most."""
        total = len(self.image)
        count = min(count, total)
        for first, last in pairwise(number * total // count for number in range(count + 1)):
            labels = {task: label[first:last] for task, label in self.labels.items()}
            keep = None if self.keep is None else self.keep[:, first:last]
            yield Batch(self.image[first:last], labels, keep)

    def pairs(self, task: Task, predictions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Predictions of a task with the labels to compare them with, in one size: [B, C, H, W] or [B, C]."""
        if not self.own:
            yield predictions, self.labels[task.name]
            return
        for (placement, labels), prediction in zip(self.own, predictions[:, None], strict=True):
            label = labels[task.name].to(prediction.device)[None]
            target = task.ignored(label) if task.output == "map" else label
            yield placement.restore(task, prediction), target


@dataclass(eq=False)
class Batches:
    """A client's own images of a data set, for its own tasks among those of `task_set`; `resize` is the data set's."""

    data: Dataset
    indices: Sequence[int]
    tasks: Sequence[str]
    _: KW_ONLY
    batch_size: int
    workers: int = 0
    resize: Literal["fit"] | None = None
    task_set: TaskSet = TASKS

    @property
    def are_arrays(self) -> bool:
        """Whether inputs are arrays, which are used unchanged, rather than images."""
        return bool(getattr(self.data, "are_arrays", False))

    def __len__(self) -> int:
        """Number of full batches in an epoch; the remainder is dropped."""
        return len(self.indices) // self.batch_size

    def training(
        self,
        *,
        seed: int,
        client: str,
        epoch: int,
        augment: bool = True,
        scales: tuple[float, float] = SCALES,
        feed: DeviceFeed | None = None,
        part: range | None = None,
    ) -> Iterator[Batch]:
        """The batches of one training epoch, or `part` of them, on the CPU or on the GPU of a feed."""
        order = np.random.default_rng(derive(seed, "shuffle", client, epoch)).permutation(len(self.indices))
        chosen = order[: len(self) * self.batch_size].tolist()
        rng = np.random.default_rng(derive(seed, "augment", client, epoch))
        choices = Choices.draw(rng, len(chosen), scales) if augment and not self.are_arrays else None
        used = slice(*(edge * self.batch_size for edge in (part.start, part.stop))) if part else slice(None)
        return self._batches(chosen[used], choices and choices.map(lambda values: values[used]), feed)

    def evaluation(self, feed: DeviceFeed | None = None) -> Iterator[Batch]:
        """All images in order; the last batch may be smaller."""
        return self._at_own_size(feed) if self.resize and not self.are_arrays else self.in_order(feed)

    def in_order(self, feed: DeviceFeed | None = None) -> Iterator[Batch]:
        """All images in order, with labels of the network's size, as training has them."""
        return self._batches(range(len(self.indices)), None, feed)

    def _batches(self, positions: Sequence[int], choices: Choices | None, feed: DeviceFeed | None) -> Iterator[Batch]:
        """Batches of the images at these positions, with random choices for each, or only normalised and padded."""
        chosen, size = [self.indices[position] for position in positions], self.data.size
        if self.are_arrays:

            def stacked(part: slice) -> Sample:
                if isinstance(self.data, OwnSamples):
                    return self.data.batch(chosen[part], self.tasks)
                return collate([self.data.load(index, self.tasks) for index in chosen[part]])

            arrays = self._map(stacked, len(chosen))
            return (Batch.of(each).map(lambda value: value.to(feed.device) if feed else value) for each in arrays)

        def read(index: int) -> Sample:
            sample = self.data.load(index, self.tasks)
            if not choices and self.resize:
                return fit_to_input(sample, size, self.task_set)
            if not choices:
                check_fit(own_size(sample), size)
            return sample

        all_choices = choices or Choices.none(len(chosen))
        if feed and (choices or not self.resize) and (images := feed.resident(self, self.indices, read, size)):
            return map(Batch.of, feed.from_resident(images, positions, all_choices, self.batch_size, self._format))

        def packed(part: slice) -> Packed:
            samples = [read(index) for index in chosen[part]]
            return pack(samples, all_choices.map(lambda values: values[part]), size, pin=feed is not None)

        return map(Batch.of, self._prepared(packed, len(chosen), feed))

    def _at_own_size(self, feed: DeviceFeed | None) -> Iterator[Batch]:
        """All images, scaled down where they are larger than the network's input, with labels at their own size."""
        size, own = self.data.size, dict[int, list[tuple[Placement, Sample]]]()  # by the number of the first

        def packed(part: slice) -> Packed:
            samples = [self.data.load(index, self.tasks) for index in self.indices[part]]
            own[part.start] = [(place_image(own_size(sample), size), sample) for sample in samples]
            scaled = [fit_to_input({"image": sample["image"]}, size, self.task_set) for sample in samples]
            return pack(scaled, Choices.none(len(scaled)), size, pin=feed is not None)

        prepared = self._prepared(packed, len(self.indices), feed)
        starts = range(0, len(self.indices), self.batch_size)
        return (Batch(each["image"], {}, own=own.pop(start)) for start, each in zip(starts, prepared, strict=True))

    def _prepared(self, packed: Callable[[slice], Packed], total: int, feed: DeviceFeed | None) -> Iterator[Sample]:
        """Read and prepare batches, each from its part of all images."""
        form = self._format
        if feed:
            return feed.batches(self._map(packed, total, feed), form)
        prepare = Preparation()
        return self._map(lambda part: prepare(packed(part), form), total)

    @property
    def _format(self) -> InputFormat:
        """What its batches are prepared for."""
        chooser = self.task_set.crop_chooser(self.tasks)
        return InputFormat(self.task_set, self.data.size, (self.data.labels[chooser].classes if chooser else None) or 0)

    def _map(self, make: Callable[[slice], T], total: int, feed: DeviceFeed | None = None) -> Iterator[T]:
        """Make each batch from its part of all images: in threads and early if it has workers, or for a feed."""
        parts = [slice(start, start + self.batch_size) for start in range(0, total, self.batch_size)]
        if not self.workers and feed is None:
            return map(make, parts)
        ahead = max(self.workers + 1, feed.ahead if feed else 0)
        pool, rest = ThreadPoolExecutor(max(self.workers, 1)), iter(parts)
        waiting = deque(pool.submit(make, part) for part in islice(rest, ahead))  # threads start now

        def results() -> Iterator[T]:
            try:
                while waiting:
                    result = waiting.popleft().result()
                    waiting.extend(pool.submit(make, part) for part in islice(rest, 1))
                    yield result
            finally:
                pool.shutdown(cancel_futures=True)  # nobody wants the rest if an epoch ends early

        return results()


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, taking the first from their source at once, and each other when its predecessor is requested."""
    waiting = deque(islice(items, 1))

    def results() -> Iterator[T]:
        while waiting:
            waiting.extend(islice(items, 1))
            yield waiting.popleft()

    return results()
