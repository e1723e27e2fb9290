"""From finished runs to the numbers of a table: a row per method, a column per group of clients and task."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.special import stdtr

from fedhca2.errors import UserError
from fedhca2.metrics import relative_gain
from fedhca2.records import Records
from fedhca2.reports.variants import changed_settings, settings_text, variants
from fedhca2.run_folder.listing import list_runs
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Scored, Scores, across_clients, gains_by_client, overall_gain, task_scores
from fedhca2.run_folder.writer import FREE as FREE_IN_BASELINE
from fedhca2.tasks.task import TRIVIAL
from fedhca2.words import counted, metric_heading

LOCAL, POOLED = "local", "pooled"
LEVEL = 0.05  # of significance
MIN_SEEDS = 3  # of a test: two say nothing about how much gains vary


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
RECOVERED = Column("", "", "of pooled", True)  # Δm as a share of that of pooled
WORST = Column("", "", "worst client", True)  # the gain of the client that gains least
HARMED = Column("", "", "clients harmed", False)  # the share of clients that lose
SPREAD = Column("", "", "spread of clients", False)  # the standard deviation of clients' gains
ACROSS = (WORST, HARMED, SPREAD)


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


Entries = Mapping[str, Mapping[Column, SeedScores]]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Entries by method, or by method and settings, and by column.

    The last columns are about all clients and tasks, if every method has them: Δm, its share of that of pooled, with
    several clients of a kind Δm by client, and how the gains of clients differ.
    """

    columns: Sequence[Column]
    entries: Entries
    alone: Set[str] = frozenset({LOCAL})  # the rows of Local, with which the others are compared
    left_out: Sequence[Column] = ()  # columns that not all runs have
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # settings that are not a method's defaults
    split: Scored = "val"  # the images that scores are on

    def table(self) -> Records:
        """A record for each method and column, as in table.csv."""
        return Records(
            {
                "method": method,
                **asdict(column),
                "seeds": len(row[column].values),
                "mean": row[column].mean,
                "standard_deviation": nan if row[column].deviation is None else row[column].deviation,
                "best": self.is_best(method, column),
                "p_value": self.p_values.get(method, nan) if column == DELTA_M else nan,
            }
            for method, row in self.entries.items()
            for column in self.columns
        )

    def __repr__(self) -> str:
        scores = sum(not column.is_gain for column in self.columns)
        return f"Comparison({', '.join(self.entries)}: {counted(scores, 'score')})"

    def _repr_html_(self) -> str:
        from fedhca2.reports.layouts import notebook_table  # which needs this module

        return notebook_table(self)

    @cached_property
    def p_values(self) -> Mapping[str, float]:
        """p that a method's Δm is chance, corrected for their number; methods with too few seeds have none."""
        gains = {method: row[DELTA_M] for method, row in self.entries.items() if DELTA_M in row}
        return gain_p_values({method: gain.values for method, gain in gains.items() if method not in self.alone})

    @property
    def notes(self) -> list[str]:
        """Say what scores are on, which columns are left out, and which settings are not a method's defaults."""
        notes = ["Scores are on test images."] * (self.split == "test")
        if columns := "; ".join(f"{column.group}: {column.task}" for column in self.left_out):
            notes.append(f"Left out, since not all runs have them: {columns}. Δm covers the other columns.")
        unnamed = {label: [each for each in changes if each not in label] for label, changes in self.changed.items()}
        if RECOVERED in self.columns and not any(isfinite(row[RECOVERED].mean) for row in self.entries.values()):
            notes += [f"No share of the pooled gain: `pooled` must gain beyond chance over {MIN_SEEDS} seeds or more."]
        if methods := "; ".join(f"{label}: {', '.join(changes)}" for label, changes in unnamed.items() if changes):
            notes.append(f"Settings that differ from a method's defaults: {methods}.")
        return notes

    def is_beyond_chance(self, method: str, column: Column) -> bool:
        """Whether a method's Δm differs from 0 by more than chance explains."""
        return column == DELTA_M and self.p_values.get(method, 1.0) < LEVEL

    def is_best(self, method: str, column: Column) -> bool:
        """Whether no other method has a better mean, as far as the table shows digits; never of shares and spreads."""
        if column == RECOVERED or column in ACROSS:
            return False
        sign = 1 if column.higher_is_better else -1
        means = [sign * column.rounded(row[column].mean) for row in self.entries.values() if isfinite(row[column].mean)]
        return len(means) > 1 and sign * column.rounded(self.entries[method][column].mean) == max(means)

    def gain(self, method: str, column: Column, over: str) -> float:
        """The relative gain of a mean over another method's, in percent."""
        other_mean = self.entries[over][column].mean
        return relative_gain(self.entries[method][column].mean, other_mean, column.higher_is_better)


