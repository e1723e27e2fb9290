"""Batches for a GPU: from images that stay on it, or read early by a thread and prepared on a stream of their own."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from math import prod
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedhca2.compiling import Graphs, compiled
from fedhca2.data.batch_augmentation import Axes, Plan, Raw, axes, choose_starts, plan, plan_all
from fedhca2.data.choices import Choices
from fedhca2.data.dataset import Sample
from fedhca2.data.photometric import Distortion, distort
from fedhca2.data.resident import CapturedPreparation, ResidentImages, in_chunks, on_canvas
from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN, Size
from fedhca2.tasks import Task, TaskSet

ROOM = 2**30  # bytes of all images that stay on a GPU
TOGETHER = 2**19  # pixels of images on a GPU that are prepared at a time: for small ones, a batch has too little to do
AHEAD = 3  # batches that are read early from memory or disk


class DeviceFeed:
    """Reads batches early, and prepares them on a stream of its own while the GPU trains."""

    def __init__(self, device: torch.device, *, compile: bool) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.prepare = Preparation(compile=compile)
        self.prepare_odd = Preparation()  # small images, and a smaller last batch, are not worth compiling for
        self.held: WeakKeyDictionary[object, ResidentImages] = WeakKeyDictionary()  # the last used ones are last
        self.graphs = Graphs(device)

    def resident(
        self, owner: object, indices: Sequence[int], read: Callable[[int], Sample], size: Size
    ) -> ResidentImages | None:
        """The images with these indices, which `owner` always uses, if they are few enough to stay on the GPU."""
        images = self.held.pop(owner, None)
        if images is None or images.indices is not indices:
            images = ResidentImages.if_few(indices, read, size, self.device)
            if images is None:
                return None
            taken = sum(each.nbytes for each in self.held.values()) + images.nbytes
            while self.held and taken > ROOM:
                taken -= self.held.pop(next(iter(self.held))).nbytes
        self.held[owner] = images
        return images

    def from_resident(
        self,
        images: ResidentImages,
        places: Sequence[int],
        choices: Choices,
        count: int,
        tasks: TaskSet,
        size: Size,
        classes: int,
    ) -> Iterator[Sample]:
        """Yield batches of `count` of the images at these places."""
        plan = plan_all(images.lengths[places], choices, size).to(self.device)
        return in_chunks(
            torch.tensor(places, device=self.device),
            plan,
            count,
            TOGETHER // prod(size),
            lambda own, part: self._preparation(images, own, part, tasks, size, classes)(images, own, part),
        )

    def _preparation(
        self, images: ResidentImages, places: Tensor, plan: Plan, tasks: TaskSet, size: Size, classes: int
    ) -> CapturedPreparation:
        kind = tuple((name, canvas.shape[1:]) for name, canvas in images.canvases.items())
        key = kind, len(places), plan.starts.shape, tasks, size, classes
        return self.graphs.get(
            key, lambda: CapturedPreparation(self.prepare_odd, images.chosen(places), plan, tasks, size, classes)
        )

    def batches(self, raw: Iterable[Raw], tasks: TaskSet, size: Size, classes: int) -> Iterator[Sample]:
        """Yield the batches, each ready on the current stream. Reading starts at once."""
        return self._in_turn(_read_ahead(raw, size), tasks, size, classes)

    def _in_turn(
        self, read: Iterable[tuple[Sample, Plan]], tasks: TaskSet, size: Size, classes: int
    ) -> Iterator[Sample]:
        current = torch.cuda.current_stream(self.device)
        waiting: deque[tuple[Sample, torch.cuda.Event]] = deque()
        taken: deque[torch.cuda.Event] = deque()  # when the work on earlier batches ends
        count = 0
        for packed, planned in read:
            taken.append(current.record_event(torch.cuda.Event(blocking=True)))  # type: ignore[no-untyped-call]
            # Memory of earlier batches is used again. `record_stream` does not protect it: the allocator forgets what
            # was recorded while any thread captures a graph.
            self.stream.wait_event(taken[-1])
            if len(taken) > AHEAD:
                taken.popleft().synchronize()  # or pinned memory would grow with the queue of the GPU
            count = count or len(packed["image"])
            prepare = self.prepare if len(packed["image"]) == count else self.prepare_odd
            with torch.cuda.stream(self.stream):
                batch = self.prepared(packed, planned, tasks, size, classes, prepare)
                waiting.append((batch, self.stream.record_event()))
            if len(waiting) > 1:
                yield _ready(current, *waiting.popleft())
        while waiting:
            yield _ready(current, *waiting.popleft())

    @torch.inference_mode(False)  # the same kind of tensors for every caller: code is compiled per kind
    @torch.no_grad()
    def prepared(
        self, packed: Sample, planned: Plan, tasks: TaskSet, size: Size, classes: int, prepare: "Preparation"
    ) -> Sample:
        """Move a batch that was packed on the CPU, and prepare it on the current stream."""
        sample = {name: value.to(self.device, non_blocking=True) for name, value in packed.items()}
        return prepare(sample, planned.to(self.device), tasks, size, classes)


def _ready(stream: torch.cuda.Stream, sample: Sample, prepared: torch.cuda.Event) -> Sample:
    """Let the stream's next work wait until the sample is prepared."""
    stream.wait_event(prepared)
    return sample


