"""From finished runs to the numbers of a table: a row per method, a column per group of clients and task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from fedhca2.experiment import ConfigError
from fedhca2.federation.result import headline
from fedhca2.metrics import relative_gain
from fedhca2.reports.comparison.variants import variants
from fedhca2.reports.run_files import RunFiles


@dataclass(frozen=True)
class Column:
    """One task of the clients that have the same data set and the same tasks."""

    group: str
    task: str
    metric: str
    higher_is_better: bool


DELTA_M = Column("", "", "Δm", True)


@dataclass(frozen=True)
class Entry:
    """The values of one cell, one per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """Their standard deviation (n − 1), where there are several."""
        with np.errstate(invalid="ignore"):  # where a value is infinite there is none
            return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Entries by method, or by what its label says besides, and by column; the last is Δm where every method has it."""

    columns: Sequence[Column]
    entries: Mapping[str, Mapping[Column, Entry]]

    def is_best(self, method: str, column: Column) -> bool:
        """Whether no other method has a better mean."""
        sign = 1 if column.higher_is_better else -1
        means = [sign * row[column].mean for row in self.entries.values() if isfinite(row[column].mean)]
        return len(means) > 1 and sign * self.entries[method][column].mean == max(means)

    def gain(self, method: str, column: Column, over: str) -> float:
        """The relative gain of a mean over another method's, in percent."""
        theirs = self.entries[over][column].mean
        return relative_gain(self.entries[method][column].mean, theirs, column.higher_is_better)


def gather(runs: Sequence[RunFiles]) -> Comparison:
    """Runs that differ in their seed alone are one row, and the clients of a group are averaged."""
    for run in runs:
        if run.result is None:
            raise ConfigError([f"{run.path}: should be a finished run, found no result.json in it"])
    rows = variants(runs)
    found = {label: _entries(same) for label, same in rows.items()}
    columns = list(next(iter(found.values())))
    for label, row in found.items():
        if set(row) - {DELTA_M} != set(columns) - {DELTA_M}:
            raise ConfigError([f"{rows[label][0].path}: should have the same clients and tasks as {runs[0].path}"])
    kept = [column for column in columns if column != DELTA_M]
    if all(DELTA_M in row for row in found.values()):
        kept.append(DELTA_M)
    return Comparison(kept, {label: {column: row[column] for column in kept} for label, row in found.items()})


def _entries(runs: Sequence[RunFiles]) -> dict[Column, Entry]:
    values: dict[Column, list[float]] = {}
    for run in runs:
        for column, value in _values(run).items():
            values.setdefault(column, []).append(value)
    return {column: Entry(tuple(held)) for column, held in values.items()}


def _values(run: RunFiles) -> dict[Column, float]:
    assert run.result is not None
    groups, held = client_groups(run), dict[Column, list[float]]()
    for client, tasks in run.result["clients"].items():
        for task, scores in tasks.items():
            main = headline(task, scores)
            held.setdefault(Column(groups[client], task, main.metric, main.higher_is_better), []).append(main.value)
    means = {column: float(np.mean(values)) for column, values in held.items()}
    if run.method == "local":
        return means | {DELTA_M: 0.0}
    if run.result["baseline"] is None:
        return means
    gain = run.result["delta_m"]
    return means | {DELTA_M: nan if gain is None else gain}


def client_groups(run: RunFiles) -> dict[str, str]:
    """The group of each client: its data set, with its tasks if other clients of the data set have several too."""
    profiles = {event["client"]: event for event in run.of("profile")}
    groups = {}
    for client, tasks in run.tasks.items():
        data = profiles[client]["dataset"] if client in profiles else client
        rivals = {t for c, t in run.tasks.items() if len(t) > 1 and c in profiles and profiles[c]["dataset"] == data}
        kind = "single-task" if len(tasks) == 1 else "multi-task" if len(rivals) < 2 else "+".join(tasks)
        groups[client] = f"{data}, {kind}"
    return groups
