"""The round loop: the papers' Algorithm 1, for every method and every fleet."""

from collections.abc import Mapping
from time import perf_counter
from typing import Protocol

from torch import Tensor

from fedhca2.federation.fleet import Fleet
from fedhca2.federation.server import Server, ServerRecord
from fedhca2.messages import Delivery, Order, Reply
from fedhca2.params import Slot

Scores = dict[str, dict[str, dict[str, float]]]  # {client: {task: {metric: value}}}


class Watcher(Protocol):
    """Whoever wants to know how a run goes."""

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """A client has trained on a batch of this round."""

    def replied(self, order: Order, reply: Reply) -> None:
        """A client has answered an order."""

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """A round is over, after so many seconds."""


def run_rounds(server: Server, fleet: Fleet, rounds: int, evaluate_every: int, watcher: Watcher) -> Scores:
    """Train for so many rounds; returns every client's scores with its final model."""
    state = server.start()
    deliveries: Mapping[str, Mapping[Slot, Delivery]] = {}
    for round in range(rounds):
        began = perf_counter()
        evaluate = evaluate_every > 0 and round > 0 and round % evaluate_every == 0
        orders = {
            client: Order(round, deliveries.get(client, {}), evaluate=evaluate, upload=server.method.uploads(round))
            for client in fleet.profiles
        }
        replies = _ask(fleet, orders, watcher)
        state, deliveries, record = server.step(state, replies.values())
        watcher.aggregated(round, record, perf_counter() - began)
    orders = {
        client: Order(rounds, deliveries.get(client, {}), finish=True, evaluate=True, train=False)
        for client in fleet.profiles
    }
    replies = _ask(fleet, orders, watcher)
    return {name: {task: dict(scores) for task, scores in reply.metrics.items()} for name, reply in replies.items()}


def _ask(fleet: Fleet, orders: Mapping[str, Order], watcher: Watcher) -> Mapping[str, Reply]:
    replies = fleet.perform(orders, watcher.batch)
    for client, reply in replies.items():
        watcher.replied(orders[client], reply)
    return replies
