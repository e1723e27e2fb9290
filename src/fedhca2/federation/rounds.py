"""The round loop: the papers' Algorithm 1, for every method and every fleet."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, ClassVar, Protocol

from fedhca2.clients import BatchWatch
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.guard import Guard
from fedhca2.federation.server import Server
from fedhca2.federation.sum_server import SecureSummer
from fedhca2.messages import Order, Profile, Reply
from fedhca2.metrics import rise
from fedhca2.run_folder.records import Progress, Watcher
from fedhca2.run_folder.result import Scores, task_scores
from fedhca2.run_folder.writer import RunFolder
from fedhca2.tasks import TaskSet

Choose = Callable[[Iterable[str], int], Iterable[str]]  # selects the clients of this round


class Fleet(Protocol):
    """The clients of a run, wherever they are."""

    checkpoint_first: bool  # save the clients before their first round
    checkpoint_every: int  # rounds between checkpoints; 0: only at the end
    stops_at_once: bool  # whether a signal may end a round, since its clients keep what they have done
    files: Mapping[str, Any]  # to write to the run's folder: plain data by file name
    skipped: Mapping[str, list[str]]  # unreadable files, by client
    absent: Mapping[str, str]  # who had no reply in the last round, and why
    profiles: Mapping[str, Profile]  # the clients that take part; it grows when a client joins

    @property
    def expected(self) -> Mapping[str, Profile]:
        """All clients that may take part."""

    @property
    def shards(self) -> Mapping[str, Shard]:
        """Each client's images."""

    @property
    def images(self) -> Mapping[str, int]:
        """How many images clients have, as far as that need not be believed."""

    @property
    def summer(self) -> SecureSummer | None:
        """Adds up rows that nobody may see, with secure aggregation."""

    @property
    def device(self) -> str:
        """The device that the result names."""

    def baseline(self, experiment: Experiment, folder: RunFolder) -> "Fleet":
        """The same clients for the Local baseline of this run, in a folder of its own."""

    def gather(self) -> None:
        """Wait until enough clients take part, in a rewound folder."""

    def warm_up(self) -> None:
        """Do what would delay the first round."""

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Give each client its order and wait for the replies; a client that does not answer has none."""

    def traffic(self, order: Order, reply: Reply) -> tuple[int, int]:
        """The bytes up and down of an order and its reply."""

    def save(self, folder: Path) -> Mapping[str, str]:
        """Write every client's state and return the checksums."""

    def finish(self) -> None:
        """Save the trained models."""

    def close(self) -> None:
        """Let go of the clients. Closing twice does nothing."""


class Engine(Protocol):
    """Where clients run."""

    file_names: ClassVar[Sequence[str]]  # of the files that its fleets keep in the run's folder
    settings_stay: ClassVar[bool]  # whether a resumed run must keep exactly the settings it started with

    def open(self, experiment: Experiment, folder: RunFolder) -> Fleet:
        """Open the clients in the current state of the run, and change nothing in its folder.

        Raises UserError if something is missing, or if the run cannot continue.
        """


@dataclass(frozen=True)
class Outcome:
    """Scores of the final models, and the clients without scores, with the reason."""

    scores: Scores
    missing: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 0  # fewer than planned if training stopped early


def has_stalled(history: Sequence[Scores], patience: int | None, tasks: TaskSet) -> bool:
    """Whether the mean score of the last evaluations, as many as `patience`, was never the best so far.

    Each score counts relative to the first one of its client and task.
    """
    if patience is None:
        return False
    first: dict[tuple[str, str], float] = {}
    means = [-inf]
    for scores in filter(None, history):
        rises = []
        for one in task_scores(scores, None, tasks):
            start = first.setdefault((one.client, one.task), one.ours.value)
            rises.append(rise(one.ours.value, start, one.ours.higher_is_better))
        means.append(fmean(rises))
    return len(means) - 1 - means.index(max(means)) >= patience