def gather(runs: Sequence[RunFiles]) -> Comparison:
    """Compare runs: those that differ only in their seed form one row, and the clients of a group are averaged.

    A run without a baseline is compared with the run of Local among them that has its settings and seed. If the runs
    have different clients, only the columns that all of them have are compared, and Δm is over these.
    """
    rows, split = variants(runs), runs[0].outcome.split
    if other := next((run for run in runs if run.outcome.split != split), None):
        expected = f"expected scores on {split} images, as in {runs[0].path}"
        raise UserError(other.path, f"{expected}, got {other.outcome.split}")
    values = {
        label: {
            run.settings["seed"]: {column: float(np.mean(own)) for column, own in _by_column(run).items()}
            for run in seeds
        }
        for label, seeds in rows.items()
    }
    every_run = [one for by_seed in values.values() for one in by_seed.values()]
    everything = dict.fromkeys(column for one in every_run for column in one)
    shared = [column for column in everything if all(column in one for one in every_run)]
    if not shared:
        raise UserError(str(runs[-1].path), f"expected clients and tasks in common with {runs[0].path}, got none")
    left_out = [column for column in everything if column not in shared]
    alone, compared = [run for run in runs if run.method == LOCAL], shared if left_out else None
    for label, seeds in rows.items():
        for run in seeds:
            values[label][run.settings["seed"]] |= _gains(run, _scores_alone(run, alone, compared), compared)
    twins = not left_out and any(run.several_of_a_kind for run in runs)
    several = any(len(run.outcome.clients) > 1 for run in runs)
    gain_columns = (DELTA_M, *[BY_CLIENT] * twins, *(ACROSS if several else ()))
    columns = [*shared, *(gain for gain in gain_columns if all(gain in one for one in every_run))]
    entries = {
        label: {column: SeedScores({seed: one[column] for seed, one in by_seed.items()}) for column in columns}
        for label, by_seed in values.items()
    }
    local_rows = {label for label, seeds in rows.items() if seeds[0].method == LOCAL}
    changed = {label: changed_settings(seeds[0]) for label, seeds in rows.items()}
    pooled = next((label for label, seeds in rows.items() if seeds[0].method == POOLED), "")
    if pooled and DELTA_M in columns:
        columns.insert(columns.index(DELTA_M) + 1, RECOVERED)
        ceiling = entries[pooled][DELTA_M]
        certain = gain_p_values({pooled: ceiling.values}).get(pooled, 1.0) < LEVEL and ceiling.mean > 0
        unit = 100 / ceiling.mean if certain else nan  # unknown if pooled's gain is none or may be chance
        for row in entries.values():
            row[RECOVERED] = SeedScores({seed: unit * gain for seed, gain in row[DELTA_M].by_seed.items()})
    return Comparison(columns, entries, local_rows, left_out, changed, split)


