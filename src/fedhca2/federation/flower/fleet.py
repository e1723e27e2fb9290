"""The fleet over a network: sites that come and go, orders that are given again, and a deadline."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

from flwr.app import Message, RecordDict
from flwr.serverapp.grid import Grid

from fedhca2.clients import BatchWatch
from fedhca2.experiment import Experiment
from fedhca2.federation.flower.invitation import Invitation, misfit
from fedhca2.federation.flower.records import (
    MalformedMessageError,
    decode_profile,
    decode_reply,
    encode_orders,
    header_of,
    pack,
)
from fedhca2.federation.flower.terms import Terms
from fedhca2.messages import Order, Profile, Reply

NODES_EVERY = 1.0  # seconds between two looks at which nodes are there
GRACE = 10.0  # seconds that clients have to introduce themselves when there are enough of them already
log = logging.getLogger("fedhca2.server")


class TooFewClientsError(RuntimeError):
    """Fewer clients than the terms ask for; the run can be resumed when they are back."""


@dataclass(frozen=True)
class _Sent:
    """A message that waits for its answer."""

    node: int
    about: Literal["introduction", "refusal", "order"]
    client: str = ""


class FlowerFleet:
    """Clients at sites. A client that fails to answer in time is named in `absent`, with the reason."""

    def __init__(self, grid: Grid, experiment: Experiment, terms: Terms, run: str) -> None:
        self.grid, self.experiment, self.terms = grid, experiment, terms
        self.invitation = Invitation.to(experiment, run)
        self.quorum = terms.min_clients or len(experiment.specs)
        self.known: dict[str, Profile] = {}
        self.absent: dict[str, str] = {}
        self.refused: dict[str, str] = {}  # sites that do not fit, by name or node
        self._node_of: dict[str, int] = {}
        self._online: dict[int, str] = {}  # nodes that are there, with the name their key was registered under
        self._looked = -NODES_EVERY
        self._met: set[int] = set()
        self._waiting: dict[str, _Sent] = {}

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The clients that have introduced themselves, in the experiment's order."""
        return {spec.name: self.known[spec.name] for spec in self.experiment.specs if spec.name in self.known}

    def gather(self) -> None:
        """Wait for as many clients as a round needs; all of them if they are there by then."""
        end = monotonic() + self.terms.deadline
        while len(self.known) < self.quorum:
            if monotonic() > end:
                raise TooFewClientsError(self._too_few(len(self.known), "have introduced themselves"))
            self._exchange()
        grace = monotonic() + GRACE
        while monotonic() < grace and any(sent.about == "introduction" for sent in self._waiting.values()):
            self._exchange()

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Give every client its order, again if it fails, and take the replies that come before the deadline."""
        self.absent = {spec.name: "not there" for spec in self.experiment.specs if spec.name not in self.known}
        contents = encode_orders(orders, self.terms.wire, {**self.invitation.header(), "wire": self.terms.wire})
        unsent, tries, why = set(orders), dict.fromkeys(orders, 0), dict.fromkeys(orders, "no reply in time")
        replies: dict[str, Reply] = {}
        given_up: dict[str, str] = {}
        needed = min(self.quorum, len(orders))
        end = monotonic() + self.terms.deadline
        while len(replies) + len(given_up) < len(orders) and monotonic() < end:
            for client in sorted(unsent):
                if self._node_of[client] in self._online:
                    self._push(contents[client], _Sent(self._node_of[client], "order", client), "train", end)
                    tries[client] += 1
                    unsent.discard(client)
            for client, message in self._exchange():
                if client not in orders or client in replies:
                    continue
                found = self._read(client, message)
                if isinstance(found, Reply):
                    replies[client] = found
                    continue
                log.warning("%s: %s", client, found)
                why[client] = found
                if tries[client] > self.terms.retries:
                    given_up[client] = found
                else:
                    unsent.add(client)
            reachable = {sent.node for sent in self._waiting.values() if sent.about == "order"}
            reachable |= {self._node_of[client] for client in unsent}
            if len(replies) >= needed and not reachable & self._online.keys():
                break  # those that are not there are not waited for
        self._waiting = {key: sent for key, sent in self._waiting.items() if sent.about != "order"}
        self.absent |= {client: why[client] for client in orders if client not in replies}
        if len(replies) < needed:
            raise TooFewClientsError(self._too_few(len(replies), "have answered"))
        return {client: replies[client] for client in orders if client in replies}

    def save(self, folder: Path) -> Mapping[str, str]:
        """Sites keep their clients' states themselves; a checkpoint only says who has taken part."""
        return dict.fromkeys(self.known, "at its site")

    def restore(self, folder: Path, checksums: Mapping[str, str]) -> None:
        """Sites go on from their own states."""

    def _too_few(self, count: int, what: str) -> str:
        reasons = "".join(f"; {name}: {why}" for name, why in (self.absent | self.refused).items())
        return f"{self.quorum} clients should be there, found {count} that {what} in {self.terms.deadline:g} s{reasons}"

    def _push(self, content: RecordDict, sent: _Sent, kind: str, end: float) -> None:
        message = Message(content, sent.node, kind, ttl=max(end - monotonic(), 1.0) + self.terms.deadline)
        for identity in self.grid.push_messages([message]):
            self._waiting[identity] = sent

    def _exchange(self) -> list[tuple[str, Message]]:
        """Look for nodes and answers, after a short wait: answers to orders are given back, newcomers introduced."""
        sleep(self.terms.poll)
        self._look_for_nodes()
        answers = []
        for message in self.grid.pull_messages(list(self._waiting)) if self._waiting else ():
            sent = self._waiting.pop(message.metadata.reply_to_message_id, None)
            if sent and sent.about == "order":
                answers.append((sent.client, message))
            elif sent and sent.about == "introduction":
                self._introduce(sent.node, message)
        return answers

    def _look_for_nodes(self) -> None:
        if monotonic() - self._looked < NODES_EVERY:
            return
        self._looked = monotonic()
        self._online = {node.node_id: node.name for node in self.grid.get_nodes()}
        self._met &= self._online.keys()  # who comes back introduces itself again
        for node in self._online.keys() - self._met:
            self._met.add(node)
            self._push(
                pack(self.invitation.header()), _Sent(node, "introduction"), "query", self._looked + self.terms.deadline
            )

    def _introduce(self, node: int, message: Message) -> None:
        """Take a client in, or tell its site why not."""
        if message.has_error():
            log.warning("node %d did not introduce itself: %s", node, message.error.reason)
            self._met.discard(node)  # ask again
            return
        registered = self._online.get(node, "")
        try:
            header = header_of(message.content)
            if "cannot" in header:
                self.refused[registered or f"node {node}"] = str(header["cannot"])
                return
            profile = decode_profile(message.content)
            fault = self._fault(node, registered, profile)
        except MalformedMessageError as error:
            fault, profile = str(error), None
        if profile is not None and not fault:
            self.known[profile.client], self._node_of[profile.client] = profile, node
            self.refused.pop(registered or f"node {node}", None)
            log.info("%s is here: %s, %d images", profile.client, ", ".join(profile.tasks), profile.samples)
            return
        log.warning("node %d is refused: %s", node, fault)
        self.refused[registered or (profile.client if profile else f"node {node}")] = fault
        self._push(pack({"refused": fault}), _Sent(node, "refusal"), "query", monotonic() + self.terms.deadline)

    def _fault(self, node: int, registered: str, profile: Profile) -> str:
        if registered and registered != profile.client:
            return f"client should be {registered}, whose key it has, found {profile.client}"
        holder = self._node_of.get(profile.client)
        if holder is not None and holder != node and holder in self._online:
            return f"{profile.client} is here already, at node {holder}"
        return misfit(profile, self.experiment)

    def _read(self, client: str, message: Message) -> Reply | str:
        """The reply in a message, or what is wrong with it."""
        if message.has_error():
            return f"failed: {message.error.reason}"
        try:
            header = header_of(message.content)
            if "cannot" in header:
                return f"failed: {header['cannot']}"
            reply = decode_reply(message.content, self.known[client])
        except MalformedMessageError as error:
            return str(error)
        return reply if reply.client == client else f"client should be {client}, found {reply.client}"
