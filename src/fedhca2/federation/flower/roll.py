"""The roll of a federation: which nodes are there, which client each of them is, and the messages between."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Literal

from flwr.app import Message, RecordDict
from flwr.serverapp.grid import Grid

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.invitation import Invitation, misfit
from fedhca2.federation.flower.records import MalformedMessageError, decode_profile, header_of, pack
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.flower.wait import Wait
from fedhca2.messages import Profile

NODES_EVERY = 1.0  # seconds between two looks at which nodes are there
AT_ONCE = 8  # messages that are pulled together: as many replies may be in memory
log = logging.getLogger("fedhca2.server")


@dataclass(frozen=True)
class _Node:
    """A node that is there."""

    name: str  # that its key was registered under
    since: str  # when it became active: another time is another life, which knows nothing of earlier messages


@dataclass(frozen=True)
class _Sent:
    """A message that waits for its answer."""

    node: int
    about: Literal["introduction", "refusal", "order"]
    client: str = ""


class Roll:
    """Sites come and go; who comes is asked to introduce itself, and is taken in or told why not."""

    def __init__(self, grid: Grid, experiment: Experiment, terms: Terms, invitation: Invitation) -> None:
        self.grid, self.experiment, self.terms, self.invitation = grid, experiment, terms, invitation
        self.known: dict[str, Profile] = {}
        self.refused: dict[str, str] = {}  # sites that do not fit, by name or node
        self._node_of: dict[str, int] = {}
        self._there: dict[int, _Node] = {}
        self._looked = -NODES_EVERY
        self._met: dict[int, str] = {}  # nodes that were asked, with the life that they were asked in
        self._waiting: dict[str, _Sent] = {}

    def since(self, client: str) -> str | None:
        """When a client's node became active; nothing if it is not there."""
        node = self._there.get(self._node_of[client])
        return node.since if node else None

    def went(self, client: str) -> None:
        """Take a client's node for gone, until it is seen again."""
        self._there.pop(self._node_of[client], None)

    @property
    def expects_introductions(self) -> bool:
        """Whether somebody has been asked and has not answered yet."""
        return any(sent.about == "introduction" for sent in self._waiting.values())

    def order(self, client: str, content: RecordDict, lifetime: float) -> bool:
        """Send a client an order; False if Flower does not take it."""
        return self._push(content, _Sent(self._node_of[client], "order", client), "train", lifetime)

    def forget_orders(self) -> None:
        """A round is over: what comes now is late."""
        self._waiting = {key: sent for key, sent in self._waiting.items() if sent.about != "order"}

    def exchange(self) -> Iterator[tuple[str, Message]]:
        """Look for nodes and answers, after a short wait: answers to orders are given back, newcomers introduced."""
        sleep(self.terms.poll)
        self._look()
        waiting = list(self._waiting)
        for start in range(0, len(waiting), AT_ONCE):
            for message in self.grid.pull_messages(waiting[start : start + AT_ONCE]):
                sent = self._waiting.pop(message.metadata.reply_to_message_id, None)
                if sent and sent.about == "order":
                    yield sent.client, message
                elif sent and sent.about == "introduction":
                    self._introduce(sent.node, message)

    def meet(self) -> None:
        """Look for nodes and introductions when there are no orders."""
        for _ in self.exchange():
            pass

    def missing(self) -> Mapping[str, str]:
        """Clients of the experiment that have not introduced themselves, with the reason where there is one."""
        names = [spec.name for spec in self.experiment.specs if spec.name not in self.known]
        return {name: self.refused.get(name, "not there") for name in names}

    def _push(self, content: RecordDict, sent: _Sent, kind: str, lifetime: float) -> bool:
        identities = [*self.grid.push_messages([Message(content, sent.node, kind, ttl=lifetime)])]
        taken = [identity for identity in identities if identity]
        for identity in taken:
            self._waiting[identity] = sent
        return bool(taken)

    def _look(self) -> None:
        if monotonic() - self._looked < NODES_EVERY:
            return
        self._looked = monotonic()
        self._there = {node.node_id: _Node(node.name, node.last_activated_at) for node in self.grid.get_nodes()}
        for number, node in self._there.items():
            if self._met.get(number) != node.since:  # who comes back introduces itself again
                self._met[number] = node.since
                lifetime = Wait(self.terms.deadline).lifetime
                self._push(pack(self.invitation.header()), _Sent(number, "introduction"), "query", lifetime)

    def _introduce(self, node: int, message: Message) -> None:
        """Take a client in, or tell its site why not."""
        if message.has_error():
            log.warning("node %d did not introduce itself: %s", node, message.error.reason)
            self._met.pop(node, None)  # ask again
            return
        registered = self._there[node].name if node in self._there else ""
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
        self._push(pack({"refused": fault}), _Sent(node, "refusal"), "query", Wait(self.terms.deadline).lifetime)

    def _fault(self, node: int, registered: str, profile: Profile) -> str:
        if registered and registered != profile.client:
            return f"client should be {registered}, whose key it has, found {profile.client}"
        holder = self._node_of.get(profile.client)
        if holder is not None and holder != node and holder in self._there:
            return f"{profile.client} is here already, at node {holder}"
        return misfit(profile, self.experiment)
