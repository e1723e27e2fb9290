"""The fleet over a network: orders wait for their sites, are given again, and have a deadline."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import RecordDict
from flwr.serverapp.grid import Grid

from fedhca2.clients import BatchWatch
from fedhca2.experiment import Experiment
from fedhca2.federation.flower.answers import Allowance, Answer, Gone
from fedhca2.federation.flower.invitation import Invitation
from fedhca2.federation.flower.records import DTYPES, decode_reply, encode_orders
from fedhca2.federation.flower.roll import Roll
from fedhca2.federation.flower.spool import spooled
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.flower.wait import Wait
from fedhca2.federation.gate import Refused
from fedhca2.messages import Order, Profile, Reply

GRACE = 10.0  # seconds that clients have to introduce themselves when there are enough of them already
AWAY, LATE = "not there", "no reply in time"
log = logging.getLogger("fedhca2.server")


class TooFewClientsError(RuntimeError):
    """Fewer clients than the terms ask for; the run can be resumed when they are back."""


@dataclass
class _Errand:
    """An order on its way, which waits for its site for as long as the round lasts."""

    content: RecordDict
    allowance: Allowance  # for the reply
    given: str | None = None  # to the node that is there since then; nothing: has to be given, first or again
    failures: int = 0
    why: str = AWAY  # there is no reply yet
    reply: Reply | None = None

    @property
    def state(self) -> str:
        """What is being waited for."""
        return self.why if self.given is None else "no reply yet"


class FlowerFleet:
    """Clients at sites. A client that fails to answer in time is named in `absent`, with the reason."""

    def __init__(self, grid: Grid, experiment: Experiment, terms: Terms, run: str, folder: Path) -> None:
        self.experiment, self.terms, self.folder = experiment, terms, folder
        self.invitation = Invitation.to(experiment, run)
        self.roll = Roll(grid, experiment, terms, self.invitation)
        self.quorum = terms.min_clients or len(experiment.specs)
        self.absent: dict[str, str] = {}

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The clients that have introduced themselves, in the experiment's order."""
        known = self.roll.known
        return {spec.name: known[spec.name] for spec in self.experiment.specs if spec.name in known}

    def gather(self) -> None:
        """Wait for as many clients as a round needs; all of them if they are there by then."""
        wait = Wait(self.terms.deadline)
        while len(self.roll.known) < self.quorum:
            if wait.is_over:
                raise TooFewClientsError(self._too_few(len(self.roll.known), "have introduced themselves"))
            self.roll.meet(wait)
            wait.tell(self.roll.missing())
        grace = Wait(GRACE)
        while not grace.is_over and self.roll.expects_introductions:
            self.roll.meet(grace)

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Give every client its order, and take the replies that come before the deadline.

        An order waits for a site that is not there, and is given again to one that comes back or fails. When enough
        clients have answered, those that are not there are not waited for.
        """
        contents = encode_orders(orders, self.terms.wire, {**self.invitation.header(), "wire": self.terms.wire})
        errands = {
            client: _Errand(contents[client], self._allowance(client, order)) for client, order in orders.items()
        }
        needed = min(self.quorum, len(orders))
        wait = Wait(self.terms.deadline)
        while out := {client: errand for client, errand in errands.items() if self._is_out(errand)}:
            enough = sum(errand.reply is not None for errand in errands.values()) >= needed
            if wait.is_over or (enough and all(self.roll.since(client) is None for client in out)):
                break
            for client, errand in out.items():
                self._give(client, errand, wait)
            for client, answer in self.roll.exchange(wait):
                self._take(client, out[client], answer)
            wait.tell({client: errand.state for client, errand in out.items() if errand.reply is None})
        self.roll.forget_orders()
        replies = {client: errand.reply for client, errand in errands.items() if errand.reply is not None}
        self.absent = dict(self.roll.missing()) | {
            client: errand.why for client, errand in errands.items() if client not in replies
        }
        if len(replies) < needed:
            raise TooFewClientsError(self._too_few(len(replies), "have answered"))
        return replies

    def save(self, folder: Path) -> Mapping[str, str]:
        """Sites keep their clients' states themselves; a checkpoint only says who has taken part."""
        return dict.fromkeys(self.roll.known, "at its site")

    def restore(self, folder: Path, checksums: Mapping[str, str]) -> None:
        """Sites go on from their own states."""

    def _too_few(self, count: int, what: str) -> str:
        reasons = "".join(f"; {name}: {why}" for name, why in {**self.absent, **self.roll.refused}.items())
        time = f" in {self.terms.deadline:g} s" if self.terms.deadline else ""
        return f"{self.quorum} clients should be there, found {count} that {what}{time}{reasons}"

    def _is_out(self, errand: _Errand) -> bool:
        return errand.reply is None and errand.failures <= self.terms.retries

    def _give(self, client: str, errand: _Errand, wait: Wait) -> None:
        """Send the order, unless it has been sent to the node as it is, or the node is not there."""
        since = self.roll.since(client)
        if since in (None, errand.given):
            return
        if self.roll.order(client, errand.content, wait.lifetime, errand.allowance):
            errand.given, errand.why = since, LATE
        else:
            self.roll.went(client)
            errand.why = "Flower did not take its order"

    def _take(self, client: str, errand: _Errand, answer: Answer | Refused | Gone) -> None:
        """Keep the reply in an answer, or see to it that the order is given again."""
        if isinstance(answer, Gone):
            log.warning("%s went away, and its order waits for it: %s", client, answer.why)
            self.roll.went(client)
            errand.given, errand.why = None, AWAY
            return
        profile = self.roll.known[client]
        reply = answer if isinstance(answer, Refused) else decode_reply(answer.header, answer.rows, profile)
        if isinstance(reply, Reply):
            errand.reply = spooled(reply, self.folder, DTYPES[self.terms.wire]) if self.terms.spool else reply
            return
        log.warning("%s: %s", client, reply.why)
        errand.given, errand.why, errand.failures = None, reply.why, errand.failures + 1

    def _allowance(self, client: str, order: Order) -> Allowance:
        """What the reply to an order may hold: as many values as the parts that are asked for have."""
        layouts = self.roll.known[client].layouts
        values = sum(layout.numel for slot, layout in layouts.items() if slot.part in order.upload)
        return Allowance(values, self.terms.wire)
