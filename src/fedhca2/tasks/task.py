"""A task, declared once: its labels, its output, its loss, its metrics, and how it is painted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import inf
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from fedhca2 import metrics, painting
from fedhca2.labels import IGNORE

TRIVIAL = "trivial"  # in a task's scores: what one answer for all images scores in its main metric


@dataclass(frozen=True)
class LabelSpace:
    """The format of one data set's labels for one task; `names` implies the number of `classes`.

    >>> LabelSpace(names=("table", "chair")).classes
    2
    """

    classes: int | None = None
    names: tuple[str, ...] = ()
    edge_tolerance: float = 0.0075
    edge_thresholds: int = 99

    def __post_init__(self) -> None:
        if self.classes is None and self.names:
            object.__setattr__(self, "classes", len(self.names))


def class_digests(tasks: Iterable[str], spaces: Mapping[str, LabelSpace]) -> dict[str, str]:
    """Digests of the class names of tasks that have some: equal heads mean the same only if these are equal.

    >>> class_digests(["sal", "brand"], {"sal": LabelSpace(), "brand": LabelSpace(names=("ax", "by"))})
    {'brand': 'd543c84377bb83a5'}
    """
    named = {task: spaces[task].names for task in tasks if task in spaces and spaces[task].names}
    return {task: sha256("\0".join(names).encode()).hexdigest()[:16] for task, names in named.items()}


def resized(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps [B, C, H, W]: whole numbers of classes to the nearest, images and other values smoothly."""
    is_image = values.dtype == torch.uint8
    if is_image or values.is_floating_point():
        return functional.interpolate(values, size, mode="bilinear", antialias=is_image)
    return functional.interpolate(values.float(), size, mode="nearest-exact").to(values.dtype)


def shares(space: LabelSpace) -> tuple[float, float]:
    """Labels are from 0 to 1."""
    return 0, 1


def classes(space: LabelSpace) -> tuple[float, float]:
    """Labels are the numbers of classes."""
    return 0, (space.classes or IGNORE) - 1


