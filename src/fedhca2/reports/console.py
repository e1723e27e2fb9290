"""Progress in the terminal: a run's own bars or lines, the table of a followed run, and parallel runs."""

import shlex
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from fedhca2.configs import embedded_file
from fedhca2.experiment import Experiment, Shard
from fedhca2.experiment.clients import client_kind
from fedhca2.federation.comparison_runs import ComparisonRun, known_runs
from fedhca2.federation.run_process import RunProcess, log_file
from fedhca2.messages import Order, Reply
from fedhca2.reports.tables import MAX_CLIENT_ROWS, TextTable, kinds_table
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.lock import in_use
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import ServerRecord, Watcher
from fedhca2.run_folder.result import headline
from fedhca2.words import UNKNOWN, counted, duration_text, gain_text, metric_heading, score_text

LONG = 300.0  # seconds from which a run says how long it will take
EVERY = 60.0  # seconds between lines about parallel runs, without a terminal
REFRESH = 0.2  # seconds between reading losses, since reading one from a GPU waits for it
WIDTH = 60
MOST_BARS = 12  # clients that are shown one by one


class ConsoleWatcher(Watcher):
    """Shows rounds, clients, batches, losses and the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.rounds: TaskID | None = None
        self.clients: dict[str, TaskID] = {}
        self.losses: dict[str, float] = {}
        self.read = 0.0

    def __enter__(self) -> "ConsoleWatcher":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Print what will be trained."""
        name = experiment.method_name
        images = sum(len(shard.train) for shard in shards.values())
        self.console.print(
            f"[bold]{name}[/]: {counted(len(shards), 'client')}, {counted(images, 'training image')}, "
            f"{counted(experiment.rounds, 'round')}"
        )
        for task in self.progress.task_ids:
            self.progress.remove_task(task)
        self.total = experiment.rounds
        self.label = name
        self.smaller = f"{experiment.name}_small"
        self.estimated = False
        self.rounds = self.progress.add_task(f"{name}: rounds", total=experiment.rounds, note="")
        self.clients = {}

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Move a client's bar; of many clients, those that have finished leave."""
        if not self.console.is_terminal or (monotonic() - self.read < REFRESH and done < total):
            return
        self.read = monotonic()
        if client not in self.clients:
            self.clients[client] = self.progress.add_task(f"  {client}", total=total, note="")
        self.progress.update(self.clients[client], completed=done, total=total, note=f"loss {float(loss):.3f}")
        if done == total and len(self.clients) > MOST_BARS:
            self.progress.remove_task(self.clients.pop(client))

    def replied(self, order: Order, reply: Reply) -> None:
        """Remember a client's loss, and print what it declined."""
        if reply.declined:
            self.console.print(Text(f"round {order.round + 1}: {reply.client} declined: {reply.declined}", "yellow"))
        if reply.losses:
            self.losses[reply.client] = sum(reply.losses.values())

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Move the bar of rounds; without a terminal print a line."""
        if self.rounds is not None:
            self.progress.update(self.rounds, completed=round + 1)
        for bar in self.clients.values():
            self.progress.remove_task(bar)
        self.clients.clear()
        for client, why in record.refused.items():
            self.console.print(Text(f"round {round + 1}: {client} was left out: {why}", "yellow"))
        if not self.console.is_terminal:
            self.console.print(
                f"{self.label} round {round + 1}/{self.total}  {seconds:.1f} s  loss: {loss_text(self.losses)}",
                soft_wrap=True,
            )
        self.losses.clear()
        self._estimate(self.total - round - 1, seconds)

    def _estimate(self, rounds: int, seconds: float) -> None:
        """After its first round, print how long the rest of a long run will take, and name a smaller experiment."""
        if not self.estimated and rounds * seconds > LONG:
            instead = f"; {self.smaller} is smaller" if embedded_file(self.smaller) else ""
            told = f"{counted(rounds, 'more round')} will take about {duration_text(rounds * seconds)} on this machine"
            self.console.print(told + instead, highlight=False)
        self.estimated = True


def loss_text(losses: Mapping[str, float]) -> str:
    """The losses of a round's clients in a line: each, or of many the median and both ends.

    >>> loss_text({"road": 0.5, "home": 2})
    'road 0.500  home 2.000'
    >>> loss_text({f"site-{number}": number / 10 for number in range(13)})
    '13 clients, median 0.600, lowest 0.000 (site-0), highest 1.200 (site-12)'
    """
    if len(losses) <= MOST_BARS:
        return "  ".join(f"{client} {loss:.3f}" for client, loss in losses.items())
    ranked = sorted(losses, key=lambda client: losses[client])
    middle, low, high = median(losses.values()), losses[ranked[0]], losses[ranked[-1]]
    ends = f"lowest {low:.3f} ({ranked[0]}), highest {high:.3f} ({ranked[-1]})"
    return f"{len(losses):,} clients, median {middle:.3f}, {ends}"


def _shown(loss: float | None) -> str:
    """Format a loss, if there is one."""
    if loss is None:
        return ""
    return f"{loss:.4f}" if isfinite(loss) else UNKNOWN


class LiveStatus:
    """Rounds done, time left, and every client's last loss and score."""

    def __init__(self, run: RunFiles) -> None:
        _ = run.task_set  # what it refuses
        self.run = run
        self.done = 0
        self.seconds: dict[int, float] = {}
        self.losses: dict[tuple[str, str], float] = {}
        self.scores: dict[tuple[str, str], dict[str, float]] = {}
        self.refused: dict[str, str] = {}
        self.kinds: dict[str, str] = {}

    def add(self, event: Event) -> None:
        """Process an event."""
        match event["event"]:
            case "profile":
                self.kinds[event["client"]] = client_kind(event["dataset"], event["tasks"])
            case "loss":
                self.losses[event["client"], event["task"]] = event["value"]
            case "metric":
                self.scores.setdefault((event["client"], event["task"]), {})[event["metric"]] = event["value"]
            case "round":
                self.done = event["round"] + 1
                self.seconds[event["round"]] = event["seconds"]
                self.refused = event["refused"]

    @property
    def state(self) -> str:
        """Rounds done and time left."""
        left = self.run.rounds - self.done
        each = sum(self.seconds.values()) / len(self.seconds) if self.seconds else 0.0
        state = f"{self.run.method}: round {self.done} of {self.run.rounds}, {each:.1f} s each"
        return state + (f", {left * each:.0f} s left" if left else ", done")

    def __rich__(self) -> Group:
        """Build what the terminal shows."""
        away = [Text(f"{client} was left out: {why}", "yellow") for client, why in self.refused.items()]
        bar = Padding(ProgressBar(self.run.rounds, self.done, width=WIDTH), expand=False)  # which ends its line
        return Group(Text(self.state, "bold"), bar, *self._before(), *self._clients(), *away)

    def _clients(self) -> list[Text | TextTable]:
        """A table of all clients or, if they are many, of their kinds and a line about their losses."""
        members = list(dict.fromkeys([*self.losses, *self.scores]))
        if len(members) > MAX_CLIENT_ROWS:
            by_client: dict[str, dict[str, dict[str, float]]] = {}
            for (client, task), held in self.scores.items():
                by_client.setdefault(client, {})[task] = held
            losses = {f"{client}/{task}": loss for (client, task), loss in self.losses.items()}
            return [
                Text(f"last losses: {loss_text(losses)}"),
                *([kinds_table(by_client, self.run.task_set, self.kinds)] if by_client else []),
            ]
        rows = []
        for client, task in members:
            loss, scores = self.losses.get((client, task)), self.scores.get((client, task))
            cells = ["", ""]
            if scores:
                main = headline(self.run.task_set[task], scores)
                cells = [metric_heading(main.metric, main.higher_is_better), score_text(main.unit, main.value)]
            rows.append([client, task, _shown(loss), *cells])
        names = ["client", "task", "loss", "metric", "score"]
        drop, wraps = ["metric", "loss"], {"client": 7, "task": 6}
        return [TextTable(names, rows, right=["loss", "score"], drop=drop, wraps=wraps)]

    def _before(self) -> list[Text]:
        """What to show before the first event."""
        baseline = self.run.baseline
        if self.done or not baseline.path.is_dir() or baseline.finished:
            return []
        return [Text(f"The Local baseline is trained first: fedhca2 watch {shlex.quote(str(baseline.path))}")]


