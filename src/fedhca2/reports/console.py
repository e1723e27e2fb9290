"""Progress in the terminal or a notebook: of a run, of a run or comparison that is followed, and of parallel runs."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape as escape_html
from math import isfinite
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from rich import progress
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from fedhca2.configs import built_in_file
from fedhca2.experiment import Experiment, Shard
from fedhca2.experiment.clients import client_kind
from fedhca2.federation.comparison_runs import ComparisonRun
from fedhca2.federation.parallel_runs import ParallelWatcher, RunProcess, log_file
from fedhca2.messages import Order, Reply
from fedhca2.reports.tables import MAX_CLIENT_ROWS, TextTable, heading_of, kinds_table, text_of
from fedhca2.run_folder.event_log import Event, parse_event
from fedhca2.run_folder.folder import in_use
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import ServerRecord, Watcher
from fedhca2.run_folder.result import Scores, headline
from fedhca2.words import UNKNOWN, counted, duration_text, gain_text

PAUSE_S = 0.5  # between two reads of a followed run, or two updates within a round
MAX_BARS = 12  # clients that are shown one by one


class _Teller(Watcher):
    """Remembers the losses of a round's clients, and tells what went wrong."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self.tell, self.losses = tell, dict[str, float]()

    def replied(self, order: Order, reply: Reply) -> None:
        """Remember a client's loss, and tell what it declined."""
        if reply.declined:
            self.tell(f"round {order.round + 1}: {reply.client} declined: {reply.declined}")
        if reply.losses:
            self.losses[reply.client] = sum(reply.losses.values())

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Tell whose replies do not count, or less."""
        for client, why in record.refused.items():
            self.tell(f"round {round + 1}: {client} was excluded: {why}")
        for client, late in record.late.items():
            self.tell(f"round {round + 1}: {client} was {counted(late.rounds, 'round')} late; weight {late.weight:.2f}")


class ConsoleWatcher(_Teller):
    """Shows rounds, clients, batches, losses and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda fault: console.print(Text(fault, "yellow")))
        self.console = console
        columns = [progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn()]
        times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
        columns += [progress.TextColumn("{task.fields[note]}"), *times]
        self.progress = progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.rounds: progress.TaskID | None = None
        self.clients: dict[str, progress.TaskID] = {}
        self.last_read = 0.0  # when a loss was last read

    def __enter__(self) -> "ConsoleWatcher":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Print what will be trained."""
        self.experiment, self.estimated = experiment, False
        name, samples = experiment.method_name, sum(len(shard.train) for shard in shards.values())
        kind = "training sample" if any(data.are_arrays for data in experiment.data.values()) else "training image"
        about = counted(len(shards), "client"), counted(samples, kind), counted(experiment.rounds, "round")
        self.console.print(f"[bold]{name}[/]: {', '.join(about)}, seed {experiment.seed}")
        for task in self.progress.task_ids:
            self.progress.remove_task(task)
        self.rounds = self.progress.add_task(f"{name}: rounds", total=experiment.rounds, note="")
        self.clients = {}

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Move a client's bar; of many clients, those that have finished leave."""
        waited = monotonic() - self.last_read
        if not self.console.is_terminal or (waited < 0.2 and done < total):  # reading a loss waits for the GPU
            return
        self.last_read = monotonic()
        if client not in self.clients:
            self.clients[client] = self.progress.add_task(f"  {client}", total=total, note="")
        self.progress.update(self.clients[client], completed=done, total=total, note=f"loss {float(loss):.3f}")
        if done == total and len(self.clients) > MAX_BARS:
            self.progress.remove_task(self.clients.pop(client))

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Move the bar of rounds; without a terminal print a line."""
        if self.rounds is not None:
            self.progress.update(self.rounds, completed=round + 1)
        for bar in self.clients.values():
            self.progress.remove_task(bar)
        self.clients.clear()
        super().aggregated(round, record, seconds)
        total = self.experiment.rounds
        if not self.console.is_terminal:
            state = f"{self.experiment.method_name} round {round + 1}/{total}  {seconds:.1f} s"
            self.console.print(f"{state}  loss: {loss_text(self.losses)}", soft_wrap=True)
        self.losses.clear()
        rounds = total - round - 1
        if rounds * seconds > 300 and not self.estimated:
            smaller = f"{self.experiment.name}_small"
            hint = f" For a quick try: fedhca2 run {smaller}" if built_in_file(smaller) else ""
            time_left = f"About {duration_text(rounds * seconds)} left ({counted(rounds, 'round')})."
            self.console.print(time_left + hint, highlight=False)
        self.estimated = True


def loss_text(losses: Mapping[str, float]) -> str:
    """The losses of a round's clients in a line: each, or of many the median and both ends.

    >>> loss_text({"road": 0.5, "home": 2})
    'road 0.500  home 2.000'
    >>> loss_text({f"site-{number}": number / 10 for number in range(13)})
    '13 clients, median 0.600, lowest 0.000 (site-0), highest 1.200 (site-12)'
    """
    if len(losses) <= MAX_BARS:
        return "  ".join(f"{client} {loss:.3f}" for client, loss in losses.items())
    ranked = sorted(losses, key=lambda client: losses[client])
    middle, low, high = median(losses.values()), losses[ranked[0]], losses[ranked[-1]]
    ends = f"lowest {low:.3f} ({ranked[0]}), highest {high:.3f} ({ranked[-1]})"
    return f"{len(losses):,} clients, median {middle:.3f}, {ends}"


class NotebookWatcher(_Teller):
    """Shows the rounds, the time left, the last losses, and what went wrong."""

    def __init__(self) -> None:
        super().__init__(lambda fault: self._notes.append(fault))
        self._bar: Any = None

    def __enter__(self) -> "NotebookWatcher":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._bar:
            self._state += ", stopped" if kind else ", finished"
            self._bar.update(self)

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Show a new bar."""
        from IPython.display import display

        self._clients, self._total = len(shards), experiment.rounds
        self._name = f"{experiment.method_name}, {counted(len(shards), 'client')}"
        self._done, self._seconds, self._shown = 0, list[float](), monotonic()
        self._parts: dict[str, float] = {}  # of this round, by client
        self._state, self._notes = "starting", list[str]()
        self._bar = display(self, display_id=True)

    def _repr_html_(self) -> str:
        value = self._done + sum(self._parts.values()) / max(self._clients, 1)
        bar = f'<progress value="{value:.3f}" max="{self._total}" style="width: 20em"></progress>'
        lines = [f"<b>{escape_html(self._name)}</b> {bar} {escape_html(self._state)}", *map(escape_html, self._notes)]
        return f"<div>{'<br>'.join(lines)}</div>"

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Move the bar a part of a round."""
        self._parts[client] = done / total
        if monotonic() - self._shown > PAUSE_S:
            self._shown = monotonic()
            self._bar.update(self)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Move the bar to the end of the round."""
        self._done, self._parts = round + 1, {}
        self._seconds.append(seconds)
        super().aggregated(round, record, seconds)
        seconds_left = (self._total - self._done) * sum(self._seconds) / len(self._seconds)
        time_left = f", {duration_text(seconds_left)} left" if seconds_left else ""
        self._state = f"round {self._done} of {self._total}; loss: {loss_text(self.losses)}{time_left}"
        self.losses.clear()
        self._bar.update(self)