MetricFor = Callable[[LabelSpace], metrics.Metric]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One kind of prediction: a map, with a value for every pixel, or one vector for the whole image.

    Labels of a map are [C, H, W] with 255 for unknown pixels, labels of a vector [C] with NaN for unknown values. In a
    batch both have one more dimension in front.

    >>> count = Task(name="count", loss=functional.mse_loss, metric=lambda _: metrics.VectorMAE(), output="vector")
    >>> count.title, count.weight
    ('Count', 1.0)

    :param name: its name in experiments and data sets.
    :param loss: (raw output, label) → a scalar; ignores unknown values.
    :param metric: label space → a metric, the task's score.
    :param title: its name in tables; by default from its name.
    :param output: "map" or "vector".
    :param channels: of the output; None: the number of classes in the data set.
    :param label_channels: of a label; None: the same as the output's.
    :param label_range: label space → the lowest and highest value of a label; by default any finite value.
    :param weight: factor of its loss in a client's total loss.
    :param predict: raw output, [B, C, H, W] or [B, C], → the form of a label, which metrics and `paint` take.
    :param probabilities: raw output → the probability of each class, for a vector of classes.
    :param unit: of all its scores, such as "%" or "m".
    :param paint: (label or prediction, label space) → a picture.
    :param other_metrics: metrics that an experiment may select instead, by name.
    :param fill: for maps: the label of padding.
    :param rescaled: for maps: (label, s) → the label of an image enlarged by s.
    :param flipped: for maps: adapts the values of a mirrored label; the map itself is mirrored already.
    :param resized: for maps: (prediction, size) → the prediction at this size.
    :param ignored: for maps: sets pixels without information to 255.
    :param counts_in_delta_m: whether its scores count in Δm.
    :param chooses_crops: whether training prefers crops with several classes.
    :param standardised: whether its vectors are learned with mean 0 and deviation 1 over a client's training labels.
    :param skips_empty: whether a client with only this task skips images in which it has nothing to label.
    :param grouped_by: what a Dirichlet split groups images by: the largest class, or the mean value.
    :param reading: how users of an exported model read its raw output.
    """

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: MetricFor
    title: str = ""
    output: Literal["map", "vector"] = "map"
    channels: int | None = None
    label_channels: int | None = 1
    label_range: Callable[[LabelSpace], tuple[float, float]] = lambda space: (-inf, inf)
    weight: float = 1.0
    predict: Callable[[Tensor], Tensor] = lambda output: output.float()
    probabilities: Callable[[Tensor], Tensor] | None = None
    unit: str = ""
    paint: Callable[[Tensor, LabelSpace], Tensor] = lambda values, space: painting.paint(values, space.names)
    other_metrics: Mapping[str, MetricFor] = field(default_factory=dict)
    fill: float = IGNORE
    rescaled: Callable[[Tensor, float | Tensor], Tensor] = lambda label, scale: label
    flipped: Callable[[Tensor], Tensor] = lambda label: label
    resized: Callable[[Tensor, tuple[int, int]], Tensor] = resized
    ignored: Callable[[Tensor], Tensor] = lambda label: label
    counts_in_delta_m: bool = True
    chooses_crops: bool = False
    standardised: bool = False
    skips_empty: bool = False
    grouped_by: Literal["class", "value"] | None = None
    reading: str = ""

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.name.replace("_", " ").capitalize())

    def channels_for(self, space: LabelSpace) -> int:
        """Number of output channels for a data set: the task's own number, or the data set's number of classes.

        A vector of plain values is one number unless the data set says otherwise.
        """
        channels = self.channels if self.channels is not None else space.classes
        if channels is None and self.output == "vector" and self.grouped_by == "value":
            channels = 1
        if channels is None:
            raise ValueError(f"{self.name}: expected the names of its classes, or their number, got neither")
        if self.output == "map" and self.grouped_by == "class" and channels > IGNORE:
            raise ValueError(f"{self.name}: expected at most {IGNORE} classes in a map of bytes, got {channels}")
        return channels

    def label_channels_for(self, space: LabelSpace) -> int:
        """Number of channels of a label."""
        return self.label_channels if self.label_channels is not None else self.channels_for(space)

    def known(self, label: Tensor) -> Tensor:
        """Where a label is known."""
        return self.ignored(label) != IGNORE if self.output == "map" else ~torch.isnan(label)

    @cached_property
    def empty_metric(self) -> metrics.Metric:
        """The task's own metric, to read its name, its direction and its range."""
        return self.metric(LabelSpace(classes=1))

    @cached_property
    def empty_metrics(self) -> dict[str, metrics.Metric]:
        """All metrics by name, the task's own first, to read their directions and ranges."""
        return {name: make(LabelSpace(classes=1)) for name, make in self.metrics.items()}

    @property
    def metrics(self) -> dict[str, MetricFor]:
        """What makes each metric, by name, the task's own first."""
        return {self.empty_metric.name: self.metric, **self.other_metrics}


class TaskSet(dict[str, Task]):
    """Tasks by name: the built-in ones, and those that an experiment declares. A set never changes.

    `declared` has the settings of the tasks that are not built in, as plain data.
    """

    def __init__(self, tasks: Iterable[Task], declared: Mapping[str, Any] | None = None) -> None:
        super().__init__({task.name: task for task in tasks})
        self.declared: Mapping[str, Any] = declared or {}

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]  # it can be part of a key

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def crop_chooser(self, names: Iterable[str]) -> str | None:
        """The first of these names that is a task which chooses crops, or None."""
        return next((name for name in names if name in self and self[name].chooses_crops), None)

    def skips_empty(self, names: Sequence[str]) -> bool:
        """Whether a client with exactly these tasks skips images in which they have nothing to label."""
        return len(names) == 1 and self[names[0]].skips_empty

    def metrics(
        self, names: Iterable[str], spaces: Mapping[str, LabelSpace], chosen: Mapping[str, str]
    ) -> dict[str, metrics.Metric]:
        """The metric of each of these tasks: the one `chosen` for it, or its own."""
        makers = {name: self[name].metrics[chosen[name]] if name in chosen else self[name].metric for name in names}
        return {name: make(spaces[name]) for name, make in makers.items()}
