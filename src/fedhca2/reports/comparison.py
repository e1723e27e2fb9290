"""From finished runs to the numbers of a table: a row per method, a column per group of clients and task."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan, sqrt

import numpy as np
from scipy.special import stdtr

from fedhca2.errors import UserError
from fedhca2.metrics import relative_gain
from fedhca2.reports.variants import ComparedRun, changed_settings, variants, without_method
from fedhca2.run_folder.result import Scores, headline, overall_gain
from fedhca2.words import metric_heading

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
        return metric_heading(f"{self.metric}{' %' * self.is_gain}", self.higher_is_better)

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
class SeedScores:
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
    entries: Mapping[str, Mapping[Column, SeedScores]]
    alone: Set[str] = frozenset({LOCAL})  # the rows of Local, with which the others are compared
    left_out: Sequence[Column] = ()  # columns that not all runs have
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # settings that are not a method's defaults

    @cached_property
    def p_values(self) -> Mapping[str, float]:
        """p that a method's Δm is chance, corrected for their number; methods with too few seeds have none."""
        gains = {method: row[DELTA_M] for method, row in self.entries.items() if DELTA_M in row}
        return gain_p_values({method: gain.values for method, gain in gains.items() if method not in self.alone})

    @property
    def left_out_note(self) -> str:
        """Says which columns are not compared; empty if all are."""
        names = "; ".join(f"{column.group}: {column.task}" for column in self.left_out)
        return f"Not all runs have these columns, which are left out: {names}. Δm is over the others." if names else ""

    @property
    def changed_note(self) -> str:
        """Says which methods differ from their defaults, and how; empty if none does, or if all labels say so."""
        told = {label: [each for each in held if each not in label] for label, held in self.changed.items()}
        methods = "; ".join(f"{label}: {', '.join(held)}" for label, held in told.items() if held)
        return f"Settings that differ from a method's defaults: {methods}." if methods else ""

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

    A run without a baseline is compared with the run of Local among them that has its settings and seed. If the runs
    have different clients, only the columns that all of them have are compared, and Δm is over these.
    """
    rows = variants(runs)
    means = {label: {run.settings["seed"]: _means(run) for run in same} for label, same in rows.items()}
    everything = list(dict.fromkeys(column for row in means.values() for one in row.values() for column in one))
    shared = [column for column in everything if all(column in one for row in means.values() for one in row.values())]
    if not shared:
        raise UserError([f"{runs[-1].path}: expected clients and tasks in common with {runs[0].path}, got none"])
    left_out = [column for column in everything if column not in shared]
    locals_ = [run for run in runs if run.method == LOCAL]
    gains = {label: [_gains(run, locals_, shared, whole=not left_out) for run in same] for label, same in rows.items()}
    wanted = (DELTA_M, BY_CLIENT) if not left_out and any(run.several_of_a_kind for run in runs) else (DELTA_M,)
    kept = [gain for gain in wanted if all(gain in one for row in gains.values() for one in row)]
    entries = {
        label: {
            **{column: SeedScores({seed: one[column] for seed, one in means[label].items()}) for column in shared},
            **{
                gain: SeedScores(dict(zip(means[label], (one[gain] for one in gains[label]), strict=True)))
                for gain in kept
            },
        }
        for label in rows
    }
    alone = {label for label, same in rows.items() if same[0].method == LOCAL}
    changed = {label: changed_settings(same[0]) for label, same in rows.items()}
    return Comparison([*shared, *kept], entries, alone, left_out, changed)


def _means(run: ComparedRun) -> dict[Column, float]:
    """The mean score of each group of clients in each task."""
    groups, held = client_groups(run), dict[Column, list[float]]()
    for client, tasks in run.finished_result["clients"].items():
        for task, scores in tasks.items():
            main = headline(run.task_set[task], scores)
            held.setdefault(Column(groups[client], task, main.metric, main.higher_is_better), []).append(main.value)
    return {column: float(np.mean(values)) for column, values in held.items()}


def _gains(
    run: ComparedRun, alone: Sequence[ComparedRun], shared: Iterable[Column], *, whole: bool
) -> dict[Column, float]:
    """The gains over Local of a run; of its `whole` result, or of the columns that all runs share. Empty if unknown."""
    result = run.finished_result
    if run.method == LOCAL:
        return {DELTA_M: 0.0, BY_CLIENT: 0.0}
    if whole and result["baseline"] is not None:
        gains = {DELTA_M: result["delta_m"], BY_CLIENT: result["delta_m_by_client"]}
    elif local := result["baseline"] or _scores_alone(run, alone, shared, whole=whole):
        scores = result["clients"] if whole else _only(run, shared)
        tasks = run.task_set
        gains = {DELTA_M: overall_gain(scores, local, tasks, run.kinds), BY_CLIENT: overall_gain(scores, local, tasks)}
    else:
        return {}
    return {column: nan if gain is None else gain for column, gain in gains.items()}


def _scores_alone(
    run: ComparedRun, alone: Sequence[ComparedRun], shared: Iterable[Column], *, whole: bool
) -> Scores | None:
    """The scores of the run of Local with a run's settings and seed; unless `whole`, its other clients may differ."""
    for local in alone:
        free = () if whole else ("clients", "data")
        if without_method(local, free) == without_method(run, free):
            used = {run.dataset(client) for client in _only(run, shared)}
            ours, theirs = (one.settings.get("data", {}) for one in (run, local))
            if all(theirs.get(name) == ours.get(name) for name in used):
                scores: Scores = local.finished_result["clients"]
                return scores
    return None


