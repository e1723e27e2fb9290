"""Small sets of images that stay on a GPU, and the captured preparation of their batches."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedhca2.compiling import capture_graph
from fedhca2.data.batch_augmentation import Plan
from fedhca2.data.dataset import Sample
from fedhca2.data.transforms import Size
from fedhca2.tasks import TaskSet

MOST = 2**29  # bytes of one client's images that may stay on a GPU
Prepare = Callable[[Sample, Plan, TaskSet, Size, int], Sample]


def on_canvas(samples: Sequence[Sample], size: Size, *, pin: bool = False) -> Sample:
    """Put samples of any size into the corners of canvases of one size, usually the network's."""
    shapes = [sample["image"].shape[-2:] for sample in samples]
    height, width = (max(length, *(shape[i] for shape in shapes)) for i, length in enumerate(size))
    canvases = {}
    for name, first in samples[0].items():
        if first.ndim == 1:  # a vector
            stacked = torch.stack([sample[name] for sample in samples])
            canvases[name] = stacked.pin_memory() if pin else stacked
            continue
        canvas = torch.empty(len(samples), first.shape[0], height, width, dtype=first.dtype, pin_memory=pin)
        if set(shapes) == {(height, width)}:
            torch.stack([sample[name] for sample in samples], out=canvas)
        else:
            for place, sample, (h, w) in zip(canvas, samples, shapes, strict=True):
                place[:, :h, :w].copy_(sample[name])
        canvases[name] = canvas
    return canvases


class ResidentImages:
    """Images and labels on a GPU, in the corners of canvases of one size."""

    def __init__(self, indices: Sequence[int], samples: Sequence[Sample], size: Size, device: torch.device) -> None:
        self.indices = indices
        self.lengths = np.array([sample["image"].shape[-2:] for sample in samples])
        canvases = on_canvas(samples, size)
        self.canvases = {name: canvas.to(device, non_blocking=True) for name, canvas in canvases.items()}
        self.nbytes = sum(canvas.nbytes for canvas in self.canvases.values())

    @classmethod
    def if_few(
        cls, indices: Sequence[int], read: Callable[[int], Sample], size: Size, device: torch.device
    ) -> Self | None:
        """The images with these indices, unless they are too large together."""
        if not indices or len(indices) * bytes_on_canvas(read(indices[0]), size) > MOST:
            return None
        samples = [read(index) for index in indices]
        if len(indices) * max(bytes_on_canvas(sample, size) for sample in samples) > MOST:
            return None
        return cls(indices, samples, size, device)

    def chosen(self, places: Tensor) -> Sample:
        """The images and labels at these places."""
        return {name: canvas.index_select(0, places) for name, canvas in self.canvases.items()}


def bytes_on_canvas(sample: Sample, size: Size) -> int:
    """The bytes of a sample on a canvas of at least this size."""
    height, width = (max(length, own) for length, own in zip(size, sample["image"].shape[-2:], strict=True))
    return sum(
        value.element_size() * (len(value) if value.ndim == 1 else prod((*value.shape[:-2], height, width)))
        for value in sample.values()
    )


def in_chunks(
    places: Tensor, plan: Plan, count: int, most: int, prepare: Callable[[Tensor, Plan], Sample]
) -> Iterator[Sample]:
    """Batches of `count` images, several of which are prepared together: at most `most` images, at least one batch.

    All chunks have the same length: the last one repeats an image. It is `count` times a power of two, so that clients
    with other numbers of images have chunks of few other lengths.
    """
    chunk = count
    while chunk < len(places) and 2 * chunk <= most:
        chunk *= 2
    for start in range(0, len(places), chunk):
        rest = min(chunk, len(places) - start)
        taken = torch.arange(start, start + chunk, device=places.device).clamp_(max=len(places) - 1)
        prepared = prepare(places[taken], plan.at(taken))
        for first in range(0, rest, count):
            yield {name: value[first : min(first + count, rest)] for name, value in prepared.items()}


class CapturedPreparation:
    """Prepares a number of images as one CUDA graph, on its own tensors."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, prepare: Prepare, raw: Sample, plan: Plan, tasks: TaskSet, size: Size, classes: int) -> None:
        self.raw = {name: value.clone() for name, value in raw.items()}
        self.plan = Plan(plan.whole.clone(), plan.real.clone())
        self.prepared: Sample = {}

        def run() -> None:
            self.prepared = prepare(self.raw, self.plan, tasks, size, classes)

        self.graph = capture_graph(run)

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, images: ResidentImages, places: Tensor, plan: Plan) -> Sample:
        """Prepare the images at these places."""
        for name, canvas in images.canvases.items():
            torch.index_select(canvas, 0, places, out=self.raw[name])
        self.plan.whole.copy_(plan.whole)
        self.plan.real.copy_(plan.real)
        self.graph.replay()
        return {name: value.clone() for name, value in self.prepared.items()}