def _read_ahead(raw: Iterable[Raw], size: Size) -> Iterator[tuple[Sample, Plan]]:
    """Pack batches into pinned memory, in a thread that stays a few batches ahead."""
    source = iter(raw)

    def pack() -> tuple[Sample, Plan] | None:
        batch = next(source, None)
        if batch is None:
            return None
        return on_canvas([sample for sample, _ in batch], size, pin=True), plan(batch, size)

    pool = ThreadPoolExecutor(1)
    waiting: deque[Future[tuple[Sample, Plan] | None]] = deque(pool.submit(pack) for _ in range(AHEAD))

    def packed() -> Iterator[tuple[Sample, Plan]]:
        try:
            while (batch := waiting.popleft().result()) is not None:
                waiting.append(pool.submit(pack))
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)  # nobody wants the rest if an epoch ends early

    return packed()


def _taken(source: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The values [B, C, rows, columns] at these positions of each sample."""
    batch, channels, _, width = source.shape
    places = (rows[:, :, None] * width + columns[:, None, :]).view(batch, 1, -1)
    values = source.flatten(2).gather(2, places.expand(-1, channels, -1))
    return values.view(batch, channels, rows.shape[1], columns.shape[1])


def places(classes: Tensor | None, plan: Plan, size: Size, count: int) -> tuple[Axes, Axes, Tensor]:
    """The rows and columns that every sample reads, and where it lies outside its image."""
    starts = plan.starts[:, 0]
    if classes is not None and plan.starts.shape[1] > 1:
        starts = choose_starts(classes, plan, size, count)
    still = torch.zeros_like(plan.mirrored)[:, None]
    rows = axes(plan.length[:, :1], plan.scaled[:, :1], starts[:, :1], size[0], still)
    columns = axes(plan.length[:, 1:], plan.scaled[:, 1:], starts[:, 1:], size[1], plan.mirrored[:, None])
    return rows, columns, ~(rows.inside[:, None, :, None] & columns.inside[:, None, None, :])


def picture(
    image: Tensor, rows: Axes, columns: Axes, plan: Plan, outside: Tensor, mean: Tensor, deviation: Tensor
) -> Tensor:
    """Prepare the images for the network, which are normalised by this mean and deviation."""
    down = rows.share[:, None, :, None]
    left, right = (
        torch.lerp(_taken(image, rows.low, column).float(), _taken(image, rows.high, column).float(), down)
        for column in (columns.low, columns.high)
    )
    image = torch.lerp(left, right, columns.share[:, None, None, :])
    image = torch.where(plan.distorted, distort(image, Distortion(*plan.distortion)), image)
    return ((image - mean) / deviation).masked_fill(outside, 0.0)


@cache
def mean_and_deviation(device: torch.device) -> tuple[Tensor, Tensor]:
    """What images are normalised by; held on every device, since neither graphs nor compiled code should move it."""
    return IMAGE_MEAN.to(device), IMAGE_DEVIATION.to(device)


def target(task: Task, label: Tensor, rows: Axes, columns: Axes, plan: Plan, outside: Tensor) -> Tensor:
    """Prepare the training labels of one task."""
    label = task.rescaled(_taken(label, rows.nearest, columns.nearest), plan.scale)
    label = torch.where(plan.mirrored.view(-1, 1, 1, 1), task.flipped(label), label)
    return task.ignored(label.masked_fill(outside, task.fill))


class Preparation:
    """Prepares batches for training or evaluation from images and labels on canvases of one size."""

    def __init__(self, *, compile: bool = False) -> None:
        self.places = compiled(places, compile)
        self.picture = compiled(picture, compile)
        self.target = compiled(target, compile)

    def __call__(self, raw: Sample, plan: Plan, tasks: TaskSet, size: Size, classes: int) -> Sample:
        """Prepare one batch; `classes` is the number of classes of the task that chooses crops."""
        chooser = tasks.crop_chooser(raw)
        crop_by = raw[chooser][:, 0] if chooser else None
        rows, columns, outside = self.places(crop_by, plan, size, classes)
        labels = {
            name: self.target(tasks[name], raw[name], rows, columns, plan, outside) if raw[name].ndim > 2 else raw[name]
            for name in raw
            if name != "image"
        }
        image = raw["image"]
        return {"image": self.picture(image, rows, columns, plan, outside, *mean_and_deviation(image.device)), **labels}
