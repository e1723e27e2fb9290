"""Batches of one client. Their order and augmentation depend only on seed, client and epoch."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeVar

import numpy as np
from torch import Tensor

from fedhca2.data.choices import Choices, draw_choices
from fedhca2.data.dataset import Dataset, Sample
from fedhca2.data.feed import DeviceFeed
from fedhca2.data.transforms import (
    SCALES,
    UNCHANGED,
    Augmentation,
    Placement,
    collate,
    fitted,
    for_evaluation,
    for_training,
    own_size,
    placement,
    require_fit,
)
from fedhca2.seeds import derive
from fedhca2.tasks import TASKS, Task, TaskSet

T = TypeVar("T")


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
        return replace(
            self, image=change(self.image), labels=labels, keep=None if self.keep is None else change(self.keep)
        )

    def pairs(self, task: Task, predictions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Predictions of a task with the labels to compare them with, in one size: [B, C, H, W] or [B, C]."""
        if not self.own:
            yield predictions, self.labels[task.name]
            return
        for (place, labels), prediction in zip(self.own, predictions[:, None], strict=True):
            label = labels[task.name].to(prediction.device)[None]
            known = task.ignored(label) if task.output == "map" else label
            yield place.restored(task, prediction), known


class Batches:
    """A client's own images of a data set, for its own tasks among those `known`; `resize` is the data set's."""

    def __init__(
        self,
        data: Dataset,
        indices: Sequence[int],
        tasks: Sequence[str],
        *,
        batch_size: int,
        workers: int = 0,
        resize: Literal["fit"] | None = None,
        known: TaskSet = TASKS,
    ) -> None:
        self.data = data
        self.resize = resize
        self.indices = tuple(indices)
        self.tasks, self.known = tuple(tasks), known
        self.batch_size = batch_size
        self.workers = workers

    @property
    def are_arrays(self) -> bool:
        """Whether inputs are arrays, which are used unchanged, rather than images."""
        return bool(getattr(self.data, "are_arrays", False))

    def __len__(self) -> int:
        """Number of full batches in an epoch; the remainder is dropped."""
        return len(self.indices) // self.batch_size

    def first(self, count: int) -> "Batches":
        """The images of the first full batches."""
        if count >= len(self):
            return self
        few = copy(self)
        few.indices = self.indices[: count * self.batch_size]
        return few

    def training(
        self,
        *,
        seed: int,
        client: str,
        epoch: int,
        augment: bool = True,
        scales: tuple[float, float] = SCALES,
        feed: DeviceFeed | None = None,
    ) -> Iterator[Batch]:
        """The batches of one training epoch, on the CPU or on the GPU of a feed."""
        order = np.random.default_rng(derive(seed, "shuffle", client, epoch)).permutation(len(self.indices))
        places = order[: len(self) * self.batch_size].tolist()
        chosen = [self.indices[place] for place in places]
        return self._batches(places, draw_choices(seed, client, epoch, chosen, scales) if augment else None, feed)

    def evaluation(self, feed: DeviceFeed | None = None) -> Iterator[Batch]:
        """All images in order; the last batch may be smaller."""
        return self._at_own_size(feed) if self.resize and not self.are_arrays else self.in_order(feed)

    def in_order(self, feed: DeviceFeed | None = None) -> Iterator[Batch]:
        """All images in order, with labels of the network's size, as training has them."""
        return self._batches(range(len(self.indices)), None, feed)

    def _at_own_size(self, feed: DeviceFeed | None) -> Iterator[Batch]:
        """All images, scaled down where they are larger than the network's input, with labels at their own size."""
        size = self.data.size
        waiting: deque[list[tuple[Placement, Sample]]] = deque()  # of batches that are being prepared

        def read(index: int) -> tuple[Placement, Sample, Sample]:
            sample = self.data.load(index, self.tasks)
            return placement(own_size(sample), size), sample, fitted({"image": sample["image"]}, size, self.known)

        def images() -> Iterator[list[Sample]]:
            for group in self._grouped(self.indices, read):
                waiting.append([(place, sample) for place, sample, _ in group])
                yield [image for _, _, image in group]

        def prepared() -> Iterator[Sample]:
            if feed is None:
                return (collate([for_evaluation(image, size, self.known) for image in group]) for group in images())
            return feed.batches(([(image, UNCHANGED) for image in group] for group in images()), self.known, size, 0)

        for batch in prepared():
            yield Batch(batch["image"], {}, own=waiting.popleft())

    def _batches(self, places: Sequence[int], choices: Choices | None, feed: DeviceFeed | None) -> Iterator[Batch]:
        """Batches of the images at these places, with random choices for each, or only normalised and padded."""
        return map(Batch.of, self._samples(places, choices, feed))

    def _samples(self, places: Sequence[int], choices: Choices | None, feed: DeviceFeed | None) -> Iterator[Sample]:
        if self.are_arrays:
            taken = map(collate, self._grouped([self.indices[place] for place in places], self._load))
            return taken if feed is None else (_moved(batch, feed) for batch in taken)
        read = self._load if choices else self._load_to_fit
        size, count, numbers = self.data.size, self.batch_size, range(len(places))

        def loaded(number: int) -> tuple[Sample, Augmentation]:
            return read(self.indices[places[number]]), choices[number] if choices else UNCHANGED

        def prepared(number: int) -> Sample:
            sample, augmentation = loaded(number)
            if choices:
                return for_training(sample, size, augmentation, self.known)
            return for_evaluation(sample, size, self.known)

        if feed is None:
            return map(collate, self._grouped(numbers, prepared))
        chooser = self.known.crop_chooser(self.tasks)
        classes = (self.data.labels[chooser].classes if chooser else None) or 0
        if (choices or not self.resize) and (images := feed.resident(self, self.indices, read, size)):
            chosen = choices or Choices.none(len(places))
            return feed.from_resident(images, places, chosen, count, self.known, size, classes)
        return feed.batches(self._grouped(numbers, loaded), self.known, size, classes)

    def _load(self, index: int) -> Sample:
        return self.data.load(index, self.tasks)

    def _load_to_fit(self, index: int) -> Sample:
        """Load a sample that fits into the network's input."""
        sample = self._load(index)
        if self.resize:
            return fitted(sample, self.data.size, self.known)
        require_fit(sample, self.data.size)
        return sample

    def _grouped(self, indices: Sequence[int], prepare: Callable[[int], T]) -> Iterator[list[T]]:
        """Prepare each index, one batch at a time."""
        ahead = 2 * self.batch_size
        samples = _ahead(indices, prepare, self.workers, ahead) if self.workers else map(prepare, indices)
        for start in range(0, len(indices), self.batch_size):
            yield [next(samples) for _ in indices[start : start + self.batch_size]]


def _moved(batch: Sample, feed: DeviceFeed) -> Sample:
    return {name: value.to(feed.device) for name, value in batch.items()}


def _ahead(indices: Iterable[int], prepare: Callable[[int], T], workers: int, ahead: int) -> Iterator[T]:
    """Like `map`, but threads compute up to `ahead` samples early, in order."""
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[T]] = deque()
    try:
        for index in indices:
            waiting.append(pool.submit(prepare, index))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)  # nobody wants the rest if an epoch ends early


def one_early(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, taking the first from their source at once, and each other when its predecessor is requested."""
    held = deque(islice(items, 1))

    def in_turn() -> Iterator[T]:
        while held:
            item = held.popleft()
            held.extend(islice(items, 1))
            yield item

    return in_turn()
