"""The client's side: names the parts of your own model, takes what the server sent, and sends what training changed."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from fedhca2.clients import ClientState, Privacy, load_reply, load_state, save_reply, save_state
from fedhca2.clients.exchange import Exchange, divergence
from fedhca2.experiment.clients import NAME
from fedhca2.federation.flower.records import Wire, decode_order, encode_profile, encode_reply
from fedhca2.messages import Order, Profile, Reply
from fedhca2.objectives import Anchor, squared_distance
from fedhca2.params import Slot, layouts, unflatten
from fedhca2.whole_files import private_folder

RUN, METRICS = "fedhca2", "metrics"  # records in a message beside the rows: what belongs to the run; scores
NOTHING_TAKEN = -1  # the number of the first rows is 0
STATE, REPLY = "state.safetensors", "reply.safetensors"
HEX = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Terms:
    """What an order says beside its rows: the run, what the method adds to training, and the number of the rows."""

    run: str
    method: str
    wire: Wire
    anchor: Anchor
    pull: float
    rows: int

    def as_record(self) -> ConfigRecord:
        """For a message."""
        return ConfigRecord(asdict(self))

    @classmethod
    def of(cls, content: RecordDict) -> "Terms":
        """Read what `as_record` wrote."""
        return cls(**content.config_records[RUN])  # type: ignore[arg-type]


class NamedParts:
    """A model whose tensors belong to slots by their names. Tensors that no prefix names stay with the client.

    >>> model = nn.ModuleDict({"body": nn.Linear(2, 2), "depth": nn.Linear(2, 1)})
    >>> parts = NamedParts(model, {"encoder": "body", "head.depth": "depth"})
    >>> {str(slot): list(tensors) for slot, tensors in parts.slots().items()}
    {'encoder': ['weight', 'bias'], 'head.depth': ['weight', 'bias']}
    """

    def __init__(self, model: nn.Module, prefixes: Mapping[str, str]) -> None:
        """`prefixes` has the name of a module for each slot; '' is the whole model, and longer names come first."""
        self.model = model
        self.parameters: Callable[[], Iterator[nn.Parameter]] = model.parameters
        self._names: dict[Slot, dict[str, str]] = {}  # a tensor's name in the model by its name in the slot
        slots = {Slot.parse(text): prefix.rstrip(".") for text, prefix in prefixes.items()}
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        norms = [name for name, _ in model.named_buffers() if ".running_" in f".{name}"]
        for slot, prefix in sorted(slots.items(), key=lambda item: len(item[1]), reverse=True):
            if slot.part.endswith("_norms"):
                raise ValueError(f"{slot}: should be an encoder, decoder or head, whose statistics belong to it")
            self._claim(slot, prefix, trained)
            if slot.statistics:
                self._claim(slot.statistics, prefix, norms)
            if slot not in self._names:
                raise ValueError(f"{slot}: a parameter's name should begin with {prefix!r}, found none that trains")
        self._names = dict(sorted(self._names.items()))
        self.tasks = tuple(dict.fromkeys(slot.task for slot in slots if slot.task))
        if not self.tasks:
            raise ValueError(f"parts should have a decoder.TASK or head.TASK, found {', '.join(prefixes) or 'none'}")

    def _claim(self, slot: Slot, prefix: str, names: list[str]) -> None:
        taken = {name for inner in self._names.values() for name in inner.values()}
        start = f"{prefix}." if prefix else ""
        members = {name.removeprefix(start): name for name in names if name.startswith(start) and name not in taken}
        if members:
            self._names[slot] = members

    def tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers by name; tied ones once."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def slots(self) -> dict[Slot, dict[str, Tensor]]:
        """The tensors of every slot, by their names within it."""
        held = self.tensors()
        return {slot: {inner: held[name] for inner, name in names.items()} for slot, names in self._names.items()}


class LocalRound:
    """One round of your training loop: its number, from 0, and the term that some methods add to the loss."""

    def __init__(self, number: int, strength: float, pulled: list[tuple[Tensor, Tensor]]) -> None:
        self.number = number
        self.strength, self.was_pulled = strength, False
        self._values, self._anchors = [value for value, _ in pulled], [anchor for _, anchor in pulled]

    def pull(self) -> Tensor:
        """(s/2)·‖θ − anchor‖² over encoder and decoders, to add to the loss of every step; 0 for most methods."""
        self.was_pulled = True
        if not self.strength or not self._values:
            return torch.zeros(())
        return 0.5 * self.strength * squared_distance(self._values, self._anchors)


Fit = Callable[[LocalRound], Mapping[str, float]]  # trains the model; returns the last loss of each task
Score = Callable[[], Mapping[str, float]]  # evaluates the model; returns its scores by name


class FlowerClient:
    """Your model in a federation, for one message of a ClientApp: build the model anew, and it gets its last values.

    What must survive is in `folder`: the model, the rows it was sent, and its last reply. It is written before a reply
    leaves, so a repeated message gets the same answer, and an exception leaves the state as it was.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        parts: Mapping[str, str],
        *,
        samples: int,
        folder: Path | str,
        dataset: str = "data",
    ) -> None:
        """`parts` names the module of each part: {"encoder": "body", "decoder.depth": "…", "head.depth": "…"}."""
        if not NAME.fullmatch(name):
            raise ValueError(f"a client's name should be letters, digits, '-', '_' and '.', found {name!r}")
        self.parts, self.folder = NamedParts(model, parts), Path(folder)
        self.profile = Profile(name, dataset, self.parts.tasks, samples, layouts(self.parts))
        self._run = ""

    def introduce(self, message: Message) -> Message:
        """Answer a query: name, data set, tasks, number of samples, and the names and shapes of parameters."""
        return Message(encode_profile(self.profile), reply_to=message)

    def train(self, message: Message, fit: Fit) -> Message:
        """Take the rows that were sent, train with `fit`, and answer with the update, agreements and losses."""
        order, terms = self._open(message)
        if order.round < self._round:
            raise ValueError(f"round of {self.profile.client} should be {self._round} or later, found {order.round}")
        again = order.round == self._round
        reply = load_reply(self._place / REPLY) if again else self._perform(order, terms, fit)
        content = encode_reply(reply, terms.wire)
        content[RUN] = ConfigRecord({"taken": self._taken})
        return Message(content, reply_to=message)

    def evaluate(self, message: Message, score: Score) -> Message:
        """Take the rows that were sent, and answer with the scores."""
        order, terms = self._open(message)
        declined = self._take(order, terms)
        self._save()
        scores = {name: float(value) for name, value in score().items()}
        told = ConfigRecord({"taken": self._taken, "declined": declined})
        return Message(RecordDict({METRICS: MetricRecord(dict(scores)), RUN: told}), reply_to=message)

    def _open(self, message: Message) -> tuple[Order, Terms]:
        """Return to the state after the last message of this run, and read the order."""
        terms = Terms.of(message.content)
        if not HEX.fullmatch(terms.run) or self._run not in ("", terms.run):
            raise ValueError(f"run should be {self._run or '32 hexadecimal digits'}, found {terms.run!r:.80}")
        self._run = terms.run
        self._place = private_folder(self.folder / terms.run / self.profile.client)
        self._exchange = Exchange(self.parts, Privacy(), Unlimited(), replaces=terms.anchor != "received")
        if (self._place / STATE).exists():
            self._restore(load_state(self._place / STATE))
        else:
            self._round, self._taken = -1, NOTHING_TAKEN
            self._save()
        return decode_order(message.content, self.profile.layouts), terms

    def _take(self, order: Order, terms: Terms) -> str:
        """Take rows once, however often they are sent; returns the reason if they do not fit."""
        if terms.rows <= self._taken:
            return ""
        fault = self._exchange.receive(self.parts, order)
        self._taken = self._taken if fault else terms.rows
        return f"its rows were not taken: {fault}" if fault else ""

    def _perform(self, order: Order, terms: Terms, fit: Fit) -> Reply:
        began = perf_counter()
        declined = self._take(order, terms)
        self._exchange.begin_training(self.parts, order)
        local = LocalRound(order.round, terms.pull, self._pulled(terms.anchor))
        losses = {task: float(loss) for task, loss in fit(local).items()}
        if not set(losses) <= set(self.profile.tasks):
            raise ValueError(f"losses should be of {', '.join(self.profile.tasks)}, found {', '.join(losses)}")
        if local.strength and not local.was_pulled:
            raise ValueError(f"{terms.method} adds a term to the loss: add pull() of the round to it, found no call")
        if fault := divergence(losses, self.parts.parameters()):
            self._restore(load_state(self._place / STATE))
            return Reply(self.profile.client, order.round, failed=fault)
        rows, agreement = self._exchange.outgoing(self.parts, order)
        seconds = perf_counter() - began
        reply = Reply(self.profile.client, order.round, rows, agreement, losses, seconds=seconds, declined=declined)
        save_reply(self._place / REPLY, reply)
        self._round = order.round
        self._save()
        return reply

    def _pulled(self, anchor: Anchor) -> list[tuple[Tensor, Tensor]]:
        """Parameters, each with its anchor."""
        rows = self._exchange.anchors(self.parts, anchor)
        anchors = {slot: unflatten(row, self.profile.layouts[slot]) for slot, row in rows.items()}
        held = self.parts.slots()
        return [(held[slot][name], anchor) for slot, by_name in anchors.items() for name, anchor in by_name.items()]

    def _save(self) -> None:
        tensors = {f"model/{name}": tensor for name, tensor in self.parts.tensors().items()}
        copies = {name: tensor.detach().cpu().clone() for name, tensor in (tensors | self._exchange.tensors()).items()}
        values: dict[str, Any] = {"round": self._round, "taken": self._taken, **self._exchange.values()}
        save_state(self._place / STATE, ClientState(copies, values))

    @torch.no_grad()
    def _restore(self, state: ClientState) -> None:
        held = self.parts.tensors()
        kept = {name.removeprefix("model/"): row for name, row in state.tensors.items() if name.startswith("model/")}
        if {name: row.shape for name, row in kept.items()} != {name: row.shape for name, row in held.items()}:
            raise ValueError(f"{self._place / STATE}: should have the model's names and shapes, found others")
        for name, tensor in held.items():
            tensor.copy_(kept[name])
        self._exchange.restore(state.tensors, state.values, next(self.parts.parameters()).device)
        self._round, self._taken = int(state.values["round"]), int(state.values["taken"])


class Unlimited:
    """Received rows of any length: the server is your own."""

    def longest(self, slot: Slot, round: int) -> float:
        """No limit."""
        return inf
