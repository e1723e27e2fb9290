"""The six tasks, each declared once: output, loss, metrics and painting."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedhca2 import losses, metrics, painting
from fedhca2.config import suggest
from fedhca2.labels import IGNORE

__all__ = ["IGNORE", "TASKS", "LabelSpace", "Task", "get_task", "losses", "metrics", "painting"]


@dataclass(frozen=True)
class LabelSpace:
    """The format of one data set's labels for one task."""

    classes: int | None = None
    names: tuple[str, ...] = ()
    edge_tolerance: float = 0.0075
    edge_thresholds: int = 99


def unchanged(label: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Return the label unchanged, which is right for most tasks."""
    return label


Grouping = Literal["class", "value"]
MetricFor = Callable[[LabelSpace], metrics.Metric]


@dataclass(frozen=True)
class Task:
    """One kind of dense prediction.

    Labels are [C, H, W] or [B, C, H, W] with 255 = ignore. `predict` turns raw output [B, C, H, W] into the form that
    metrics and `paint` take. An experiment may select one of `other_metrics` by name; all scores are in `unit`. `fill`
    is the label value of padding. `rescaled(label, s)` adapts a label to an image enlarged by s, and `flipped` to a
    mirrored one (the map itself is already mirrored). `ignored` sets pixels without information to 255.
    """

    name: str
    title: str
    channels: int | None
    weight: float
    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]
    metric: MetricFor
    unit: str
    paint: Callable[[Tensor, LabelSpace], Tensor]
    other_metrics: Mapping[str, MetricFor] = field(default_factory=dict)
    label_channels: int = 1
    fill: float = IGNORE
    rescaled: Callable[[Tensor, float | Tensor], Tensor] = unchanged
    flipped: Callable[[Tensor], Tensor] = unchanged
    ignored: Callable[[Tensor], Tensor] = unchanged
    counts_in_delta_m: bool = True
    chooses_crops: bool = False  # training prefers crops with several classes
    skips_empty: bool = False  # a client with only this task skips images in which it has nothing to label
    grouped_by: Grouping | None = None  # how images are grouped, if they can be: by largest class or mean value
    reading: str = ""  # describes raw output to users of an exported model

    def channels_for(self, space: LabelSpace) -> int:
        """Number of output channels for a data set: the task's own number, or the data set's number of classes.

        >>> TASKS["depth"].channels_for(LabelSpace()), TASKS["semseg"].channels_for(LabelSpace(classes=40))
        (1, 40)
        """
        channels = self.channels if self.channels is not None else space.classes
        if channels is None:
            raise ValueError(f"{self.name}: the label space should give a number of classes, found {space}")
        return channels

    @property
    def metrics(self) -> dict[str, MetricFor]:
        """All metrics by name, the task's own first."""
        return {self.metric(LabelSpace(classes=1)).name: self.metric, **self.other_metrics}


def _most_likely(output: Tensor) -> Tensor:
    return output.argmax(dim=1, keepdim=True)


def _mean_iou(space: LabelSpace, absent: Literal["skip", "zero"] = "skip") -> metrics.Metric:
    if space.classes is None:
        raise ValueError(f"mIoU: the label space should give a number of classes, found {space}")
    return metrics.MeanIoU(space.classes, absent)


def _without_parts_ignored(label: Tensor) -> Tensor:
    part = (label > 0) & (label != IGNORE)
    return label.masked_fill(~part.any(dim=-1, keepdim=True).any(dim=-2, keepdim=True), IGNORE)


def _x_negated(label: Tensor) -> Tensor:
    negated = torch.cat((-label[..., :1, :, :], label[..., 1:, :, :]), dim=-3)
    return torch.where(label == IGNORE, label, negated)


def _zero_length_ignored(label: Tensor) -> Tensor:
    return label.masked_fill((label == 0).all(dim=-3, keepdim=True), IGNORE)


def _nearer(label: Tensor, scale: float | Tensor) -> Tensor:
    return torch.where(label == IGNORE, label, label / scale)


def _unmeasured_ignored(label: Tensor) -> Tensor:
    return label.masked_fill(label == 0, IGNORE)


SEMSEG = Task(
    name="semseg",
    title="Semantic segmentation",
    channels=None,
    weight=1.0,
    loss=losses.cross_entropy,
    predict=_most_likely,
    reading="scores of the classes; the prediction is the class with the highest one",
    metric=_mean_iou,
    other_metrics={"miou_all_classes": partial(_mean_iou, absent="zero")},
    unit="%",
    paint=lambda map, space: painting.paint_classes(map),
    chooses_crops=True,
    grouped_by="class",
)
HUMAN_PARTS = Task(
    name="human_parts",
    title="Human parts",
    channels=7,
    weight=2.0,
    loss=losses.cross_entropy,
    predict=_most_likely,
    reading="scores of the classes; the prediction is the class with the highest one",
    metric=lambda space: metrics.MeanIoU(7),
    other_metrics={"miou_all_classes": lambda space: metrics.MeanIoU(7, absent="zero")},
    unit="%",
    paint=lambda map, space: painting.paint_classes(map),
    ignored=_without_parts_ignored,
    skips_empty=True,
    grouped_by="class",
)
SAL = Task(
    name="sal",
    title="Saliency",
    channels=2,
    weight=5.0,
    loss=losses.balanced_cross_entropy,
    predict=lambda output: output.float().softmax(dim=1)[:, 1:],
    reading="scores of background and salient object; the prediction is the second channel of their softmax, 0 to 1",
    metric=lambda space: metrics.MaxF(),
    other_metrics={
        "miou": lambda space: metrics.SalientIoU(),
        "miou_of_images": lambda space: metrics.SalientIoUOfImages(),
    },
    unit="%",
    paint=lambda map, space: painting.paint_grey(map),
    grouped_by="value",
)
NORMALS = Task(
    name="normals",
    title="Surface normals",
    channels=3,
    label_channels=3,
    weight=10.0,
    loss=losses.normals_l1,
    predict=lambda output: functional.normalize(output.float(), dim=1),
    reading="x, y, z; the prediction is the vector divided by its length",
    metric=lambda space: metrics.AngularError(),
    unit="°",
    paint=lambda map, space: painting.paint_normals(map),
    fill=0,
    flipped=_x_negated,
    ignored=_zero_length_ignored,
)
EDGE = Task(
    name="edge",
    title="Edges",
    channels=1,
    weight=50.0,
    loss=losses.edge_bce,
    predict=lambda output: output.float().sigmoid(),
    reading="one score; the prediction is its sigmoid, the probability of an edge",
    metric=lambda space: metrics.OdsF(space.edge_tolerance, metrics.edge_rules(space.edge_thresholds)),
    unit="%",
    paint=lambda map, space: painting.paint_grey(map),
    grouped_by="value",
)
DEPTH = Task(
    name="depth",
    title="Depth",
    channels=1,
    weight=1.0,
    loss=losses.depth_l1,
    predict=lambda output: output.float().clamp(min=0),
    reading="metres; the prediction is the value, or 0 if it is negative",
    metric=lambda space: metrics.DepthRMSE(),
    unit="m",
    paint=lambda map, space: painting.paint_depth(map),
    fill=0,
    rescaled=_nearer,
    ignored=_unmeasured_ignored,
    grouped_by="value",
)

TASKS: dict[str, Task] = {task.name: task for task in (SEMSEG, HUMAN_PARTS, SAL, NORMALS, EDGE, DEPTH)}


def crop_chooser(names: Iterable[str]) -> str | None:
    """The first of these names that is a task which chooses crops, or None.

    >>> crop_chooser(["image", "edge", "semseg"])
    'semseg'
    """
    return next((name for name in names if name in TASKS and TASKS[name].chooses_crops), None)


def skips_empty(tasks: Sequence[str]) -> bool:
    """Whether a client with exactly these tasks skips images in which they have nothing to label.

    >>> skips_empty(["human_parts"]), skips_empty(["human_parts", "sal"])
    (True, False)
    """
    return len(tasks) == 1 and TASKS[tasks[0]].skips_empty


def metrics_for(
    tasks: Iterable[str], spaces: Mapping[str, LabelSpace], chosen: Mapping[str, str]
) -> dict[str, metrics.Metric]:
    """The metric of each task: the one chosen for it, or its own."""
    return {
        task: TASKS[task].metrics[chosen[task]](spaces[task]) if task in chosen else TASKS[task].metric(spaces[task])
        for task in tasks
    }


def get_task(name: str) -> Task:
    """Look up a task by name.

    >>> get_task("detph")
    Traceback (most recent call last):
    ValueError: 'detph' is not a task. Did you mean 'depth'? (semseg, human_parts, sal, normals, edge, depth)
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is not a task. {suggest(name, TASKS)}")
    return TASKS[name]