def _by_column(run: RunFiles, measure: str = "value") -> dict[Column, list[float]]:
    """The scores of each group of clients in each task, or what a constant answer scores, its `trivial` ones."""
    groups, values = client_groups(run), dict[Column, list[float]]()
    for one in task_scores(run.outcome.clients, None, run.task_set):
        column = Column(groups[one.client], one.task, one.ours.metric, one.ours.higher_is_better)
        values.setdefault(column, []).append(getattr(one.ours, measure))
    return values


def _gains(run: RunFiles, alone: Scores | None, shared: Iterable[Column] | None = None) -> dict[Column, float]:
    """The gains of a run over training alone, of its whole result or of the columns that it shares with others."""
    result = run.outcome
    if run.method == LOCAL:
        return dict.fromkeys((DELTA_M, BY_CLIENT, *ACROSS), 0.0)
    if alone is None:
        return {}
    scores, tasks = result.clients if shared is None else _only(run, shared), run.task_set
    gains: dict[Column, float | None] = {
        DELTA_M: overall_gain(scores, alone, tasks, run.kinds),
        BY_CLIENT: overall_gain(scores, alone, tasks),
    }
    if shared is None and result.baseline is not None:
        gains = {DELTA_M: result.delta_m, BY_CLIENT: result.delta_m_by_client}
    across = across_clients(scores, alone, tasks)
    worst, _, *others = across or (nan, "", nan, nan)
    gains |= dict(zip(ACROSS, (worst, *others), strict=True))
    return {column: nan if gain is None else gain for column, gain in gains.items()}


def _scores_alone(run: RunFiles, alone: Sequence[RunFiles], shared: Iterable[Column] | None = None) -> Scores | None:
    """The baseline of a run or, of these runs of Local, the scores of the one with its settings and seed, if any.

    :param shared: the columns that are compared, if not all; Local's other clients may differ then.
    """
    if run.method == LOCAL or run.outcome.baseline:
        return run.outcome.baseline
    free = (*FREE_IN_BASELINE, *(() if shared is None else ("clients", "data")))
    used = {run.dataset(client) for client in (run.outcome.clients if shared is None else _only(run, shared))}
    for local in alone:
        own_data, local_data = (one.settings.get("data", {}) for one in (run, local))
        same_data = all(local_data.get(name) == own_data.get(name) for name in used)
        if same_data and settings_text(local, free) == settings_text(run, free):
            return local.outcome.clients
    return None


def _only(run: RunFiles, shared: Iterable[Column]) -> Scores:
    """The scores of a run in these columns."""
    groups, kept_columns = client_groups(run), {(column.group, column.task) for column in shared}
    scores: Scores = {}
    for client, tasks in run.outcome.clients.items():
        if own := {task: one for task, one in tasks.items() if (groups[client], task) in kept_columns}:
            scores[client] = own
    return scores


def leaderboard(folder: str | Path) -> Records:
    """A record for each experiment and method of the finished runs in a folder, the best Δm of an experiment first.

    >>> leaderboard("runs").to_csv("board.csv")  # doctest: +SKIP

    :param folder: the folder with the runs, at any depth.
    """
    return rank_methods([RunFiles(run.folder) for run in list_runs(Path(folder)) if run.state == "finished"])


def rank_methods(runs: Iterable[RunFiles]) -> Records:
    """A record for each experiment and method; in each experiment the best Δm first.

    Δm, seconds and bytes are means over seeds, and `p_value` is that of Δm among the methods of the experiment. A run
    without a baseline is compared with the run of Local that has its settings and seed. `worst_client` has the smallest
    mean gain over its tasks. Unknown numbers are NaN.
    """
    experiments: dict[str, list[RunFiles]] = {}
    for run in runs:
        experiments.setdefault(run.settings["name"], []).append(run)
    records = Records()
    for name, same in sorted(experiments.items()):
        alone = [run for run in same if run.method == LOCAL]
        standings = {label: _standing(own, alone) for label, own in variants(same).items()}
        p_values = gain_p_values({label: gains for label, (gains, row) in standings.items() if row["worst_client"]})
        board = [
            {"experiment": name, "method": label, **row, "p_value": p_values.get(label, nan)}
            for label, (_, row) in standings.items()
        ]
        records += sorted(board, key=lambda row: -row["delta_m"] if isfinite(row["delta_m"]) else inf)
    return records


