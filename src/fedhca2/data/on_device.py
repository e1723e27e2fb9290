"""Whole batches prepared on a GPU while it trains on the one before: what `for_training` does to each sample."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from fedhca2.compiling import compiled
from fedhca2.data.dataset import Sample
from fedhca2.data.photometric import from_hsv, to_hsv
from fedhca2.data.transforms import CROP_TASK, IMAGE_DEVIATION, IMAGE_MEAN, LARGEST_SHARE, Augmentation
from fedhca2.tasks import TASKS

AHEAD = 3  # batches that are read from memory or disk early

Raw = Sequence[tuple[Sample, Augmentation]]  # a batch


@dataclass(frozen=True)
class Plan:
    """What happens to every sample of a batch, as tensors; lengths are of rows and columns."""

    length: Tensor  # [B, 2]
    scaled: Tensor  # [B, 2]
    starts: Tensor  # of each crop that may be tried, [B, tries, 2]
    mirrored: Tensor  # [B]
    scale: Tensor  # [B, 1, 1, 1], like all that follow
    brightness: Tensor
    contrast_before: Tensor
    saturation: Tensor
    hue: Tensor
    contrast_after: Tensor


def plan(raw: Raw, size: tuple[int, int]) -> Plan:
    """The plan for a batch, on the CPU."""
    augmentations = [augmentation for _, augmentation in raw]
    length = np.array([sample["image"].shape[-2:] for sample, _ in raw])
    scale = np.array([augmentation.scale for augmentation in augmentations])
    scaled = np.maximum(np.round(length * scale[:, None]), 1).astype(np.int64)
    room = np.maximum(scaled - np.array(size), 0)
    crops = np.array([augmentation.crops for augmentation in augmentations])
    colours = [augmentation.distortion for augmentation in augmentations]

    def values(numbers: Iterable[float]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.float32).view(-1, 1, 1, 1)

    return Plan(
        length=torch.from_numpy(length),
        scaled=torch.from_numpy(scaled),
        starts=torch.from_numpy((crops * (room[:, None] + 1)).astype(np.int64)),
        mirrored=torch.tensor([augmentation.mirrored for augmentation in augmentations]),
        scale=values(scale),
        brightness=values(colour.brightness for colour in colours),
        contrast_before=values(colour.contrast if colour.contrast_first else 1.0 for colour in colours),
        saturation=values(colour.saturation for colour in colours),
        hue=values(colour.hue for colour in colours),
        contrast_after=values(1.0 if colour.contrast_first else colour.contrast for colour in colours),
    )


@dataclass(frozen=True)
class Axes:
    """Like `transforms.Axis`, of every sample [B, target]."""

    nearest: Tensor
    low: Tensor
    high: Tensor
    share: Tensor
    inside: Tensor


def axes(length: Tensor, scaled: Tensor, start: Tensor, target: int, mirrored: Tensor) -> Axes:
    """Like `transforms.axis`, of every sample; the first four are [B, 1]."""
    places = torch.arange(target, device=length.device)
    kept = scaled.clamp(max=target)
    before = (target - kept) // 2
    position = (places - before).clamp(min=0).minimum(kept - 1)
    position = torch.where(mirrored, kept - 1 - position, position)
    source = (position + start + 0.5).double() * (length.double() / scaled)
    exact = (source - 0.5).clamp(min=0).minimum(length.double() - 1)
    low = exact.long()
    return Axes(
        nearest=source.long().minimum(length - 1),
        low=low,
        high=(low + 1).minimum(length - 1),
        share=(exact - low).float(),
        inside=(places >= before) & (places < before + kept),
    )


def choose_starts(classes: Tensor, plan: Plan, size: tuple[int, int], count: int) -> Tensor:
    """Where each sample's crop starts [B, 2]: the first of its tries that is varied, else the last one.

    A crop's pixels of a class are Σ_ij rows_i·columns_j over the pixels (i, j) of that class, where rows and columns
    say how often the crop reads each row and column.
    """
    batch, tries, _ = plan.starts.shape
    shares = []
    for side in (0, 1):
        start = plan.starts[..., side].reshape(-1, 1)
        length, scaled = (t[:, side].repeat_interleave(tries)[:, None] for t in (plan.length, plan.scaled))
        read = axes(length, scaled, start, size[side], torch.zeros_like(start, dtype=torch.bool))
        found = torch.zeros(len(start), classes.shape[1 + side], device=classes.device)
        found.scatter_add_(1, read.nearest, read.inside.float())
        shares.append(found.view(batch, tries, -1))
    rows, columns = shares
    each = classes[:, :, None] == torch.arange(count, device=classes.device)[:, None]  # [B, H, class, W]
    # Half precision is exact here: no number is above the size of a crop.
    dtype = torch.half if classes.is_cuda else torch.float
    in_rows = (each.to(dtype) @ columns.to(dtype).transpose(1, 2)[:, None]).float()  # [B, H, class, try]
    pixels = torch.einsum("bkh,bhck->bkc", rows, in_rows)
    varied = ((pixels > 0).sum(-1) > 1) & (pixels.amax(-1) < LARGEST_SHARE * pixels.sum(-1))
    varied[:, -1] = True
    first = varied.int().argmax(dim=1)
    return plan.starts[torch.arange(batch, device=classes.device), first]


def _taken(source: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The values [B, C, rows, columns] at these places of each sample."""
    batch, channels, _, width = source.shape
    places = (rows[:, :, None] * width + columns[:, None, :]).view(batch, 1, -1)
    found = source.flatten(2).gather(2, places.expand(-1, channels, -1))
    return found.view(batch, channels, rows.shape[1], columns.shape[1])


