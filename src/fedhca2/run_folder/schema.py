"""What a run's folder may hold: a folder may come from anyone, so everything is checked here.

A run records what readers need of its users' own tasks, so that its folder can be read without importing their code.
"""

from collections.abc import Callable, Mapping
from functools import cache
from math import nan
from typing import Annotated, Any, Literal, TypeVar, cast

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from torch import Tensor

from fedhca2.errors import UserError, list_faults
from fedhca2.metrics import Metric
from fedhca2.run_folder.folder import MATRICES_FILE
from fedhca2.run_folder.result import Count, Result
from fedhca2.tasks import Task, TaskSet
from fedhca2.tasks.task import MetricFor

MOST_ROUNDS = 100_000
Round = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
Number = float | None  # None stands for a number that is not finite
Matrix = list[list[Number]]
Known = TypeVar("Known")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _check_names(members: list[str]) -> list[str]:
    if len(set(members)) < len(members):
        raise ValueError("members: expected different names, got one twice")
    return members


def check_matrices(event: Mapping[str, Any], where: str) -> None:
    """Raise UserError unless the matrices of an event are numbers that fit its members."""
    count = len(event["members"])
    squares = {key: event[key] for key in ("products", "transfer", "votes") if event.get(key) is not None}
    missing = {"products", "transfer"} - {*squares} if event["event"] == "transfer" else ()
    if missing:
        raise UserError(where, f"expected {' and '.join(sorted(missing))}, got none")
    try:
        for key, square in squares.items():
            if np.shape(square)[-2:] != (count, count) or np.ndim(square) != (3 if key == "votes" else 2):
                raise ValueError(f"{key}: expected {count} by {count}, got {np.shape(square)}")
        for blend, gets in zip(event.get("mixing", ()), event.get("gets", ()), strict=True):
            if np.ndim(blend) not in (2, 3) or np.shape(blend)[-1] != count:
                raise ValueError(f"mixing: expected {count} columns, got {np.shape(blend)}")
            if len(gets) != count or max(gets) >= np.shape(blend)[-2]:
                raise ValueError(f"gets: expected a row of the mixing for each of {count} members, got {max(gets)}")
    except (TypeError, ValueError) as error:  # some are missing, or of unequal lengths
        raise UserError(where, f"{error}") from None


def _model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """Data with these fields, of which optional ones have a default. Types are exact; other fields are left alone."""
    typed = {key: of if isinstance(of, tuple) else (of, ...) for key, of in fields.items()}
    return create_model(name, __config__=ConfigDict(strict=True, extra="allow"), **dict[str, Any](typed))


ROUND: Mapping[str, Any] = {"round": Round}
CLIENT: Mapping[str, Any] = {**ROUND, "client": str}
SCORE: Mapping[str, Any] = {**CLIENT, "task": str, "metric": str, "value": Number}
MEMBERS: Mapping[str, Any] = {
    **ROUND,
    "members": Annotated[list[str], Field(min_length=1), AfterValidator(_check_names)],
    "products": (Matrix | None, None),
    "matrices": (Annotated[str | None, Field(pattern=rf"^{MATRICES_FILE}$")], None),  # the file that they are in
}
FIELDS: Mapping[str, Mapping[str, Any]] = {  # what every event of a kind has
    "metric": SCORE,
    "test": SCORE,
    "loss": SCORE,
    "client": {**CLIENT, "seconds": float, "bytes_up": Count, "bytes_down": Count},
    "failed": {**CLIENT, "why": str},
    "declined": {**CLIENT, "why": str},
    "absent": {**ROUND, "clients": dict[str, str]},
    "late": {**ROUND, "clients": dict[str, dict[str, float]]},
    "round": {**ROUND, "seconds": float, "refused": dict[str, str]},
    "weights": {**ROUND, "weights": dict[str, list[Number]]},
    "profile": {
        "client": str,
        "dataset": str,
        "tasks": list[str],
        "samples": Count,
        "parameters": dict[str, Count],
        "decoders": dict[str, list[str]],
    },
    "effect": {**CLIENT, "before": Number, "after": Number, "seconds": float},
    "transfer": {**MEMBERS, "losses": list[Number], "transfer": (Matrix | None, None)},
    "aggregation": {
        **MEMBERS,
        "part": str,
        "measure": str,
        "gets": list[list[Count]],
        "mixing": (list[Matrix | list[Matrix]] | None, None),
        "votes": (list[Matrix] | None, None),
        "of": (Count | None, None),  # the number of all members, if only some of them are logged
    },
}
EVENTS: Mapping[str, type[BaseModel]] = {kind: _model(kind, fields) for kind, fields in FIELDS.items()}
CONFIG_HEAD = _model(  # what every config has
    "config",
    {
        "name": str,
        "seed": int,
        "rounds": Annotated[int, Field(ge=1, le=MOST_ROUNDS)],
        "method": _model("method", {"name": str}),
    },
)
TASK_FACTS = _model(  # what readers need to know of a task
    "task",
    {
        "title": str,
        "unit": str,
        "output": Literal["map", "vector"],
        "counts_in_delta_m": bool,
        "metrics": Annotated[dict[str, bool], Field(min_length=1)],  # whether higher is better
    },
)


def check_event(event: dict[str, Any], where: str) -> dict[str, Any]:
    """The event, with NaN for null, which stands for a non-finite number, where it is a value.

    Raises UserError unless it has the fields of its kind; kinds of newer versions may have any.
    """
    kind = event.get("event")
    if not isinstance(kind, str):
        raise UserError(where, f"expected the name of its event, got {kind!r:.40}")
    if kind in EVENTS:
        validate(EVENTS[kind], event, f"{where}: {kind}")
    if kind in ("aggregation", "transfer") and event.get("matrices") is None:
        check_matrices(event, f"{where}: {kind}")
    return event | {key: nan for key in ("value", "before", "after") if event.get(key, 0.0) is None}


def check_scores(result: Result, task_set: TaskSet, where: str) -> None:
    """Raise UserError unless the scores of a result are of known tasks and their metrics."""
    for client, tasks in (*result.clients.items(), *(result.baseline or {}).items()):
        for task, scores in tasks.items():
            if task not in task_set:
                raise UserError(where, f"{client!r:.60}: expected a known task, got {task!r:.60}")
            if not set(task_set[task].metrics) & set(scores):
                names = ", ".join(task_set[task].metrics)
                raise UserError(where, f"{client!r:.60}, {task}: expected one of {names}, got none of them")


def validate(kind: type[Known], values: Any, where: str) -> Known:
    """The values as this type; raises UserError if they are not."""
    try:
        return cast(Known, _adapter(kind).validate_python(values))
    except ValidationError as error:
        raise UserError.of([list_faults(error)[0].within(where)]) from None


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
