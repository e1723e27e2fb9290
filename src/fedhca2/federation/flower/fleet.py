"""The fleet over a network: orders wait for their sites, are repeated, and have a deadline."""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Generic, TypeVar

import torch
from flwr.app import RecordDict
from flwr.serverapp.grid import Grid
from torch import Tensor

from fedhca2.aggregation import MappedRow
from fedhca2.clients import BatchWatch
from fedhca2.experiment import Experiment
from fedhca2.federation.blind import Sum, Summed, seen_of
from fedhca2.federation.flower.answers import Allowance, Gone, SiteAnswer
from fedhca2.federation.flower.deploy.consent import Invitation
from fedhca2.federation.flower.deploy.secagg_server import SecureSum, read_keys
from fedhca2.federation.flower.records import DTYPES, MASKED, STAGE, Header, decode_reply, encode_orders, pack
from fedhca2.federation.flower.site_registry import SiteRegistry
from fedhca2.federation.flower.wait import (
    LOST_AFTER,
    TIMES_AS_LONG,
    NetworkSettings,
    TooFewClientsError,
    Transmission,
    Wait,
    by_reason,
)
from fedhca2.federation.foreign_text import Refused, shown
from fedhca2.messages import Order, Profile, Reply

GRACE = 10.0  # seconds for further clients to introduce themselves when there are already enough
AWAY, LATE = "offline", "no reply in time"
log = logging.getLogger("fedhca2.server")
T = TypeVar("T")


@dataclass
class _Errand(Generic[T]):
    """A message on its way, which waits for its site until the deadline."""

    content: RecordDict
    allowance: Allowance  # for the answer
    read: Callable[[SiteAnswer], T | Refused]
    sending: Transmission = field(default_factory=Transmission)
    took: float | None = None  # the seconds until its answer
    failures: int = 0
    why: str = AWAY  # why there is no answer yet
    answer: T | None = None

    @property
    def state(self) -> str:
        """What it is waiting for."""
        return self.why if self.sending.given is None else "no reply yet"