def picture(image: Tensor, rows: Axes, columns: Axes, plan: Plan, outside: Tensor) -> Tensor:
    """The images as the network sees them."""
    down = rows.share[:, None, :, None]
    left, right = (
        torch.lerp(_taken(image, rows.low, column).float(), _taken(image, rows.high, column).float(), down)
        for column in (columns.low, columns.high)
    )
    image = _distort(torch.lerp(left, right, columns.share[:, None, None, :]), plan)
    mean, deviation = IMAGE_MEAN.to(image.device), IMAGE_DEVIATION.to(image.device)
    return ((image - mean) / deviation).masked_fill(outside, 0.0)


def target(name: str, label: Tensor, rows: Axes, columns: Axes, plan: Plan, outside: Tensor) -> Tensor:
    """The labels of one task as the network is trained on them."""
    task = TASKS[name]
    label = task.rescaled(_taken(label, rows.nearest, columns.nearest), plan.scale)
    label = torch.where(plan.mirrored.view(-1, 1, 1, 1), task.flipped(label), label)
    return task.ignored(label.masked_fill(outside, task.fill))


def prepare(
    raw: Sample,
    plan: Plan,
    size: tuple[int, int],
    classes: int,
    picture: Callable[..., Tensor] = picture,
    target: Callable[..., Tensor] = target,
) -> Sample:
    """The batch as it is trained or evaluated on, from images and labels on canvases of one size."""
    starts = plan.starts[:, 0]
    if CROP_TASK in raw and plan.starts.shape[1] > 1:
        starts = choose_starts(raw[CROP_TASK][:, 0], plan, size, classes)
    still = torch.zeros_like(plan.mirrored)[:, None]
    rows = axes(plan.length[:, :1], plan.scaled[:, :1], starts[:, :1], size[0], still)
    columns = axes(plan.length[:, 1:], plan.scaled[:, 1:], starts[:, 1:], size[1], plan.mirrored[:, None])

    outside = ~(rows.inside[:, None, :, None] & columns.inside[:, None, None, :])
    prepared = {name: target(name, raw[name], rows, columns, plan, outside) for name in raw if name != "image"}
    return {"image": picture(raw["image"], rows, columns, plan, outside), **prepared}


def _distort(image: Tensor, plan: Plan) -> Tensor:
    """Like `photometric.distort`; what changes nothing is applied as well."""
    image = ((image + plan.brightness).clamp(0, 255) * plan.contrast_before).clamp(0, 255)
    hue, saturation, value = to_hsv(image)
    shifted = (hue + plan.hue.squeeze(1)) % 1.0
    turned = from_hsv(shifted, (saturation * plan.saturation.squeeze(1)).clamp(0, 1), value)
    image = torch.where((plan.saturation != 1) | (plan.hue != 0), turned, image)
    return (image * plan.contrast_after).clamp(0, 255)


class DeviceFeed:
    """Reads batches early, and prepares them on a stream of its own beside the training."""

    def __init__(self, device: torch.device, *, compile: bool) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.picture, self.target = (compiled(picture), compiled(target)) if compile else (picture, target)

    def batches(self, raw: Iterable[Raw], size: tuple[int, int], classes: int) -> Iterator[Sample]:
        """The batches, each ready on the current stream."""
        current = torch.cuda.current_stream(self.device)
        waiting: deque[tuple[Sample, torch.cuda.Event]] = deque()
        for packed, planned in _read_ahead(raw, size):
            with torch.cuda.stream(self.stream):
                waiting.append((self.prepared(packed, planned, size, classes), self.stream.record_event()))
            if len(waiting) > 1:
                yield _on(current, *waiting.popleft())
        while waiting:
            yield _on(current, *waiting.popleft())

    @torch.no_grad()
    def prepared(self, packed: Sample, planned: Plan, size: tuple[int, int], classes: int) -> Sample:
        """A batch that was packed on the CPU, moved and prepared on the current stream."""
        sample = {name: value.to(self.device, non_blocking=True) for name, value in packed.items()}
        moved = {f.name: getattr(planned, f.name).to(self.device, non_blocking=True) for f in fields(Plan)}
        return prepare(sample, Plan(**moved), size, classes, self.picture, self.target)


def _on(stream: torch.cuda.Stream, sample: Sample, ready: torch.cuda.Event) -> Sample:
    stream.wait_event(ready)
    for value in sample.values():
        value.record_stream(stream)
    return sample


def _read_ahead(raw: Iterable[Raw], size: tuple[int, int]) -> Iterator[tuple[Sample, Plan]]:
    """Batches packed into memory that the GPU reads by itself, by a thread that is a few of them ahead."""
    source = iter(raw)

    def pack() -> tuple[Sample, Plan] | None:
        found = next(source, None)
        if found is None:
            return None
        return on_canvas([sample for sample, _ in found], size, pin=True), plan(found, size)

    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[tuple[Sample, Plan] | None]] = deque(pool.submit(pack) for _ in range(AHEAD))
        while (packed := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(pack))
            yield packed


def on_canvas(samples: Sequence[Sample], size: tuple[int, int], *, pin: bool = False) -> Sample:
    """Samples of any size in the corners of canvases of one size, which is mostly the network's."""
    shapes = [sample["image"].shape[-2:] for sample in samples]
    height, width = (max(length, *(shape[i] for shape in shapes)) for i, length in enumerate(size))
    canvases = {}
    for name, first in samples[0].items():
        canvas = torch.empty(len(samples), first.shape[0], height, width, dtype=first.dtype, pin_memory=pin)
        for place, sample, (h, w) in zip(canvas, samples, shapes, strict=True):
            place[:, :h, :w].copy_(sample[name])
        canvases[name] = canvas
    return canvases