def watch_here(console: Console) -> ConsoleWatcher | NotebookWatcher:
    """What shows the progress of a run: a bar in a notebook, otherwise bars in a terminal or lines in a pipe."""
    return NotebookWatcher() if console.is_jupyter and not console.quiet else ConsoleWatcher(console)


class LiveStatus:
    """Rounds done, time left, and every client's last loss and score."""

    def __init__(self, run: RunFiles) -> None:
        _ = run.task_set  # what it refuses
        self.run, self.done, self.seconds = run, 0, dict[int, float]()
        self.losses: dict[tuple[str, str], float] = {}  # by client and task
        self.scores: Scores = {}
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
                tasks = self.scores.setdefault(event["client"], {})
                tasks.setdefault(event["task"], {})[event["metric"]] = event["value"]
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
        excluded = [Text(f"{client} was excluded: {why}", "yellow") for client, why in self.refused.items()]
        bar = Padding(ProgressBar(self.run.rounds, self.done, width=60), expand=False)  # which ends its line
        baseline, hint = self.run.baseline, list[Text]()
        if not self.done and baseline.path.is_dir() and not baseline.finished:
            hint = [Text(f"The local baseline is trained first: fedhca2 watch {shlex.quote(str(baseline.path))}")]
        return Group(Text(self.state, "bold"), bar, *hint, *self._clients(), *excluded)

    def _clients(self) -> list[Text | TextTable]:
        """A table of all clients or, if they are many, of their groups and a line about their losses."""
        scored = [(client, task) for client, tasks in self.scores.items() for task in tasks]
        members = list(dict.fromkeys([*self.losses, *scored]))
        if len(members) > MAX_CLIENT_ROWS:
            losses = {f"{client}/{task}": loss for (client, task), loss in self.losses.items()}
            kinds = [kinds_table(self.scores, self.run.task_set, self.kinds)] if self.scores else []
            return [Text(f"last losses: {loss_text(losses)}"), *kinds]
        rows = []
        for client, task in members:
            loss, scores = self.losses.get((client, task)), self.scores.get(client, {}).get(task)
            shown = "" if loss is None else f"{loss:.4f}" if isfinite(loss) else UNKNOWN
            main = headline(self.run.task_set[task], scores) if scores else None
            rows.append([client, task, shown, *([heading_of(main), text_of(main)] if main else ["", ""])])
        names, drop, wraps = ["client", "task", "loss", "metric", "score"], ["metric", "loss"], {"client": 7, "task": 6}
        return [TextTable(names, rows, right=["loss", "score"], drop=drop, wraps=wraps)]


