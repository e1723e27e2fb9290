"""From finished runs to the numbers of a table: a row per method, a column per group of clients and task."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, nan

import numpy as np

from fedhca2.errors import UserError
from fedhca2.metrics import relative_gain
from fedhca2.reports.comparison.compared import ComparedRun
from fedhca2.reports.comparison.significance import LEVEL, gain_p_values
from fedhca2.reports.comparison.variants import variants, without_method
from fedhca2.reports.names import ARROWS, metric_title
from fedhca2.run_folder.result import Scores, headline, overall_gain

LOCAL = "local"


@dataclass(frozen=True)
class Column:
    """One task of the clients of a kind, or without a task a gain over Local."""

    group: str
    task: str
    metric: str
    higher_is_better: bool

    @property
    def is_gain(self) -> bool:
        """Whether it is about all clients and tasks."""
        return not self.task

    @property
    def measure(self) -> str:
        """Its metric, with an arrow in its better direction."""
        return f"{metric_title(self.metric)}{' %' * self.is_gain} {ARROWS[self.higher_is_better]}"

    @property
    def heading(self) -> str:
        """Its heading in a table."""
        return self.measure if self.is_gain else f"{self.task} {self.measure}"

    def digits(self, value: float) -> int:
        """The number of decimals in the table; as in the papers, since differences are small."""
        return 2 if self.is_gain or abs(value) >= 1 else 3

    def rounded(self, value: float) -> float:
        """A value as the table shows it."""
        return round(value, self.digits(value)) if isfinite(value) else value


DELTA_M = Column("", "", "Δm", True)
BY_CLIENT = Column("", "", "Δm by client", True)  # the mean over all clients; Δm first averages each kind


@dataclass(frozen=True)
class Entry:
    """The values of one cell, by seed."""

    by_seed: Mapping[int, float]

    @property
    def values(self) -> tuple[float, ...]:
        """One value per seed."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """Their standard deviation (n − 1), if there are several."""
        with np.errstate(invalid="ignore"):  # infinite values have none
            return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Entries by method, or by method and settings, and by column.

    The last column is Δm if every method has it; with several clients of a kind, Δm by client follows it.
    """

    columns: Sequence[Column]
    entries: Mapping[str, Mapping[Column, Entry]]
    alone: Set[str] = frozenset({LOCAL})  # the rows of Local, with which the others are compared

    @cached_property
    def p_values(self) -> Mapping[str, float]:
        """p that a method's Δm is chance, corrected for their number; methods with too few seeds have none."""
        gains = {method: row[DELTA_M] for method, row in self.entries.items() if DELTA_M in row}
        return gain_p_values({method: gain.values for method, gain in gains.items() if method not in self.alone})

    def is_beyond_chance(self, method: str, column: Column) -> bool:
        """Whether a method's Δm differs from 0 by more than chance explains."""
        return column == DELTA_M and self.p_values.get(method, 1.0) < LEVEL

    def is_best(self, method: str, column: Column) -> bool:
        """Whether no other method has a better mean, as far as the table shows digits."""
        sign = 1 if column.higher_is_better else -1
        means = [sign * column.rounded(row[column].mean) for row in self.entries.values() if isfinite(row[column].mean)]
        return len(means) > 1 and sign * column.rounded(self.entries[method][column].mean) == max(means)

    def gain(self, method: str, column: Column, over: str) -> float:
        """The relative gain of a mean over another method's, in percent."""
        theirs = self.entries[over][column].mean
        return relative_gain(self.entries[method][column].mean, theirs, column.higher_is_better)


def gather(runs: Sequence[ComparedRun]) -> Comparison:
    """Compare runs: those that differ only in their seed form one row, and the clients of a group are averaged.

    A run without a baseline is compared with the run of Local among them that has its settings and seed.
    """
    rows = variants(runs)
    alone = {without_method(run): run.finished_result["clients"] for run in runs if run.method == LOCAL}
    by_label = {label: _entries(same, alone) for label, same in rows.items()}
    columns = list(next(iter(by_label.values())))
    for label, row in by_label.items():
        if _scores(row) != _scores(columns):
            raise UserError([f"{rows[label][0].path}: should have the same clients and tasks as {runs[0].path}"])
    gains = (DELTA_M, BY_CLIENT) if any(run.several_of_a_kind for run in runs) else (DELTA_M,)
    kept = [column for column in columns if not column.is_gain]
    kept += [gain for gain in gains if all(gain in row for row in by_label.values())]
    entries = {label: {column: row[column] for column in kept} for label, row in by_label.items()}
    return Comparison(kept, entries, {label for label, same in rows.items() if same[0].method == LOCAL})


def _scores(columns: Iterable[Column]) -> set[Column]:
    return {column for column in columns if not column.is_gain}


def _entries(runs: Sequence[ComparedRun], alone: Mapping[str, Scores]) -> dict[Column, Entry]:
    values: dict[Column, dict[int, float]] = {}
    for run in runs:
        for column, value in _values(run, alone).items():
            values.setdefault(column, {})[run.settings["seed"]] = value
    return {column: Entry(held) for column, held in values.items()}


def _values(run: ComparedRun, alone: Mapping[str, Scores]) -> dict[Column, float]:
    result = run.finished_result
    groups, held = client_groups(run), dict[Column, list[float]]()
    for client, tasks in result["clients"].items():
        for task, scores in tasks.items():
            main = headline(task, scores)
            held.setdefault(Column(groups[client], task, main.metric, main.higher_is_better), []).append(main.value)
    means = {column: float(np.mean(values)) for column, values in held.items()}
    if run.method == LOCAL:
        return means | {DELTA_M: 0.0, BY_CLIENT: 0.0}
    if result["baseline"] is not None:
        gains = {DELTA_M: result["delta_m"], BY_CLIENT: result["delta_m_by_client"]}
    elif local := alone.get(without_method(run)):
        gains = {DELTA_M: overall_gain(result["clients"], local, run.kinds)}
        gains |= {BY_CLIENT: overall_gain(result["clients"], local)}
    else:
        return means
    return means | {column: nan if gain is None else gain for column, gain in gains.items()}


def client_groups(run: ComparedRun) -> dict[str, str]:
    """The group of each client: its data set, plus its tasks if the data set's multi-task clients differ in theirs."""
    groups = {}
    for client, tasks in run.tasks.items():
        data = run.dataset(client)
        rivals = {run.kinds[c] for c, held in run.tasks.items() if len(held) > 1 and run.dataset(c) == data}
        kind = "single-task" if len(tasks) == 1 else "multi-task" if len(rivals) < 2 else "+".join(sorted(tasks))
        groups[client] = f"{data}, {kind}"
    return groups
