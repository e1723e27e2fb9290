"""The built-in tasks, and those that an experiment declares: another name for one of these, or a user's own.

Their output is a map, with a value for every pixel, or one vector for the whole image.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from fedhca2 import losses, metrics, painting
from fedhca2.config import Config, suggest
from fedhca2.imports import FORMS, is_import_path, load, resolve_path
from fedhca2.labels import IGNORE
from fedhca2.tasks.task import LabelSpace, Task, TaskSet, classes, resized, shares


def _most_likely(output: Tensor) -> Tensor:
    return output.argmax(dim=1, keepdim=True)


def _mean_iou(space: LabelSpace, absent: Literal["skip", "zero"] = "skip") -> metrics.Metric:
    if space.classes is None:
        raise ValueError(f"mIoU: expected a label space with a number of classes, got {space}")
    return metrics.MeanIoU(space.classes, absent)


def _without_parts_ignored(label: Tensor) -> Tensor:
    part = (label > 0) & (label != IGNORE)
    return label.masked_fill(~part.any(dim=-1, keepdim=True).any(dim=-2, keepdim=True), IGNORE)


def _x_negated(label: Tensor) -> Tensor:
    negated = torch.cat((-label[..., :1, :, :], label[..., 1:, :, :]), dim=-3)
    return torch.where(label == IGNORE, label, negated)


BUILT_IN = (
    Task(
        name="semseg",
        title="Semantic segmentation",
        channels=None,
        label_range=classes,
        loss=losses.cross_entropy,
        predict=_most_likely,
        reading="scores of the classes; the prediction is the class with the highest one",
        metric=_mean_iou,
        other_metrics={"miou_all_classes": lambda space: _mean_iou(space, "zero")},
        unit="%",
        paint=lambda map, space: painting.paint_classes(map, space.names),
        chooses_crops=True,
        grouped_by="class",
    ),
    Task(
        name="human_parts",
        channels=7,
        label_range=lambda space: (0, 6),
        weight=2.0,
        loss=losses.cross_entropy,
        predict=_most_likely,
        reading="scores of the classes; the prediction is the class with the highest one",
        metric=lambda space: metrics.MeanIoU(7),
        other_metrics={"miou_all_classes": lambda space: metrics.MeanIoU(7, absent="zero")},
        unit="%",
        paint=lambda map, space: painting.paint_classes(map, space.names),
        ignored=_without_parts_ignored,
        skips_empty=True,
        grouped_by="class",
    ),
    Task(
        name="sal",
        title="Saliency",
        channels=2,
        label_range=shares,
        weight=5.0,
        loss=losses.balanced_cross_entropy,
        predict=lambda output: output.float().softmax(dim=1)[:, 1:],
        reading="scores of background and salient object; the prediction is the second of their softmax, from 0 to 1",
        metric=lambda space: metrics.MaxF(),
        other_metrics={
            "miou": lambda space: metrics.SalientIoU(),
            "miou_of_images": lambda space: metrics.SalientIoUOfImages(),
        },
        unit="%",
        paint=lambda map, space: painting.paint_grey(map),
        grouped_by="value",
    ),
    Task(
        name="normals",
        title="Surface normals",
        channels=3,
        label_channels=3,
        label_range=lambda space: (-1, 1),
        weight=10.0,
        loss=losses.normals_l1,
        predict=lambda output: functional.normalize(output.float(), dim=1),
        reading="x, y, z; the prediction is the vector divided by its length",
        metric=lambda space: metrics.AngularError(),
        unit="°",
        paint=lambda map, space: painting.paint_normals(map),
        fill=0,
        flipped=_x_negated,
        resized=lambda normals, size: functional.normalize(resized(normals, size), dim=1),
        ignored=lambda label: label.masked_fill((label == 0).all(dim=-3, keepdim=True), IGNORE),
    ),
    Task(
        name="edge",
        title="Edges",
        channels=1,
        label_range=shares,
        weight=50.0,
        loss=losses.edge_bce,
        predict=lambda output: output.float().sigmoid(),
        reading="one score; the prediction is its sigmoid, the probability of an edge",
        metric=lambda space: metrics.OdsF(space.edge_tolerance, metrics.edge_rules(space.edge_thresholds)),
        unit="%",
        paint=lambda map, space: painting.paint_grey(map),
        grouped_by="value",
    ),
    Task(
        name="depth",
        channels=1,
        label_range=lambda space: (0, inf),
        loss=losses.depth_l1,
        predict=lambda output: output.float().clamp(min=0),
        reading="a distance; the prediction is the value, or 0 if it is negative",
        metric=lambda space: metrics.DepthRMSE(),
        unit="m",
        paint=lambda map, space: painting.paint_depth(map),
        fill=0,
        rescaled=lambda label, scale: torch.where(label == IGNORE, label, label / scale),
        ignored=lambda label: label.masked_fill(label == 0, IGNORE),
        grouped_by="value",
    ),
    Task(
        name="keypoints",
        title="Key points",
        label_channels=None,
        label_range=shares,
        weight=10.0,
        loss=losses.heat_l2,
        predict=lambda output: output.float().clamp(0, 1),
        reading="heat of each point; its prediction is the hottest pixel",
        metric=lambda space: metrics.CorrectKeypoints(),
        unit="%",
        paint=lambda map, space: painting.paint_heat(map),
    ),
    Task(
        name="classification",
        output="vector",
        label_range=classes,
        loss=losses.class_cross_entropy,
        predict=lambda output: _most_likely(output).float(),
        probabilities=lambda output: output.float().softmax(dim=1),
        reading="scores of the classes; the prediction is the class with the highest one",
        metric=lambda space: metrics.Accuracy(space.classes or 1),
        other_metrics={"mean_class_accuracy": lambda space: metrics.Accuracy(space.classes or 1, over="classes")},
        unit="%",
        paint=lambda vector, space: painting.paint_class(vector, space.names),
        grouped_by="class",
    ),
    Task(
        name="multilabel",
        title="What is there",
        output="vector",
        label_channels=None,
        label_range=shares,
        loss=losses.multilabel_bce,
        predict=lambda output: output.float().sigmoid(),
        probabilities=lambda output: output.float().sigmoid(),
        reading="a score for each class; its sigmoid is the probability that the class is there",
        metric=lambda space: metrics.MeanAveragePrecision(),
        unit="%",
        paint=lambda vector, space: painting.paint_bars(vector, space.names),
    ),
    Task(
        name="regression",
        output="vector",
        label_channels=None,
        loss=losses.smooth_l1,
        standardised=True,
        reading="the values themselves",
        metric=lambda space: metrics.VectorRMSE(),
        other_metrics={"mae": lambda space: metrics.VectorMAE()},
        grouped_by="value",
    ),
)

TASKS = TaskSet(BUILT_IN)


def get_task(name: str) -> Task:
    """Look up a built-in task by name.

    >>> get_task("detph")
    Traceback (most recent call last):
    ValueError: 'detph' is not a task. Did you mean 'depth'? (semseg, human_parts, sal, normals, ...)
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is not a task. {suggest(name, TASKS)}")
    return TASKS[name]


