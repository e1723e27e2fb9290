"""The round loop: the papers' Algorithm 1, for every method and every fleet."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from fedhca2.clients import BatchWatch
from fedhca2.federation.gate import Expected, fault_of
from fedhca2.federation.server import Server
from fedhca2.messages import Order, Profile, Reply
from fedhca2.run_folder.records import Progress, Watcher
from fedhca2.run_folder.result import Scores
from fedhca2.run_folder.waiting import Pending

Choose = Callable[[Iterable[str], int], Iterable[str]]  # selects the clients of this round


class Fleet(Protocol):
    """Clients that carry out orders, wherever they run: all the round loop knows about them."""

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The clients that take part."""

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Give each client its order and wait for the replies; a client that does not answer has none."""


@dataclass(frozen=True)
class Outcome:
    """Scores of the final models, and the clients without scores, with the reason."""

    scores: Scores
    missing: Mapping[str, str] = field(default_factory=dict)


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
    choose: Choose = lambda clients, round: clients,
    compare_every: int = 0,
    progress: Progress | None = None,
    passed: Callable[[Progress], None] = lambda progress: None,
    wait: Callable[[Pending], Pending] = lambda pending: pending,
) -> Outcome:
    """Train up to this many rounds, from the start or from a saved state, and evaluate the final models.

    Every `compare_every` rounds clients also report what the server's rows did to their losses. `passed` gets the state
    of the run after every round. Rows for a client wait until it takes part again, where `wait` puts them.
    """
    progress = progress or Progress(server.start())
    for round in range(progress.state.round, rounds):
        began = perf_counter()
        orders = {
            client: Order(
                round,
                rows := progress.pending.get(client, {}),
                compare=bool(rows) and is_due(round, compare_every),
                evaluate=is_due(round, evaluate_every),
                upload=server.uploads(client, round),
            )
            for client in choose(list(fleet.profiles), round)
        }
        replies = fleet.perform(orders, watcher.batch)
        state, deliveries, record = server.step(progress.state, replies.values(), progress.pending)
        _tell(watcher, orders, replies, record.refused)
        waiting = wait({client: rows for client, rows in progress.pending.items() if client not in orders})
        progress = Progress(state, {**waiting, **deliveries})
        watcher.aggregated(round, record, perf_counter() - began)
        passed(progress)
    orders = {
        client: Order(
            rounds,
            rows := progress.pending.get(client, {}),
            finish=True,
            compare=bool(rows) and is_due(rounds, compare_every),
            evaluate=True,
            train=False,
        )
        for client in fleet.profiles
    }
    replies = fleet.perform(orders, watcher.batch)
    expected = Expected(rounds, server.profiles, {}, {}, final=True, tasks=server.tasks)
    missing = {client: why for client, reply in replies.items() if (why := fault_of(reply, expected))}
    _tell(watcher, orders, replies, missing)
    used = {client: reply.metrics for client, reply in replies.items() if client not in missing}
    return Outcome({client: {task: {**scores[task]} for task in scores} for client, scores in used.items()}, missing)


def _tell(watcher: Watcher, orders: Mapping[str, Order], replies: Mapping[str, Reply], refused: Container[str]) -> None:
    """Notify the watcher of replies, except refused ones."""
    for client, reply in replies.items():
        if client in orders and client not in refused:
            watcher.replied(orders[client], reply)
