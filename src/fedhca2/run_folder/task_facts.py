"""What a run records of its users' own tasks, so that its folder can be read without importing their code."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedhca2.metrics import Metric
from fedhca2.tasks import Task
from fedhca2.tasks.task import MetricFor


def facts_of(task: Task) -> dict[str, Any]:
    """What readers need to know of a task, as plain data; the first metric is its own."""
    return {
        "title": task.title,
        "unit": task.unit,
        "output": task.output,
        "counts_in_delta_m": task.counts_in_delta_m,
        "metrics": {name: metric.higher_is_better for name, metric in task.empty_metrics.items()},
    }


def task_from(name: str, facts: Mapping[str, Any]) -> Task:
    """A task of these facts, to read scores and paint predictions with; it can neither train nor evaluate."""
    settings = {key: facts[key] for key in ("title", "unit", "output", "counts_in_delta_m")}
    (_, own), *others = ((metric, _metric(metric, higher)) for metric, higher in facts["metrics"].items())
    return Task(name=name, loss=_no_loss, metric=own, other_metrics=dict(others), **settings)


def _no_loss(output: Tensor, label: Tensor) -> Tensor:
    raise NotImplementedError("the code of this task was not imported")


def _metric(name: str, higher: bool) -> MetricFor:
    """A metric of which only the name and the direction were recorded."""
    metric = Metric()
    metric.name, metric.higher_is_better = name, higher
    return lambda space: metric
