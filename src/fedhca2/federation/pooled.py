"""The ceiling: the clients of a run train one model, as if their data were in one place."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from time import perf_counter
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Parameter

from fedhca2.clients import BatchWatch, Client, on_device
from fedhca2.clients.exchange import divergence
from fedhca2.clients.training import Learner
from fedhca2.errors import UserError
from fedhca2.federation.client_store import ClientQueue
from fedhca2.federation.in_process import InProcessRun
from fedhca2.federation.server import layouts_of
from fedhca2.messages import Order, Profile, Reply
from fedhca2.models.multitask import slot_prefix
from fedhca2.params import Slot


class PooledRun(InProcessRun):
    """Clients that train one encoder, and one decoder and head for each task of the same classes.

    They take turns at the steps, spread evenly over a round. A step uses a batch of one client, with the labels that it
    has. Parameters and moments are the same for all; running statistics stay with the client, whose images they follow.
    """

    all_stay: ClassVar[bool] = True

    def gather(self) -> None:
        """Let all clients use the parameters and moments of the first that has them."""
        super().gather()
        self.pool.shutdown()
        self._work_at(self.slots[:1])  # each step follows another
        parameters, moments = dict[Hashable, Parameter](), defaultdict[Tensor, Any](dict)
        for name in self.profiles:
            self.store.prepare([name])
            with self.store.borrow(name, changed=False) as client:
                with on_device(client):  # where it stays
                    pass
                share_parameters(client, parameters)
                share_moments(client, moments)

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Let clients evaluate, and then those that should train do so together; at the end, each has its own model."""
        for name in [name for name, order in orders.items() if order.finish]:
            with self.store.borrow(name) as client:
                client.personal = client.shared = Learner(deepcopy(client.personal.model), client.training)
        replies = super().perform({name: replace(order, train=False) for name, order in orders.items()}, watch)
        if training := [order for order in orders.values() if order.train]:
            names = [name for name, order in orders.items() if order.train]
            with self._working(ClientQueue((), {})) as working:
                working.append(trained := self.pool.submit(self._train, names, training[0].round, watch))
            replies = {name: replace(reply, **trained.result().get(name, {})) for name, reply in replies.items()}
        return replies

    def _train(self, names: Sequence[str], round: int, watch: BatchWatch) -> dict[str, dict[str, Any]]:
        """Train a round of these clients; returns what their replies say of it."""
        slot = self.slots[0]
        with ExitStack() as stack:
            stack.enter_context(self._explained("method pooled", self.experiment.training, slot))
            clients = {name: stack.enter_context(self.store.borrow(name)) for name in self.profiles}
            stack.enter_context(on_device(next(iter(clients.values()))))
            steps = {name: clients[name].single_steps(round, watch) for name in names}
            counts = {name: clients[name].steps for name in names}
            sums = {name: dict.fromkeys(clients[name].profile.tasks, 0.0) for name in names}
            seconds = dict.fromkeys(names, 0.0)
            for name in in_turns(counts):
                began = perf_counter()
                for task, loss in next(steps[name]).items():
                    sums[name][task] += loss / counts[name]
                seconds[name] += perf_counter() - began
            for name in names:
                clients[name].personal.end_round()
                if fault := divergence(sums[name], clients[name].personal.parameters):
                    raise UserError("method pooled", f"{name}: {fault}; a lower training.learning_rate may help")
        return {name: {"losses": sums[name], "seconds": seconds[name]} for name in names}


def share_parameters(client: Client, shared: dict[Hashable, Parameter]) -> None:
    """Replace a client's parameters by those that are known for their place, and make the others known."""
    model, profile = client.personal.model, client.profile
    for slot, tensors in model.slots().items():
        for name in tensors if not slot.part.endswith("_norms") else ():
            path, _, leaf = (slot_prefix(slot) + name).rpartition(".")
            module = model.get_submodule(path)
            own = module.get_parameter(leaf)
            module.register_parameter(leaf, shared.setdefault((*_place(profile, slot), name), own))


def share_moments(client: Client, shared: defaultdict[Tensor, Any]) -> None:
    """Let a client's optimiser use these moments, and add those of its parameters that nobody else has."""
    old = client.personal
    client.personal = client.shared = Learner(old.model, old.training)
    shared.update({own: old.optimizer.state[own] for own in client.personal.parameters if own in old.optimizer.state})
    client.personal.optimizer.state = shared


def _place(profile: Profile, slot: Slot) -> tuple[Hashable, ...]:
    """What clients that train one row have in common: its layouts, and of a task its name and its head's classes."""
    own: list[Slot] = [slot, Slot("head", slot.task)] if slot.task else [slot]
    return slot.task, *(layouts_of(profile, each) for each in own)


def in_turns(counts: Mapping[str, int]) -> list[str]:
    """Names in an order that spreads the turns of each evenly.

    >>> in_turns({"a": 4, "b": 2})
    ['a', 'b', 'a', 'a', 'b', 'a']
    """
    turns = [((turn + 0.5) / count, name) for name, count in counts.items() for turn in range(count)]
    return [name for _, name in sorted(turns, key=lambda turn: turn[0])]