def is_due(done: int, every: int) -> bool:
    """Whether something that happens every `every` rounds is due after `done` rounds; never if `every` is 0."""
    return done > 0 and every > 0 and done % every == 0


def run_rounds(
    server: Server,
    fleet: Fleet,
    rounds: int,
    evaluate_every: int,
    watcher: Watcher,
    *,
    guard: Guard | None = None,
    choose: Choose = lambda clients, round: clients,
    compare_every: int = 0,
    is_over: Callable[[Scores], bool] = lambda scores: False,
    progress: Progress | None = None,
    on_round_end: Callable[[Progress, bool], None] = lambda progress, is_last: None,
) -> Outcome:
    """Train up to this many rounds, and evaluate the final models.

    :param evaluate_every: clients report scores every so many rounds; 0: only at the end.
    :param guard: checks replies before the server gets them; by default only their form.
    :param choose: selects the clients of a round.
    :param compare_every: every so many rounds, clients also report what the server's rows did to their losses.
    :param is_over: gets the scores of every evaluation, and says whether to stop after that round.
    :param progress: a saved state to continue from.
    :param on_round_end: gets the state of the run after every round, and whether training stops early.
    """
    progress, guard = progress or Progress(server.start()), guard or Guard(server)

    def make_order(progress: Progress, client: str, number: int) -> Order:
        rows = progress.pending.get(client, {})
        compare, evaluate = bool(rows) and is_due(number, compare_every), is_due(number, evaluate_every)
        return Order(number, rows, compare=compare, evaluate=evaluate, upload=server.uploads(client, number))

    for round in range(progress.state.round, rounds):
        began, at_work = perf_counter(), progress.at_work
        chosen = choose([client for client in fleet.profiles if client not in at_work], round)
        orders = {client: make_order(progress, client, at_work.get(client, round)) for client in (*at_work, *chosen)}
        delays = server.late.delays if server.late else {}  # of simulated late replies
        due = {client: order for client, order in orders.items() if round - order.round >= delays.get(client, 0)}
        replies = fleet.perform(due, watcher.batch)
        state, deliveries, record = guard.step(progress.state, replies.values(), progress.pending, at_work)
        _notify(watcher, orders, replies, record.refused)
        left = {client: order.round for client, order in orders.items() if server.late and client not in replies}
        away = {client: rows for client, rows in progress.pending.items() if client not in orders or client in left}
        progress = Progress(state, {**away, **deliveries}, left)
        record = replace(record, refused={**record.refused, **fleet.absent, **record.dropped})
        watcher.aggregated(round, record, perf_counter() - began)
        scores = {client: reply.metrics for client, reply in replies.items() if reply.metrics}
        stops = is_over({client: each for client, each in scores.items() if client not in record.refused})
        on_round_end(progress, stops)
        if stops:
            rounds = progress.state.round
            break
    if progress.at_work:  # what they send is in no round any more, but their models are trained
        orders = {client: make_order(progress, client, number) for client, number in progress.at_work.items()}
        _notify(watcher, orders, fleet.perform(orders, watcher.batch), ())
    pending = {client: rows for client, rows in progress.pending.items() if client not in progress.at_work}
    progress = Progress(progress.state, pending)
    orders = {
        client: replace(make_order(progress, client, rounds), finish=True, evaluate=True, train=False, upload={})
        for client in fleet.profiles
    }
    replies = fleet.perform(orders, watcher.batch)
    missing = guard.faults_at_end(rounds, replies)
    _notify(watcher, orders, replies, missing)
    used = {client: reply.metrics for client, reply in replies.items() if client not in missing}
    missing = {client: why for client, why in fleet.absent.items() if client in server.mixable} | missing
    return Outcome(used, missing, rounds)


def _notify(
    watcher: Watcher, orders: Mapping[str, Order], replies: Mapping[str, Reply], refused: Container[str]
) -> None:
    """Notify the watcher of replies, except refused ones."""
    for client, reply in replies.items():
        if client in orders and client not in refused:
            watcher.replied(orders[client], reply)