class FlowerFleet:
    """Clients at sites. `absent` names clients that fail to answer in time, with the reason."""

    def __init__(self, grid: Grid, experiment: Experiment, terms: NetworkSettings, run: str, folder: Path) -> None:
        self.experiment, self.terms, self.folder = experiment, terms, folder
        self.invitation = Invitation.for_experiment(experiment, run)
        self.registry = SiteRegistry(grid, experiment, terms, self.invitation)
        self.quorum = terms.min_clients or len(experiment.specs)
        self.absent: Mapping[str, str] = {}
        self.keys: dict[str, tuple[str, str]] = {}  # sent with the clients' last replies, for a sum
        self.beside: dict[str, tuple[int, int]] = {}  # bytes up and down besides orders and replies, by client

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The clients that have introduced themselves, in the experiment's order."""
        return self.registry.known

    @property
    def expected(self) -> Mapping[str, Profile]:
        """All clients of the experiment."""
        return self.registry.expected

    @property
    def images(self) -> Mapping[str, int]:
        """How many images clients may have: what they say is not believed."""
        return self.experiment.guard.images

    @property
    def adder(self) -> "FlowerFleet | None":
        """These clients, if they add up rows that nobody may see."""
        return self if self.experiment.secure_aggregation else None

    def gather(self) -> None:
        """Wait for as many clients as a round needs, and briefly for the others."""
        wait = Wait(self.terms.deadline)
        while len(self.registry.known) < self.quorum:
            if wait.is_over or (not self.terms.await_refused and self.registry.all_have_answered):
                raise TooFewClientsError(self._too_few(len(self.registry.known), "have introduced themselves", wait))
            self.registry.meet(wait)
            wait.tell(self.registry.missing())
        grace = Wait(GRACE)
        while not grace.is_over and self.registry.expects_introductions:
            self.registry.meet(grace)

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Give every client its order, and collect the replies that arrive before the deadline.

        An order waits for a site that is offline, and is repeated to one that returns, fails, or is silent for long.
        Once enough clients have answered, it does not wait for sites that are offline.
        """
        headers = {client: {**self._invite(client), "wire": self.terms.wire} for client in orders}
        contents = encode_orders(orders, self.terms.wire, headers)
        errands = {
            client: _Errand(contents[client], self._allowance(client, order), partial(self._read_reply, client))
            for client, order in orders.items()
        }
        needed = min(self.quorum, len(orders))
        wait = Wait(self.terms.deadline)
        replies, away = self._run(errands, needed, wait)
        self.absent = {**self.registry.refused, **self.registry.missing(), **away}
        if len(replies) < needed:
            raise TooFewClientsError(self._too_few(len(replies), "have answered", wait))
        return replies

    def warm_up(self) -> None:
        """Sites get ready by themselves."""

    def traffic(self, order: Order, reply: Reply) -> tuple[int, int]:
        """The bytes up and down of an order, its reply, and the messages of secure aggregation."""
        width = DTYPES[self.terms.wire].itemsize
        received = [each.row for delivery in order.deliveries.values() for each in delivery.addends]
        up, down = self.beside.pop(reply.client, (0, 0))
        up += reply.nbytes + sum(row.numel() * width - row.nbytes for row in reply.rows.values())
        down += order.nbytes + sum(row.numel() * width - row.nbytes for row in received)
        return up, down

    def add(self, round: int, sums: Sequence[Sum]) -> Summed:
        """Let clients add up the rows of their last replies; see `secagg_server`."""
        self.beside = {}
        settings = self.experiment.secure_aggregation
        if settings is None:
            raise ValueError("an experiment should have secure_aggregation if its clients add up rows, found none")
        return SecureSum(settings, partial(self._ask, round, settings.seconds), self.keys, sums).add()

    def _ask(
        self,
        round: int,
        seconds: float,
        stage: str,
        requests: Mapping[str, Mapping[str, Any]],
        read: Callable[[SiteAnswer], T],
        least: int,
        values: Mapping[str, int],
    ) -> tuple[dict[str, T], dict[str, str]]:
        """One stage of secure aggregation."""
        errands = {}
        for client, request in requests.items():
            header = {**self._invite(client), STAGE: stage, "round": round, "request": request}
            allowance = Allowance(values.get(client, 0), MASKED)
            errands[client] = _Errand(pack(header), allowance, partial(self._read_stage, client, read))
            self._count(client, down=len(json.dumps(request)))
        return self._run(errands, least, Wait(seconds), invite=False)  # who builds a client is late for the stage

    def _run(
        self, errands: Mapping[str, _Errand[T]], needed: int, wait: Wait, *, invite: bool = True
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Deliver every message and collect its answer; returns the answers, and why others are missing."""
        while out := {client: errand for client, errand in errands.items() if self._is_out(errand)}:
            enough = sum(errand.answer is not None for errand in errands.values()) >= needed
            if wait.is_over or (enough and all(self.registry.since(client) is None for client in out)):
                break
            lost_after = self._lost_after(errands.values())
            for client, errand in out.items():
                self._give(client, errand, wait, lost_after)
            for client, answer in self.registry.exchange(wait, invite=invite):
                self._take(client, out[client], answer)
            wait.tell({client: errand.state for client, errand in out.items() if errand.answer is None})
        self.registry.forget_orders()
        answers = {client: errand.answer for client, errand in errands.items() if errand.answer is not None}
        return answers, {client: errand.why for client, errand in errands.items() if client not in answers}

    def save(self, folder: Path) -> Mapping[str, str]:
        """List who has taken part; sites keep their clients' states themselves."""
        return dict.fromkeys(self.registry.known, "at its site")

    def _too_few(self, count: int, what: str, wait: Wait) -> str:
        reasons = by_reason({**self.registry.refused, **self.absent})
        time = f" in {self.terms.deadline:g} s" if wait.is_over else ""
        return f"{self.quorum} clients should take part, found {count} that {what}{time}{reasons and '; '}{reasons}"

    def _is_out(self, errand: _Errand[T]) -> bool:
        return errand.answer is None and errand.failures <= self.terms.retries

    def _lost_after(self, errands: Collection[_Errand[T]]) -> float:
        """The seconds after which a message without an answer is taken for lost; never before half are answered."""
        took = [errand.took for errand in errands if errand.took is not None]
        return LOST_AFTER + TIMES_AS_LONG * max(took) if took and 2 * len(took) >= len(errands) else inf

    def _give(self, client: str, errand: _Errand[T], wait: Wait, lost_after: float) -> None:
        """Send the order, unless the node is offline, or already has it; again if it seems to be lost."""
        since, sending = self.registry.since(client), errand.sending
        if since is None or not sending.is_due(since, lost_after):
            return
        if again := since == sending.given:
            fault = "%s has not answered for %.0f s, and gets its order again: it may be lost"
            log.warning(fault, client, sending.waited)
        if self.registry.order(client, errand.content, errand.allowance, again=again):
            sending.give(since)
            errand.why = LATE
        else:
            self.registry.went(client)
            errand.why = "Flower did not accept its order"

    def _take(self, client: str, errand: _Errand[T], answer: SiteAnswer | Refused | Gone) -> None:
        """Keep an answer, or make sure that the message is sent again."""
        if isinstance(answer, Gone):
            log.warning("%s went away, and its order waits for it: %s", client, answer.why)
            self.registry.went(client)
            errand.sending.given, errand.why = None, AWAY
            return
        outcome = answer if isinstance(answer, Refused) else errand.read(answer)
        if not isinstance(outcome, Refused):
            errand.answer, errand.took = outcome, errand.sending.waited
            return
        log.warning("%s: %s", client, outcome.why)
        errand.sending.given, errand.why, errand.failures = None, outcome.why, errand.failures + 1

    def _read_reply(self, client: str, answer: SiteAnswer) -> Reply | Refused:
        if self.experiment.secure_aggregation and answer.header.get("keys"):
            keys = self._used(read_keys, answer)
            if isinstance(keys, Refused):
                return keys
            self.keys[client] = keys
        reply = decode_reply(answer.header, answer.rows, seen_of(self.registry.known[client], self.experiment))
        if isinstance(reply, Refused) or not self.terms.spool:
            return reply
        return spooled(reply, self.folder, DTYPES[self.terms.wire])

    def _read_stage(self, client: str, read: Callable[[SiteAnswer], T], answer: SiteAnswer) -> T | Refused:
        self._count(client, up=len(json.dumps(answer.header)) + (0 if answer.rows is None else answer.rows.nbytes))
        return self._used(read, answer)

    def _used(self, read: Callable[[SiteAnswer], T], answer: SiteAnswer) -> T | Refused:
        try:
            return read(answer)
        except Exception as error:  # nothing in an answer may stop the server
            return Refused(f"answer cannot be used: {shown(error)}")

    def _invite(self, client: str) -> Header:
        return self.invitation.only_for(client).header()

    def _count(self, client: str, up: int = 0, down: int = 0) -> None:
        before = self.beside.get(client, (0, 0))
        self.beside[client] = (before[0] + up, before[1] + down)

    def _allowance(self, client: str, order: Order) -> Allowance:
        """What the reply to an order may hold: as many values as the requested parts have."""
        layouts = seen_of(self.registry.known[client], self.experiment).layouts
        values = sum(layout.numel for slot, layout in layouts.items() if slot.part in order.upload)
        return Allowance(values, self.terms.wire)


def spooled(reply: Reply, folder: Path, dtype: torch.dtype) -> Reply:
    """The same reply with its rows in files in a folder; `dtype` is their type on the wire.

    The files are already unlinked, so they disappear once they are closed, even after a crash.
    """
    return replace(reply, rows={slot: _in_file(row.to(dtype), folder) for slot, row in reply.rows.items()})


def _in_file(row: Tensor, folder: Path) -> MappedRow:
    try:
        with NamedTemporaryFile(dir=folder) as file:
            file.write(row.contiguous().view(torch.uint8).numpy().data)
            file.flush()
            return MappedRow.open(file.name, row.numel(), row.dtype)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