def _standing(runs: Sequence[RunFiles], alone: Sequence[RunFiles]) -> tuple[list[float], dict[str, Any]]:
    """The gains of the runs of a row, and their means and worst client."""
    gains, by_client = list[float](), dict[str, list[float]]()
    for run in runs:
        scores = _scores_alone(run, alone)
        gains.append(_gains(run, scores).get(DELTA_M, nan))
        for client, gain in gains_by_client(run.outcome.clients, scores or {}, run.task_set).items():
            by_client.setdefault(client, []).append(gain)
    finite, results = [gain for gain in gains if isfinite(gain)], [run.outcome for run in runs]
    worst = min(by_client, key=lambda client: fmean(by_client[client]), default="")
    return gains, {
        "seeds": len(runs),
        "delta_m": fmean(finite or [nan]),
        "standard_deviation": stdev(finite) if len(finite) > 1 else nan,
        "worst_client": worst,
        "worst_gain": fmean(by_client.get(worst, [nan])),
        "rounds": runs[0].rounds,
        "seconds": fmean(result.seconds for result in results),
        "bytes_up": fmean(result.bytes["up"] for result in results),
        "bytes_down": fmean(result.bytes["down"] for result in results),
    }


def with_trivial(comparison: Comparison, runs: Iterable[RunFiles]) -> Comparison:
    """The comparison with a last row of what a constant answer scores, as far as the runs know it."""
    by_run = [_by_column(run, "trivial") for run in runs]
    known = {c: [one for own in by_run for one in own.get(c, ()) if isfinite(one)] for c in comparison.columns}
    row = {column: SeedScores({0: float(np.mean(scores or nan))}) for column, scores in known.items()}
    if not any(isfinite(entry.mean) for entry in row.values()):
        return comparison
    return replace(comparison, entries={**comparison.entries, TRIVIAL: row}, alone=comparison.alone | {TRIVIAL})


def client_groups(run: RunFiles) -> dict[str, str]:
    """The group of each client: its data set, plus its tasks if the data set's multi-task clients differ in theirs."""
    return group_names(run.tasks, {client: run.dataset(client) for client in run.tasks})


def group_names(tasks_of: Mapping[str, Sequence[str]], dataset: Mapping[str, str]) -> dict[str, str]:
    """The group of each client, by its tasks and its data set."""
    groups = {}
    for client, tasks in tasks_of.items():
        data = dataset[client]
        rivals = {frozenset(own) for c, own in tasks_of.items() if len(own) > 1 and dataset[c] == data}
        kind = "single-task" if len(tasks) == 1 else "multi-task" if len(rivals) < 2 else "+".join(sorted(tasks))
        groups[client] = f"{data}, {kind}"
    return groups


def gain_p_values(gains: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """p of each method's gains over Local, one per seed: a two-sided paired t-test, corrected by Holm (1979).

    A gain is a difference from Local with the same seed, so the paired test is the one-sample test against 0. Rank
    tests cannot reach 5 % with fewer than six seeds. Methods with fewer than three seeds or unknown gains have no p.

    >>> {name: round(p, 4) for name, p in gain_p_values({"a": [1, 2, 3], "b": [4.9, 5, 5.1], "c": [1, 2]}).items()}
    {'a': 0.0742, 'b': 0.0003}
    """
    tested = {name: values for name, values in gains.items() if len(values) >= MIN_SEEDS and all(map(isfinite, values))}
    uncorrected = {}
    for name, values in tested.items():
        mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / sqrt(len(values))
        uncorrected[name] = float(2 * stdtr(len(values) - 1, -abs(mean) / error)) if error else float(mean == 0)
    return holm(uncorrected)


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
