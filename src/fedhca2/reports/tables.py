"""Tables in the terminal, which leave out columns where it is narrow: a run's outcome, its forecast, all runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedhca2.experiment import Experiment
from fedhca2.run_folder.folder import RESULT
from fedhca2.run_folder.listing import ListedRun
from fedhca2.run_folder.result import Headline, Result, Scores, TaskScore, across_clients, task_scores
from fedhca2.tasks import TaskSet
from fedhca2.tasks.task import TRIVIAL
from fedhca2.words import UNKNOWN, counted, gain_text, metric_heading, score_text, size_text

if TYPE_CHECKING:
    from fedhca2.federation.forecast import Forecast

MAX_CLIENT_ROWS = 60  # of a table of clients; more are shown by kind
DELTA_M_MEANS = "mean gain over local training; clients with the same data and tasks are averaged first"
UNKNOWN_GAIN = "Δm is unknown: a score is missing, or the local score is 0."


@dataclass(frozen=True)
class TextTable:
    """A table that cuts nothing: where it is too wide, it leaves out columns, says which, and folds texts.

    `drop` names columns in the order in which they can be left out, `right` those aligned to the right, and `wraps`
    those with text that may take several lines, each with its least width. If what remains is still too wide,
    `otherwise` is shown, or every column is folded.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    right: Sequence[str] = ()
    drop: Sequence[str] = ()
    wraps: dict[str, int] = field(default_factory=dict)
    otherwise: "TextTable | None" = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print what fits."""
        needed, dropped = dict[str, int](), 0  # the widths in which no number is broken, with a line and two spaces
        for name, *cells in zip(self.columns, *self.rows, strict=True):
            widest = max(cell_len(Text.from_markup(text).plain) for text in (name, *cells))
            needed[name] = 3 + min(widest, self.wraps.get(name, widest))
        while 1 + sum(needed.values()) > options.max_width and dropped < len(self.drop):
            del needed[self.drop[dropped]]
            dropped += 1
        too_wide = 1 + sum(needed.values()) > options.max_width
        if too_wide and self.otherwise:
            yield self.otherwise
            return
        table = Table(title=self.title or None, title_justify="left")
        for name in needed:
            whole, side = not too_wide and name not in self.wraps, "right" if name in self.right else "left"
            table.add_column(name, justify=side, no_wrap=whole, overflow="fold")  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*(cell for name, cell in zip(self.columns, row, strict=True) if name in needed))
        yield table
        if dropped:
            yield Text(f"hidden columns (terminal too narrow): {', '.join(self.drop[:dropped])}", "dim")
        if self.note:
            yield Text(self.note)


def heading_of(score: Headline) -> str:
    """A score's metric, with an arrow in its better direction."""
    return metric_heading(score.metric, score.higher_is_better)


def text_of(score: Headline) -> str:
    """A score with its unit."""
    return score_text(score.unit, score.value)


@dataclass(frozen=True)
class KindScores:
    """The scores of all clients of a group in one task, the worst first."""

    kind: str
    task: str
    first: Headline  # of any client
    ranked: Sequence[tuple[float, str]]  # a score and its client
    gain: float  # the median over local training in %; NaN if it is unknown

    def at(self, share: float) -> float:
        """The score that this share of the clients does not reach."""
        rises = self.ranked[0][0] <= self.ranked[-1][0]
        return float(np.quantile([score for score, _ in self.ranked], share if rises else 1 - share))


def scores_by_kind(
    scores: Scores, tasks: TaskSet, kinds: Mapping[str, str], baseline: Scores | None = None
) -> list[KindScores]:
    """Sort the finite scores of clients by group and task."""
    members_by_kind: dict[tuple[str, str], list[TaskScore]] = {}
    for one in task_scores(scores, baseline, tasks):
        if isfinite(one.ours.value):
            members_by_kind.setdefault((kinds.get(one.client, one.client), one.task), []).append(one)
    by_kind = []
    for (kind, task), members in members_by_kind.items():
        better = 1 if members[0].ours.higher_is_better else -1
        ranked = sorted(((one.ours.value, one.client) for one in members), key=lambda pair: better * pair[0])
        gains = [one.gain for one in members if isfinite(one.gain)]
        by_kind.append(KindScores(kind, task, members[0].ours, ranked, median(gains) if gains else nan))
    return by_kind