class ComparisonStatus(NamedTuple):
    """The runs of a comparison as a table, and whether all of them are finished."""

    table: TextTable
    finished: bool


def comparison_status(folder: Path) -> ComparisonStatus:
    """Read how far the runs of a comparison are."""
    rows, all_finished = [], True
    for path in known_runs(folder):
        run = RunFiles(path)
        if run.finished:
            state = _outcome(run)
        else:
            all_finished = False
            done = max((event["round"] + 1 for event in run.of("round")), default=0)
            state = f"round {done} of {run.rounds}{'' if in_use(path) else ', stopped'}"
        rows.append([escape(path.relative_to(folder).as_posix()), state])
    return ComparisonStatus(TextTable(["run", "state"], rows, wraps={"run": 12, "state": 12}), all_finished)


class ParallelConsole:
    """Shows which runs are active, their progress, and their outcomes."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console = console
        self.total, self.done = total, done
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.said = monotonic()

    def __enter__(self) -> "ParallelConsole":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def began(self, how: str) -> None:
        """Print how the runs share the GPU."""
        self.console.print(f"runs share the GPU {how}", highlight=False, soft_wrap=True)

    def put_back(self, run: ComparisonRun, why: str) -> None:
        """Print a line for a run that continues later."""
        later = "continues alone when the others have finished"
        self.console.print(f"{run.name}: [yellow]{why}[/]; {later} ({log_file(run)})", highlight=False, soft_wrap=True)

    def ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        """Print a line for a finished run."""
        self.done += 1
        what = f"[red]failed: [/]{escape(fault)} ({log_file(run)})" if fault else _outcome(RunFiles.open(run.folder))
        self.console.print(
            f"{self.done}/{self.total}  {run.name}: {what}, {seconds:.0f} s", highlight=False, soft_wrap=True
        )

    def looked(self, running: Sequence[RunProcess], waiting: int) -> None:
        """Show the current state."""
        more = f"{waiting} more waiting{'' if running else ' for memory'}"
        if self.console.is_terminal:
            table = Table.grid(Column(overflow="fold"), padding=(0, 2))
            for one in running:
                table.add_row(one.run.name, one.last_line or "starting", f"{one.seconds:.0f} s")
            table.add_row(more)
            self.live.update(table, refresh=True)
        elif monotonic() - self.said > EVERY:
            self.said = monotonic()
            now = [f"{one.run.name}: {one.last_line or 'starting'}" for one in running]
            self.console.print("; ".join([*now, more]), highlight=False, soft_wrap=True)


def _outcome(run: RunFiles) -> str:
    gain = (run.recorded_result or {}).get("delta_m")
    return "finished" if gain is None else f"Δm {gain_text(gain)}"