def follow(run: Path, *, wait: bool = True, pause: Callable[[float], None] = sleep) -> Iterator[list[Event]]:
    """Yield lists of new events until no process works on the run, or with `wait=False` until there are none left.

    A resumed run may drop the events of an unfinished round, and log others instead: if the last line that was
    read is no longer there, all events are read again.
    """
    path, offset, last = RunFiles(run).events_file, 0, b""
    while True:
        ended = RunFiles(run).finished or not in_use(run)  # read first: nothing is written after it
        lines = []
        if path.is_file():
            with path.open("rb") as file:
                file.seek(offset - len(last))
                if file.read(len(last)) != last:
                    offset, last = file.seek(0), b""
                lines = [line for line in file if line.endswith(b"\n")]
            offset, last = offset + sum(map(len, lines)), (lines or [last])[-1]
        yield [parse_event(line, str(path)) for line in lines]
        if ended or not wait:
            return
        pause(PAUSE_S)


class ParallelConsole(ParallelWatcher):
    """Shows which runs are active, their progress, and their outcomes."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console = console
        self.total, self.done = total, done
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.last_printed = monotonic()

    def __enter__(self) -> "ParallelConsole":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def began(self, how: str) -> None:
        """Print how the runs share the GPU."""
        self._print(f"GPU sharing: {how}")

    def ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        """Print a line for a finished run."""
        self.done += 1
        result = None if fault else RunFiles.open(run.folder).recorded_result
        what = "finished" if result is None or result.delta_m is None else f"Δm {gain_text(result.delta_m)}"
        what = f"[red]failed: [/]{escape(fault)} ({log_file(run)})" if fault else what
        self._print(f"{self.done}/{self.total}  {run.name}: {what}, {seconds:.0f} s")

    def polled(self, running: Sequence[RunProcess], waiting: int) -> None:
        """Show the current state."""
        more = f"{waiting} more waiting"
        if self.console.is_terminal:
            table = Table.grid(Column(overflow="fold"), padding=(0, 2))
            for one in running:
                table.add_row(one.run.name, one.last_line or "starting", f"{one.seconds:.0f} s")
            table.add_row(more)
            self.live.update(table, refresh=True)
        elif monotonic() - self.last_printed > 60:
            self.last_printed = monotonic()
            now = [f"{one.run.name}: {one.last_line or 'starting'}" for one in running]
            self._print("; ".join([*now, more]))

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)