def kinds_table(
    scores: Scores, tasks: TaskSet, kinds: Mapping[str, str], title: str = "", baseline: Scores | None = None
) -> TextTable:
    """One row per group and task, with percentiles of its clients' scores, and their median gain over a baseline."""
    rows = []
    for one in scores_by_kind(scores, tasks, kinds, baseline):
        cells = [score_text(one.first.unit, one.at(share)) for share in (0, 0.1, 0.5, 0.9, 1)]
        cells += [gain_text(one.gain)] if baseline else []
        rows.append([escape(one.kind), one.task, heading_of(one.first), f"{len(one.ranked):,}", *cells])
    numbers = ["clients", "worst", "10th", "median", "90th", "best", *(["median gain"] if baseline else [])]
    note = f"Percentiles of {counted(len(scores), 'client')}; the report and {RESULT} have every client."
    drop, wraps = ["metric", "10th", "90th", "clients", "worst"], {"group": 7, "task": 6}
    return TextTable(["group", "task", "metric", *numbers], rows, title, note, numbers, drop, wraps)


def result_table(
    result: Result, tasks: TaskSet, kinds: Mapping[str, str] | None = None, *, trivial: bool = False
) -> TextTable:
    """Make one row per client and task: its metric, the local baseline, the relative gain; of many, one per group.

    :param trivial: also list what a constant answer scores.
    """
    images = {"train": ", on training images", "val": "", "test": ", on test images"}[result.split]
    title = f"{result.name}: {result.method} after {counted(result.rounds, 'round')}{images}"
    if kinds and sum(map(len, result.clients.values())) > MAX_CLIENT_ROWS:
        return kinds_table(result.clients, tasks, kinds, title, result.baseline)
    rows, last = [], ""
    for one in task_scores(result.clients, result.baseline, tasks):
        cells = [text_of(one.ours)]
        if result.baseline:  # without `alone`, a site was away during its evaluation
            gain = gain_text(one.gain)
            colour = {"+": "green", "-": "red"}.get(gain[0])
            gain = f"[{colour}]{gain}[/]" if colour else gain
            cells = [text_of(one.alone) if one.alone else UNKNOWN, *cells, gain]
        floor = [score_text(one.ours.unit, one.ours.trivial)] * trivial
        rows.append([one.client if one.client != last else "", one.task, heading_of(one.ours), *floor, *cells])
        last = one.client
    numbers = [*[TRIVIAL] * trivial, *(["local", result.method, "gain"] if result.baseline else [result.method])]
    drop, wraps = ["metric", "local"] if result.baseline else ["metric"], {"client": 7, "task": 6}
    return TextTable(["client", "task", "metric", *numbers], rows, title, right=numbers, drop=drop, wraps=wraps)


def conclusion(result: Result, tasks: TaskSet) -> str:
    """Explain Δm in a sentence, or why it is unknown."""
    if not result.baseline:
        return "No local baseline, so Δm is unknown. Rerun with `--set baseline=true`, or give `--baseline RUN`."
    if result.delta_m is None:
        return UNKNOWN_GAIN
    trained = {task for scores in result.clients.values() for task in scores}
    left_out = sorted(task for task in trained if not tasks[task].counts_in_delta_m)
    besides = f" (without {', '.join(left_out)})" if left_out else ""
    certain = f"{how_certain(result.clients, result.baseline, tasks)} {across_text(result, tasks)}".rstrip()
    return f"Δm {gain_text(result.delta_m)}: {DELTA_M_MEANS}{besides}. {certain}"