class DeclaredTask(Config):
    """A task under a name that the experiment chooses; settings replace those of its kind."""

    kind: str = Field(description=f"a built-in task, or {FORMS}")
    title: str | None = Field(None, description="its name in tables and figures")
    weight: float | None = Field(None, ge=0, description="weight of its loss in a client's total loss")
    unit: str | None = Field(None, description="unit of its scores")

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, values: Any) -> Any:
        return {"kind": values} if isinstance(values, str) else values

    def resolve_path(self, folders: Iterable[Path]) -> Self:
        """The same with an import path that is valid anywhere."""
        return self.model_copy(update={"kind": resolve_path(self.kind, folders)})

    def task(self, name: str) -> Task:
        """The task under this name; raises ValueError if there is no such kind."""
        settings = self.model_dump(exclude={"kind"}, exclude_none=True)
        if is_import_path(self.kind):
            own: Task = load(self.kind, "a Task", lambda each: isinstance(each, Task))
            return replace(own, **settings, name=name)
        if self.kind not in TASKS:
            hint = suggest(self.kind, TASKS)
            raise ValueError(f"kind: expected a known task or {FORMS}, got {self.kind!r:.200}. {hint}")
        return replace(TASKS[self.kind], **{"title": "", **settings}, name=name)  # "People" says more than "Regression"


def make_task_set(declared: Mapping[str, DeclaredTask]) -> TaskSet:
    """The built-in tasks and these; raises ValueError if one has a bad name, or cannot be found."""
    tasks = []
    for name, each in declared.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name) or hasattr(nn.ModuleDict, name) or name == "image":
            expected = "letters, digits and '_', and no name that Python or torch uses"
            raise ValueError(f"expected {expected}, got {name!r:.80}")
        if name in TASKS:
            raise ValueError(f"expected a new name, got {name!r}, which is built in")
        try:
            tasks.append(each.task(name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if not tasks:
        return TASKS  # the same set, so that what is known of it can be shared
    return TaskSet([*TASKS.values(), *tasks], {name: each.model_dump() for name, each in declared.items()})
