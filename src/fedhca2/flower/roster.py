"""Which node is which client, as the nodes themselves say."""

import logging
from collections.abc import Callable, Iterable
from time import sleep
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedhca2.federation.flower.records import decode_new_profile, header_of, pack
from fedhca2.federation.flower.wait import TooFewClientsError, Wait
from fedhca2.federation.foreign_text import Refused, plain
from fedhca2.messages import Profile

INTRODUCTION = 120.0  # seconds for a node to say who it is; it is asked again before the next round
log = logging.getLogger("flwr")
T = TypeVar("T")


class Roster:
    """All clients that ever joined, the nodes of those that are connected, and the nodes that were refused."""

    def __init__(self, known: Iterable[Profile] = ()) -> None:
        self.profiles = {profile.client: profile for profile in known}
        self.nodes: dict[int, str] = {}
        self.refused: dict[int, str] = {}  # the reasons

    def meet(self, grid: Grid, timeout: float, least: int = 0) -> None:
        """Ask new nodes who they are, until there are enough clients."""
        wait = Wait(timeout)
        while True:
            there = set(grid.get_node_ids())
            self.nodes = {node: client for node, client in self.nodes.items() if node in there}
            self.refused = {node: why for node, why in self.refused.items() if node in there}
            strangers = sorted(there - self.nodes.keys() - self.refused.keys())
            if strangers:
                asked = [Message(pack({}), node, "query") for node in strangers]
                for message in grid.send_and_receive(asked, timeout=min(INTRODUCTION, timeout)):
                    self._introduce(message)
            if len(self.nodes) >= least:
                return
            if wait.is_over:
                raise TooFewClientsError(
                    f"{least} clients should be here, found {', '.join(self.nodes.values()) or 'none'}"
                )
            sleep(min(1.0, timeout))

    def _introduce(self, message: Message) -> None:
        """Remember which client a node is, unless it cannot be that client."""
        node = message.metadata.src_node_id
        if message.has_error():
            log.warning("node %d did not introduce itself: %s", node, plain(str(message.error.reason)))
            return
        profile = read(lambda: decode_new_profile(header_of(message.content)))
        if isinstance(profile, Profile):
            known = self.profiles.get(profile.client, profile)
            if profile.client in self.nodes.values():
                profile = Refused(f"{profile.client} has already joined as another node")
            elif known != profile:
                profile = Refused(f"{profile.client} should have the tasks, parameters and images that it had before")
        if isinstance(profile, Refused):
            log.warning("node %d is refused: %s", node, profile.why)
            self.refused[node] = profile.why
            return
        self.profiles[profile.client], self.nodes[node] = profile, profile.client
        log.info("%s has joined: %s, %d samples", profile.client, ", ".join(profile.tasks), profile.samples)


def read(get: Callable[[], T | Refused]) -> T | Refused:
    """What an answer says; nothing in it may stop the server."""
    try:
        return get()
    except Exception as error:
        return Refused(f"answer cannot be read: {error}")
