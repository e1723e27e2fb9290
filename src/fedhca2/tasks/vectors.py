"""The tasks whose output is one vector for the whole image."""

from functools import partial

from torch import Tensor

from fedhca2 import losses, metrics, painting
from fedhca2.tasks.task import LabelSpace, Task, classes, shares


def _most_likely(output: Tensor) -> Tensor:
    return output.argmax(dim=1, keepdim=True).float()


def _accuracy(space: LabelSpace, over: metrics.Over = "images") -> metrics.Metric:
    return metrics.Accuracy(space.classes or 1, over)


CLASSIFICATION = Task(
    name="classification",
    output="vector",
    label_range=classes,
    loss=losses.class_cross_entropy,
    predict=_most_likely,
    reading="scores of the classes; the prediction is the class with the highest one",
    metric=_accuracy,
    other_metrics={"mean_class_accuracy": partial(_accuracy, over="classes")},
    unit="%",
    paint=lambda vector, space: painting.paint_class(vector, space.names),
    grouped_by="class",
)
MULTILABEL = Task(
    name="multilabel",
    title="What is there",
    output="vector",
    label_channels=None,
    label_range=shares,
    loss=losses.multilabel_bce,
    predict=lambda output: output.float().sigmoid(),
    reading="a score for each class; its sigmoid is the probability that the class is there",
    metric=lambda space: metrics.MeanAveragePrecision(),
    unit="%",
    paint=lambda vector, space: painting.paint_bars(vector, space.names),
)
REGRESSION = Task(
    name="regression",
    output="vector",
    label_channels=None,
    loss=losses.smooth_l1,
    reading="the values themselves",
    metric=lambda space: metrics.VectorRMSE(),
    other_metrics={"mae": lambda space: metrics.VectorMAE()},
    grouped_by="value",
)
