"""All that the round loop knows of clients."""

from collections.abc import Mapping
from typing import Protocol

from fedhca2.clients import BatchWatch
from fedhca2.messages import Order, Profile, Reply


class Fleet(Protocol):
    """A number of clients that carry out orders, wherever they run."""

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Who takes part."""

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Give each client its order, and wait for the replies; a client that fails to answer has none."""