def across_text(result: Result, tasks: TaskSet) -> str:
    """Say how the gains of a run's clients differ; empty for a single client."""
    across = across_clients(result.clients, result.baseline or {}, tasks)
    if across is None or len(result.clients) < 2:
        return ""
    worst = f"Worst client: {across.client}, {gain_text(across.worst)}; {across.harmed:.0f}% of the clients lose."
    return f"{worst} Standard deviation over clients: {across.deviation:.2f}%."


def how_certain(clients: Scores, baseline: Scores, tasks: TaskSet) -> str:
    """Say how many scores improved, how many have no gain, and what a single run cannot show."""
    gains = [one.gain for one in task_scores(clients, baseline, tasks) if one.alone and one.ours.counts]
    finite = [gain for gain in gains if isfinite(gain)]
    better, unknown = sum(gain > 0 for gain in finite), len(gains) - len(finite)
    sentence = f"{better} of {counted(len(finite), 'score')} {'is' if better == 1 else 'are'} better"
    if len(finite) > 1:
        sentence += f", from {gain_text(min(finite))} to {gain_text(max(finite))}"
    sentence += f"; {unknown} more without a gain" if unknown else ""
    return f"{sentence}. One seed: the uncertainty of Δm is unknown."


def runs_table(runs: Sequence[ListedRun], folder: Path) -> TextTable | str:
    """A row for each run of a folder."""
    if not runs:
        return f"No runs in {folder}"
    rows = [
        [
            escape(str(run.folder)),
            escape(run.method or UNKNOWN),
            UNKNOWN if run.rounds is None else f"{run.round}/{run.rounds}",
            UNKNOWN if run.delta_m is None else gain_text(run.delta_m),
            UNKNOWN if run.started is None else f"{datetime.fromisoformat(run.started).astimezone():%Y-%m-%d %H:%M}",
            run.state,
        ]
        for run in runs
    ]
    names, wraps = ["run", "method", "rounds", "Δm", "started", "state"], {"run": 12, "method": 8}
    return TextTable(names, rows, right=["rounds", "Δm"], drop=["started", "rounds", "method"], wraps=wraps)


def forecast_summary(experiment: Experiment, forecast: "Forecast") -> Group:
    """What a run will do: a row for each client, and sentences about bytes and memory."""
    rows = [
        [
            client["client"],
            ", ".join(client["tasks"]),
            *(str(client[key]) for key in ("train", "val", "steps")),
            f"{sum(client['parameters'].values()) / 1e6:.3g} M",
            ", ".join(f"{part} ({kind})" for part, kind in client["sends"].items()) or "nothing",
            *(size_text(client[key]) for key in ("bytes_up", "bytes_down")),
        ]
        for client in forecast.clients
    ]
    table = TextTable(
        ["client", "tasks", "train", "val", "steps", "parameters", "sends", "up", "down"],
        rows,
        title="Clients, and bytes in a round",
        right=["train", "val", "steps", "parameters", "up", "down"],
        drop=["parameters", "val", "steps", "sends", "tasks"],
        wraps={"client": 16, "tasks": 8, "sends": 12},
    )
    up, down = (size_text(forecast.to_dict()["per_round"][f"bytes_{way}"]) for way in ("up", "down"))
    states, steps = (
        "an unknown amount" if size is None else size_text(size)
        for size in (forecast.memory["states"], forecast.memory["steps"])
    )
    secure = ", plus secure aggregation" if experiment.secure_aggregation else ""
    sentences = [
        f"{counted(len(rows), 'client')}, {counted(experiment.rounds, 'round')} of {experiment.method_name} on "
        f"{', '.join(forecast.devices)}. A round of all clients sends {up} up and {down} down{secure}.",
        f"Memory: about {states} for the clients' states and {steps} for training steps, plus images and libraries. "
        "States beyond checkpoints.memory wait in files.",
        "Dry run: nothing was trained or written.",
    ]
    return Group(table, *map(Text, sentences))
