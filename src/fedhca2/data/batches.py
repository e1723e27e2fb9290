"""Batches of one client. Their order and augmentation depend only on seed, client and epoch."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhca2.data.augmentation import SCALES, Choices, InputFormat, Packed, Preparation, pack
from fedhca2.data.dataset import Dataset, Sample
from fedhca2.data.feed import DeviceFeed, in_threads
from fedhca2.data.own import OwnSamples
from fedhca2.data.transforms import Placement, check_fit, fit_to_input, own_size, place_image
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
        chosen, form = [self.indices[position] for position in positions], self._format
        if self.are_arrays:
            arrays = self._map(lambda part: self._stack(chosen[part]), len(chosen))
            return (Batch.of(each).map(lambda value: value.to(feed.device) if feed else value) for each in arrays)
        read = self._load if choices else self._load_to_fit
        all_choices = choices or Choices.none(len(chosen))
        if feed and (choices or not self.resize) and (images := feed.resident(self, self.indices, read, form.size)):
            return map(Batch.of, feed.from_resident(images, positions, all_choices, self.batch_size, form))

        def packed(part: slice) -> Packed:
            samples = [read(index) for index in chosen[part]]
            return pack(samples, all_choices.map(lambda values: values[part]), form.size, pin=feed is not None)

        if feed:
            return map(Batch.of, feed.batches(self._map(packed, len(chosen), feed), form))
        prepare = Preparation()
        return map(Batch.of, self._map(lambda part: prepare(packed(part), form), len(chosen)))

    def _at_own_size(self, feed: DeviceFeed | None) -> Iterator[Batch]:
        """All images, scaled down where they are larger than the network's input, with labels at their own size."""
        size = self.data.size
        own: deque[list[tuple[Placement, Sample]]] = deque()  # of batches that are being prepared

        def read(part: slice) -> tuple[list[Sample], list[Sample]]:
            samples = [self._load(index) for index in self.indices[part]]
            return samples, [fit_to_input({"image": sample["image"]}, size, self.task_set) for sample in samples]

        def images() -> Iterator[list[Sample]]:
            for samples, scaled in read_early:
                own.append([(place_image(own_size(sample), size), sample) for sample in samples])
                yield scaled

        read_early = self._map(read, len(self.indices), feed)
        packed = (pack(each, Choices.none(len(each)), size, pin=feed is not None) for each in images())
        prepare = Preparation()
        prepared = feed.batches(packed, self._format) if feed else (prepare(each, self._format) for each in packed)
        return (Batch(batch["image"], {}, own=own.popleft()) for batch in prepared)

    @property
    def _format(self) -> InputFormat:
        """What its batches are prepared for."""
        chooser = self.task_set.crop_chooser(self.tasks)
        return InputFormat(self.task_set, self.data.size, (self.data.labels[chooser].classes if chooser else None) or 0)

    def _load(self, index: int) -> Sample:
        return self.data.load(index, self.tasks)

    def _stack(self, indices: Sequence[int]) -> Sample:
        """Arrays with their labels, stacked."""
        if isinstance(self.data, OwnSamples):
            return self.data.batch(indices, self.tasks)
        samples = [self._load(index) for index in indices]
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    def _load_to_fit(self, index: int) -> Sample:
        """Load a sample that fits into the network's input."""
        sample = self._load(index)
        if self.resize:
            return fit_to_input(sample, self.data.size, self.task_set)
        check_fit(own_size(sample), self.data.size)
        return sample

    def _map(self, make: Callable[[slice], T], total: int, feed: DeviceFeed | None = None) -> Iterator[T]:
        """Make each batch from its part of all images: in threads and early if it has workers, or for a feed."""
        parts = [slice(start, start + self.batch_size) for start in range(0, total, self.batch_size)]
        if not self.workers and feed is None:
            return map(make, parts)
        return in_threads(make, parts, max(self.workers, 1), max(self.workers + 1, feed.ahead if feed else 0))


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """Yield the items, taking the first from their source at once, and each other when its predecessor is requested."""
    waiting = deque(islice(items, 1))

    def results() -> Iterator[T]:
        while waiting:
            waiting.extend(islice(items, 1))
            yield waiting.popleft()

    return results()
