"""The registry of a federation: which nodes are online, which client each of them is, and the messages between.

A node is identified by its registered key. Flower never gives a node's number to another key, so a node's name at the
time of a request is also valid for its answer. No one else can answer: a message has a name that cannot be guessed, and
only the node that it was sent to learns it.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from secrets import token_hex
from time import monotonic, sleep

from flwr.app import Message, RecordDict
from flwr.serverapp.grid import Grid

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.answers import Allowance, Answers, Failed, Gone, SiteAnswer
from fedhca2.federation.flower.deploy.consent import Invitation, expected_profile
from fedhca2.federation.flower.internals import ObjectPushError
from fedhca2.federation.flower.records import decode_profile, pack
from fedhca2.federation.flower.wait import LOST_AFTER, TIMES_AS_LONG, NetworkSettings, Transmission, Wait
from fedhca2.federation.foreign_text import NAME, Refused, plain, shown
from fedhca2.messages import Profile

NODES_EVERY = 1.0  # seconds between checks for online nodes
SLOWEST = 600.0  # seconds that one site's answer counts at most when others are waited for
FOREVER_S = 30 * 86400.0  # Flower's messages need an end; ours end when they are released
PAUSE = 0.01  # seconds per check for an answer, so that many sites do not keep the SuperLink busy
log = logging.getLogger("fedhca2.server")


@dataclass(frozen=True)
class _Node:
    """A node that is online."""

    name: str  # the name its key is registered under
    since: str  # when it became active; a restarted node has another time and knows nothing of earlier messages


@dataclass(frozen=True)
class _Sent:
    """A message that waits for its answer."""

    node: int
    name: str  # the name the node's key is registered under
    order: bool  # True for an order, False for an introduction
    allowance: Allowance


class SiteRegistry:
    """Sites come and go. Each new one is asked to introduce itself, and is accepted or told why not."""

    def __init__(self, grid: Grid, experiment: Experiment, terms: NetworkSettings, invitation: Invitation) -> None:
        self.grid, self.experiment, self.terms, self.invitation = grid, experiment, terms, invitation
        self.known: dict[str, Profile] = {}
        self.claims: dict[str, int] = {}  # the number of images that each client said it has, also before a resume
        self._refused: dict[int, tuple[str, str]] = {}  # nodes that do not fit: their names, and why
        self._answers = Answers.of(grid)
        self._specs = {spec.name: spec for spec in experiment.specs}
        self._node_of: dict[str, int] = {}
        self._there: dict[int, _Node] = {}
        self._looked = -NODES_EVERY
        self._asked: dict[int, Transmission] = {}  # by node, the question who it is
        self._slowest = 0.0  # seconds until the slowest answer to it
        self._waiting: dict[str, _Sent] = {}
        self._late: dict[int, set[str]] = {}  # by node, messages that nobody waits for and that it may still answer

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

    def since(self, client: str) -> str | None:
        """When a client's node became active; None if it is offline."""
        node = self._there.get(self._node_of[client])
        return node.since if node else None

    def went(self, client: str) -> None:
        """Treat a client's node as gone until it is seen again."""
        self._there.pop(self._node_of[client], None)

    @property
    def expects_introductions(self) -> bool:
        """Whether someone was asked to introduce itself and has not answered yet."""
        return any(not sent.order for sent in self._waiting.values())

    def order(self, client: str, content: RecordDict, allowance: Allowance, *, again: bool = False) -> bool:
        """Send a client an order; False if Flower does not accept it. If sent `again`, the first answer counts."""
        node = self._node_of[client]
        if not again:
            self._forget_all(node, order=True)
        return self._ask(content, _Sent(node, client, True, allowance), "train")

    def forget_orders(self) -> None:
        """A round is over: later answers are late."""
        for message in [message for message, sent in self._waiting.items() if sent.order]:
            self._forget(message)

    def exchange(self, wait: Wait, *, invite: bool = True) -> Iterator[tuple[str, SiteAnswer | Refused | Gone]]:
        """Check for nodes and answers, after a short wait; returns answers to orders, and introduces newcomers.

        Without `invite`, newcomers are asked who they are another time.
        """
        sleep(max(self.terms.poll, PAUSE * len(self._waiting)))
        self.look(invite=invite)
        for message, sent in list(self._waiting.items()):
            if message not in self._waiting:  # the node has just answered another
                continue
            answer = self._answers.take(message, sent.node, sent.allowance, wait.end)
            if answer is None:
                continue
            del self._waiting[message]
            if sent.order:
                self._forget_all(sent.node, order=True)
                yield sent.name, answer
            else:
                self._introduce(sent, answer)

    def meet(self, wait: Wait) -> None:
        """Check for nodes and introductions when there are no orders."""
        for _ in self.exchange(wait):
            pass

    @property
    def refused(self) -> Mapping[str, str]:
        """Why sites were not accepted, by name, or by node if the name belongs to another."""
        refusals = self._refused.items()
        return {name if name and name not in self.known else f"node {node}": why for node, (name, why) in refusals}

    @property
    def all_have_answered(self) -> bool:
        """Whether as many sites as the experiment has clients were accepted or refused."""
        return len(self.known) + len(self._refused) >= len(self._specs)

    def missing(self) -> Mapping[str, str]:
        """Clients of the experiment that have not introduced themselves, with the reason if there is one."""
        silent = dict.fromkeys((node.name for node in self._there.values()), "no introduction yet")
        reasons = silent | dict(self.refused)
        return {name: reasons.get(name, "offline") for name in self._specs if name not in self.known}

    def _ask(self, content: RecordDict, sent: _Sent, kind: str) -> bool:
        """Send a message, and wait for its answer; False if Flower does not accept it."""
        message = self._push(content, sent.node, kind)
        if message:
            self._waiting[message] = sent
        return bool(message)

    def _push(self, content: RecordDict, node: int, kind: str) -> str:
        """Send a message; returns its name, or nothing if Flower does not accept it."""
        self._release(node)
        secret = token_hex(16)  # a message's name is the hash of its content
        try:
            names = [*self.grid.push_messages([Message(content, node, kind, ttl=FOREVER_S, group_id=secret)])]
        except ObjectPushError:  # it took too long, or the clock jumped
            return ""
        return names[0] or "" if names else ""

    def _forget(self, message: str) -> None:
        node = self._waiting.pop(message).node
        if not self._answers.forget(message):
            self._late.setdefault(node, set()).add(message)

    def _release(self, node: int) -> None:
        """Release late answers of a node: with its next message, the proxy lets it send as much again."""
        late = self._late.pop(node, set())
        if left := {message for message in late if not self._answers.forget(message)}:
            self._late[node] = left

    def _forget_all(self, node: int, *, order: bool) -> None:
        """Stop waiting for a node's answer to its order, or to the question who it is."""
        for message, sent in list(self._waiting.items()):
            if (sent.node, sent.order) == (node, order):
                self._forget(message)

    def look(self, *, now: bool = False, invite: bool = True) -> None:
        """Check which nodes are online, from time to time or `now`, and ask those that have not said who they are."""
        if not now and monotonic() - self._looked < NODES_EVERY:
            return
        self._looked = monotonic()
        self._there = {node.node_id: _Node(node.name, node.last_activated_at) for node in self.grid.get_nodes()}
        lost_after = LOST_AFTER + TIMES_AS_LONG * min(self._slowest, SLOWEST)
        for number, node in self._there.items():
            if invite and self._asked.setdefault(number, Transmission()).is_due(node.since, lost_after):
                self._meet(number, node)

    def _meet(self, number: int, node: _Node) -> None:
        """Ask a node to introduce itself, if its key belongs to a client. If asked twice, its first answer counts."""
        asked, name = self._asked[number], node.name
        if asked.given == node.since:
            again = "node %d (%s) has not introduced itself for %.0f s, and is asked again"
            log.warning(again, number, plain(name, NAME), asked.waited)
        else:  # a returning node introduces itself again, and may have other settings
            self._forget_all(number, order=False)
        if self.terms.named and name not in self._specs:
            fault = Refused(f"key should belong to a client of the experiment, found {shown(name)}")
            asked.give(node.since)
            asked.close()
            self._refuse(number, plain(name, NAME), fault)
            return
        told = self.invitation.only_for(name).header() if self.terms.named else {}  # without keys: first, who it is
        if self._ask(pack(told), _Sent(number, name, False, Allowance()), "query"):
            asked.give(node.since)

    def _introduce(self, sent: _Sent, answer: SiteAnswer | Refused | Gone) -> None:
        """Accept a client, or tell its site why not."""
        if isinstance(answer, Gone | Failed):
            log.warning("node %d did not introduce itself: %s", sent.node, answer.why)
            return  # it is asked again as if the question were lost, so that one that always fails is asked rarely
        if isinstance(answer, SiteAnswer) and not self.terms.named and [*answer.header] == ["client"]:
            claimed = answer.header["client"]
            if isinstance(claimed, str) and claimed in self._specs:  # otherwise `_profile` refuses it
                told = self.invitation.only_for(claimed).header()
                self._ask(pack(told), replace(sent, name=claimed), "query")
                return
        self._forget_all(sent.node, order=False)
        self._slowest = max(self._slowest, self._asked[sent.node].waited)
        self._asked[sent.node].close()
        profile = answer if isinstance(answer, Refused) else self._profile(sent, answer)
        if isinstance(profile, Refused):
            self._refuse(sent.node, sent.name, profile)
            return
        known = {**self.known, profile.client: profile}
        self.known.clear()  # the same mapping, in the order of the experiment
        self.known.update({name: known[name] for name in self._specs if name in known})
        self._node_of[profile.client] = sent.node
        self.claims[profile.client] = profile.samples
        self._refused.pop(sent.node, None)
        log.info("%s has joined: %s, %d images", profile.client, ", ".join(profile.tasks), profile.samples)

    def _profile(self, sent: _Sent, answer: SiteAnswer) -> Profile | Refused:
        """The profile of a node, if it is valid."""
        name = sent.name if self.terms.named else answer.header.get("client")
        if not isinstance(name, str) or name not in self._specs:
            return Refused(f"client should be one of the experiment, found {shown(name)}")
        holder = self._node_of.get(name, sent.node)
        if holder != sent.node and (self.terms.named or holder in self._there):
            return Refused(f"{name} has already joined as node {holder}")
        expected = replace(self.expected[name], samples=self.claims.get(name, 0))
        profile = decode_profile(answer.header, expected, self.experiment.guard.images.get(name))
        return profile if isinstance(profile, Refused) else self._same_classes(profile) or profile

    def _same_classes(self, profile: Profile) -> Refused | None:
        """Refuse a client whose classes have other names than those of a known client of the same data set."""
        for other in self.known.values():
            if other.client != profile.client and other.dataset == profile.dataset:
                for task in profile.classes.keys() & other.classes.keys():
                    if profile.classes[task] != other.classes[task]:
                        expected = f"the names that {other.client} has for the same data set"
                        return Refused(f"classes of {profile.client}, {task}: expected {expected}, got others")
        return None

    def _refuse(self, node: int, name: str, fault: Refused) -> None:
        log.warning("node %d (%s) is refused: %s", node, name, fault.why)
        self._refused[node] = (name, fault.why)
        if notice := self._push(pack({"refused": fault.why}), node, "query"):
            self._late.setdefault(node, set()).add(notice)
