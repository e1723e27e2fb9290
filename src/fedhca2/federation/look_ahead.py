"""Who helps whom: what each client's encoder update would do for the others, measured after some rounds."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import nan
from time import perf_counter

import torch
from torch import Tensor

from fedhca2.aggregation import Member, Rows
from fedhca2.clients import BatchWatch, Client
from fedhca2.clients.evaluation import look_ahead
from fedhca2.experiment import Diagnostics, Experiment
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import Fleet, is_due
from fedhca2.messages import Kind, Order, Reply
from fedhca2.params import ENCODER
from fedhca2.run_folder.event_log import EventLog
from fedhca2.run_folder.records import ServerRecord, Watcher

MANY = 100  # evaluations in a round, from which a run announces them
log = logging.getLogger("fedhca2.diagnostics")


def look_ahead_watchers(experiment: Experiment, fleet: Fleet, events: EventLog, watch: BatchWatch) -> list[Watcher]:
    """Measures who helps whom, if the experiment asks for it and clients that send encoders are here.

    Warns of a large number of evaluations.
    """
    settings = experiment.diagnostics
    if settings is None or experiment.resolved_method.encoder is None or not isinstance(fleet, InProcess):
        return []
    look_ahead = LookAhead(fleet, settings, experiment.seed, events, watch)
    pairs = sum(len(group) * (len(group) - 1) for group in look_ahead.groups(fleet.profiles))
    times = experiment.rounds // settings.every
    if pairs > MANY and times:
        bounds = "diagnostics.clients and diagnostics.images bound them"
        log.warning("diagnostics: %d evaluations in each of %d rounds; %s", pairs, times, bounds)
    return [look_ahead]


@dataclass
class LookAhead(Watcher):
    """Measures and logs the transfer Z between all pairs of clients that trained in a round.

    Z_{i→j} = 1 − L_j(θ_j + Δ_i) / L_j(θ_j), where θ_j is client j's model after its own training in the round, to
    which the server's rows are added next, Δ_i is the encoder update that client i sent, and L_j is the loss that j
    trains on, over its validation images. Only clients whose encoders have one layout form pairs.
    """

    fleet: InProcess
    settings: Diagnostics
    seed: int
    events: EventLog
    watch: BatchWatch
    sent: dict[str, tuple[Kind, Tensor]] = field(default_factory=dict)

    def replied(self, order: Order, reply: Reply) -> None:
        """Keep the row of a client that trained in a measured round."""
        if ENCODER in reply.rows and is_due(order.round + 1, self.settings.every):
            self.sent[reply.client] = order.upload["encoder"], reply.rows[ENCODER]

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Measure the pairs of a round, before anybody takes the server's rows."""
        for group in self.groups(self.sent):
            self._measure(round, group)
        self.sent.clear()

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """The chosen clients, grouped by the layout of their encoders; a client without a partner is left out."""
        groups: dict[tuple[object, str], list[str]] = {}
        for name in self.settings.choose(names, self.seed):
            profile = self.fleet.profiles[name]
            groups.setdefault((profile.layouts.get(ENCODER), profile.backbone), []).append(name)
        return [group for group in groups.values() if len(group) > 1]

    def _measure(self, round: int, members: list[str]) -> None:
        began = perf_counter()
        updates = {name: self._update(name) for name in members}
        layout = self.fleet.profiles[members[0]].layouts[ENCODER]
        rows = Rows([Member(name, "") for name in members], layout, list(updates.values()))

        def work(client: Client) -> tuple[float, dict[str, float]]:
            others = {name: update for name, update in updates.items() if name != client.name}
            return look_ahead(client, others, self.watch)

        measured = self.fleet.each(members, work, changed=False)
        losses = {name: loss for name, (loss, _) in measured.items()}
        transfer = [
            [1 - measured[to][1][giver] / losses[to] if giver != to and losses[to] > 0 else nan for to in members]
            for giver in members
        ]
        self.events.log_matrices(
            "transfer",
            round,
            {"products": rows.products("rows", whole=True)[0], "transfer": torch.tensor(transfer)},
            members=members,
            losses=[losses[name] for name in members],
            seconds=perf_counter() - began,
        )

    def _update(self, client: str) -> Tensor:
        """What training did to a client's encoder, as the server got it."""
        kind, row = self.sent[client]
        if kind == "updates":
            return row
        with self.fleet.store.borrow(client, changed=False) as borrowed:
            return torch.sub(row, borrowed.exchange.start[ENCODER].to(row.device))