def _only(run: ComparedRun, shared: Iterable[Column]) -> Scores:
    """The scores of a run in these columns."""
    groups, wanted = client_groups(run), {(column.group, column.task) for column in shared}
    scores = {
        client: {task: held for task, held in tasks.items() if (groups[client], task) in wanted}
        for client, tasks in run.finished_result["clients"].items()
    }
    return {client: tasks for client, tasks in scores.items() if tasks}


def client_groups(run: ComparedRun) -> dict[str, str]:
    """The group of each client: its data set, plus its tasks if the data set's multi-task clients differ in theirs."""
    return group_names(run.tasks, {client: run.dataset(client) for client in run.tasks})


def group_names(tasks_of: Mapping[str, Sequence[str]], dataset: Mapping[str, str]) -> dict[str, str]:
    """The group of each client, by its tasks and its data set."""
    groups = {}
    for client, tasks in tasks_of.items():
        data = dataset[client]
        rivals = {frozenset(held) for c, held in tasks_of.items() if len(held) > 1 and dataset[c] == data}
        kind = "single-task" if len(tasks) == 1 else "multi-task" if len(rivals) < 2 else "+".join(sorted(tasks))
        groups[client] = f"{data}, {kind}"
    return groups


LEVEL = 0.05
FEWEST = 3  # seeds: two say nothing about how much gains vary


def gain_p_values(gains: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """p of each method's gains over Local, one per seed: a two-sided paired t-test, corrected by Holm (1979).

    A gain is a difference from Local with the same seed, so the paired test is the one-sample test against 0. Rank
    tests cannot reach 5 % with fewer than six seeds. Methods with fewer than three seeds or unknown gains have no p.

    >>> {name: round(p, 4) for name, p in gain_p_values({"a": [1, 2, 3], "b": [4.9, 5, 5.1], "c": [1, 2]}).items()}
    {'a': 0.0742, 'b': 0.0003}
    """
    tested = {name: values for name, values in gains.items() if len(values) >= FEWEST and all(map(isfinite, values))}
    return holm({name: _t_test(values) for name, values in tested.items()})


def _t_test(values: Sequence[float]) -> float:
    """The two-sided p of a mean that should be 0."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / sqrt(len(values))
    if not error:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(len(values) - 1, -abs(mean) / error))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction: the smallest p times their number, the next times one less, and so on, never decreasing.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted, least = dict[str, float](), 0.0
    for done, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - done) * p_values[name]))
        adjusted[name] = least
    return {name: adjusted[name] for name in p_values}
