"""The registry of a federation: which nodes are online, which client each of them is, and requests to clients.

A request waits for a site that is offline, and is repeated to one that returns, fails, or is silent for long.

A node is identified by its registered key. Flower never gives a node's number to another key, so a node's name at the
time of a request is also valid for its answer. No one else can answer: a message has a name that cannot be guessed, and
only the node that it was sent to learns it.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from secrets import token_hex
from time import monotonic, sleep
from typing import Generic, TypeVar

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.grid import Grid

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.answers import Allowance, Answers, FailedError, GoneError, SiteAnswer
from fedhca2.federation.flower.deploy.consent import Invitation, expected_profile
from fedhca2.federation.flower.internals import ObjectPushError
from fedhca2.federation.flower.records import decode_profile, pack
from fedhca2.federation.flower.wait import LOST_AFTER, TIMES_AS_LONG, NetworkSettings, Transmission, Wait
from fedhca2.federation.gate import MAX_NAME, UnusableError, attempt, plain, shown
from fedhca2.messages import Profile

NODES_EVERY = 1.0  # seconds between checks for online nodes
ORDER, QUESTION = "train", "query"  # Flower's types of messages: a request, and the question who a node is
Answer = SiteAnswer | UnusableError
log = logging.getLogger("fedhca2.server")
T = TypeVar("T")


@dataclass
class Request(Generic[T]):
    """A message for a client, and its answer, once that has come."""

    content: RecordDict
    allowance: Allowance  # for the answer
    read: Callable[[SiteAnswer], T]  # raises an error if the answer is unusable
    transmission: Transmission = field(default_factory=Transmission)
    took: float | None = None  # the seconds until its answer
    failures: int = 0
    why: str = "offline"  # why there is no answer yet
    answer: T | None = None


@dataclass(frozen=True)
class _Sent:
    """A message that waits for its answer."""

    node: int
    kind: str  # ORDER or QUESTION
    take: Callable[[Answer], None] | None = None  # handles its answer; None: the answer is not needed
    allowance: Allowance = field(default_factory=Allowance)


class SiteRegistry:
    """Sites come and go. Each new one is asked to introduce itself, and is accepted, or learns why not."""

    def __init__(self, grid: Grid, experiment: Experiment, terms: NetworkSettings, invitation: Invitation) -> None:
        self.grid, self.experiment, self.terms, self.invitation = grid, experiment, terms, invitation
        self.profiles: dict[str, Profile] = {}
        self.claims: dict[str, int] = {}  # the number of images that each client said it has, also before a resume
        self._refused: dict[int, tuple[str, str]] = {}  # nodes that do not fit: their names, and why
        self._answers = Answers.of(grid)
        self._specs = {spec.name: spec for spec in experiment.specs}
        self._node_of: dict[str, int] = {}
        self._online: dict[int, NodeInfo] = {}  # a restarted node has another `last_activated_at`
        self._checked_at = -NODES_EVERY
        self._questions = defaultdict[int, Transmission](Transmission)  # by node, the question who it is
        self._slowest = 0.0  # seconds until the slowest answer to it
        self._waiting: dict[str, _Sent] = {}
        self._late = defaultdict[int, set[str]](set)  # by node, messages whose answers are not needed

    @cached_property
    def expected(self) -> dict[str, Profile]:
        """The profile of every client of the experiment, except its number of images."""
        profiles: dict[str, Profile] = {}
        kinds: dict[tuple[str, tuple[str, ...], str], Profile] = {}  # clients of one kind differ in their images
        for name, spec in self._specs.items():
            kind = spec.data, spec.tasks, spec.model.model_dump_json()
            kinds[kind] = kinds.get(kind) or expected_profile(self.experiment, spec)
            profiles[name] = replace(kinds[kind], client=name)
        return profiles

    @property
    def expects_introductions(self) -> bool:
        """Whether someone was asked to introduce itself and has not answered yet."""
        return any(sent.kind == QUESTION for sent in self._waiting.values())

    def deliver(
        self,
        requests: Mapping[str, Request[T]],
        needed: int,
        wait: Wait,
        *,
        invite: bool = True,
        enough: Wait | None = None,
        forget: bool = True,
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Deliver requests and collect the answers; returns them by client, and why others are missing.

        :param needed: with this many answers, sites that are offline are not waited for.
        :param invite: whether newcomers are asked who they are in the meantime.
        :param enough: when this is over, nobody is waited for if there are as many answers as needed.
        :param forget: later answers are dropped; otherwise a later call with the same request takes them.
        """
        while out := {
            c: each for c, each in requests.items() if each.answer is None and each.failures <= self.terms.retries
        }:
            ready = sum(each.answer is not None for each in requests.values()) >= needed
            away = all(self._node_of[client] not in self._online for client in out)
            if wait.is_over or (ready and (away or (enough is not None and enough.is_over))):
                break
            took = [each.took for each in requests.values() if each.took is not None]
            # Never before half of them are answered.
            lost_after = LOST_AFTER + TIMES_AS_LONG * max(took) if took and 2 * len(took) >= len(requests) else inf
            for client, request in out.items():
                self._send(client, request, lost_after)
            self.poll(wait, invite=invite)
            states = {c: each.why if each.transmission.holder is None else "no reply yet" for c, each in out.items()}
            wait.tell({client: state for client, state in states.items() if out[client].answer is None})
        if forget:
            self._forget(ORDER)
        answers = {client: each.answer for client, each in requests.items() if each.answer is not None}
        return answers, {client: each.why for client, each in requests.items() if client not in answers}

    def _send(self, client: str, request: Request[T], lost_after: float) -> None:
        """Send a request, unless the node is offline or already has it; again if it seems to be lost."""
        number = self._node_of[client]
        if number not in self._online or not self._is_due(number, ORDER, request.transmission, lost_after, client):
            return
        sent = _Sent(number, ORDER, partial(self._take, client, request), request.allowance)
        if self._push(request.content, sent):
            request.transmission.mark_sent(self._online[number].last_activated_at)
            request.why = "no reply in time"
        else:
            del self._online[number]  # until it is seen again
            request.why = "Flower did not accept its order"

    def _is_due(self, node: int, kind: str, transmission: Transmission, lost_after: float, whom: str) -> bool:
        """Whether an online node gets a message now: for the first time, or again. Its first answer counts."""
        since = self._online[node].last_activated_at
        if not transmission.is_due(since, lost_after):
            return False
        if since == transmission.holder:
            fault = "%s has not answered for %.0f s, and gets its message again: it may be lost"
            log.warning(fault, whom, transmission.waited)
        else:  # a returning node introduces itself again, and may have other settings
            self._forget(kind, node)
        return True

    def _take(self, client: str, request: Request[T], answer: Answer) -> None:
        """Keep an answer, or make sure that the request is sent again."""
        outcome = attempt(request.read, answer) if isinstance(answer, SiteAnswer) else answer
        if not isinstance(outcome, UnusableError):
            request.answer, request.took = outcome, request.transmission.waited
            return
        request.transmission.holder, request.why = None, outcome.why
        if isinstance(outcome, GoneError):
            log.warning("%s went away, and its order waits for it: %s", client, outcome.why)
            self._online.pop(self._node_of[client], None)
            request.why = "offline"
        else:
            log.warning("%s: %s", client, outcome.why)
            request.failures += 1

    def poll(self, wait: Wait, *, invite: bool = True) -> None:
        """Check for nodes, introductions and answers, after a short wait."""
        sleep(max(self.terms.poll, 0.01 * len(self._waiting)))  # many sites should not keep the SuperLink busy
        self.check_nodes(invite=invite)
        for message, sent in list(self._waiting.items()):
            if message not in self._waiting:  # the node has just answered another
                continue
            answer = self._answers.take(message, sent.node, sent.allowance, wait.end)
            if answer is not None and sent.take:
                del self._waiting[message]
                if sent.kind == ORDER:
                    self._forget(ORDER, sent.node)
                sent.take(answer)

    @property
    def refused(self) -> Mapping[str, str]:
        """Why sites were not accepted, by name, or by node if the name belongs to another."""
        refusals = self._refused.items()
        return {name if name and name not in self.profiles else f"node {node}": why for node, (name, why) in refusals}

    @property
    def all_have_answered(self) -> bool:
        """Whether as many sites as the experiment has clients were accepted or refused."""
        return len(self.profiles) + len(self._refused) >= len(self._specs)

    def missing(self) -> Mapping[str, str]:
        """Clients of the experiment that have not introduced themselves, with the reason if there is one."""
        silent = dict.fromkeys((node.name for node in self._online.values()), "no introduction yet")
        reasons = silent | dict(self.refused)
        return {name: reasons.get(name, "offline") for name in self._specs if name not in self.profiles}

    def _push(self, content: RecordDict, sent: _Sent) -> bool:
        """Send a message, and wait for its answer if it needs one; False if Flower does not accept it.

        With its next message, the proxy lets a node send as much again, so its late answers are released now.
        """
        self._late[sent.node] = {message for message in self._late[sent.node] if not self._answers.forget(message)}
        secret = token_hex(16)  # a message's name is the hash of its content
        month_s = 30 * 86400.0  # Flower's messages need an end; ours end when they are released
        message = Message(content, sent.node, sent.kind, ttl=month_s, group_id=secret)
        try:
            name = next(iter(self.grid.push_messages([message])), None)
        except ObjectPushError:  # it took too long, or the clock jumped
            return False
        if name and sent.take:
            self._waiting[name] = sent
        elif name:
            self._late[sent.node].add(name)
        return bool(name)

    def _forget(self, kind: str, node: int | None = None) -> None:
        """Stop waiting for a node's answer, or any, to messages of this kind."""
        for message, sent in list(self._waiting.items()):
            if sent.kind == kind and node in (None, sent.node):
                del self._waiting[message]
                if not self._answers.forget(message):
                    self._late[sent.node].add(message)

    def check_nodes(self, *, now: bool = False, invite: bool = True) -> None:
        """Check which nodes are online, from time to time or `now`, and ask those that have not said who they are."""
        if not now and monotonic() - self._checked_at < NODES_EVERY:
            return
        self._checked_at = monotonic()
        self._online = {node.node_id: node for node in self.grid.get_nodes()}
        lost_after = LOST_AFTER + TIMES_AS_LONG * min(self._slowest, 600.0)  # one slow site counts for ten minutes
        for number, node in self._online.items() if invite else ():
            whom = f"node {number} ({plain(node.name, MAX_NAME)})"
            if self._is_due(number, QUESTION, self._questions[number], lost_after, whom):
                self._invite(number, node)

    def _invite(self, number: int, node: NodeInfo) -> None:
        """Ask a node to introduce itself, if its key belongs to a client."""
        question = self._questions[number]
        if self.terms.named and node.name not in self._specs:
            question.mark_sent(node.last_activated_at)
            question.patience = inf
            self._refuse(number, node.name, f"key: expected that of a client of the experiment, got {shown(node.name)}")
        elif self._ask(number, node.name, self.terms.named):  # without keys: first, who it is
            question.mark_sent(node.last_activated_at)

    def _ask(self, node: int, name: str, invite: bool) -> bool:
        """Ask a node to introduce itself, with the invitation of the client of this name, if it is one."""
        header = self.invitation.header_for(name) if invite else {}
        return self._push(pack(header), _Sent(node, QUESTION, partial(self._introduce, node, name)))

    def _introduce(self, node: int, name: str, answer: Answer) -> None:
        """Accept a client, or let its site know why not."""
        if isinstance(answer, GoneError | FailedError):
            log.warning("node %d did not introduce itself: %s", node, answer.why)
            return  # it is asked again as if the question were lost, so that one that always fails is asked rarely
        if isinstance(answer, SiteAnswer) and not self.terms.named and [*answer.header] == ["client"]:
            claimed = answer.header["client"]
            if isinstance(claimed, str) and claimed in self._specs:  # otherwise `_profile` refuses it
                self._ask(node, claimed, True)
                return
        self._forget(QUESTION, node)
        self._slowest = max(self._slowest, self._questions[node].waited)
        self._questions[node].patience = inf
        profile = attempt(self._profile, node, name, answer) if isinstance(answer, SiteAnswer) else answer
        if isinstance(profile, UnusableError):
            self._refuse(node, name, profile.why)
            return
        profiles = {**self.profiles, profile.client: profile}
        self.profiles.clear()  # the same mapping, in the order of the experiment
        self.profiles.update({name: profiles[name] for name in self._specs if name in profiles})
        self._node_of[profile.client] = node
        self.claims[profile.client] = profile.samples
        self._refused.pop(node, None)
        log.info("%s has joined: %s, %d images", profile.client, ", ".join(profile.tasks), profile.samples)

    def _profile(self, node: int, registered: str, answer: SiteAnswer) -> Profile:
        """The profile of a node whose key is registered under this name; raises UnusableError if it is not valid."""
        name = registered if self.terms.named else answer.header.get("client")
        if not isinstance(name, str) or name not in self._specs:
            raise UnusableError(f"client: expected one of the experiment, got {shown(name)}")
        holder = self._node_of.get(name, node)
        if holder != node and (self.terms.named or holder in self._online):
            raise UnusableError(f"{name} has already joined as node {holder}")
        expected = replace(self.expected[name], samples=self.claims.get(name, 0))
        profile = decode_profile(answer.header, expected, self.experiment.guard.images.get(name))
        for other in self.profiles.values():
            names = other.classes if other.client != name and other.dataset == profile.dataset else {}
            if unlike := [task for task, digest in profile.classes.items() if names.get(task, digest) != digest]:
                fault = f"expected the names that {other.client} has for the same data set, got others"
                raise UnusableError(f"classes of {name}, {unlike[0]}: {fault}")
        return profile

    def _refuse(self, node: int, name: str, why: str) -> None:
        name = plain(name, MAX_NAME)
        log.warning("node %d (%s) is refused: %s", node, name, why)
        self._refused[node] = (name, plain(why))
        self._push(pack({"refused": plain(why)}), _Sent(node, QUESTION))
