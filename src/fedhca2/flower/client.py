"""The client's side: names the parts of your own model, takes what the server sent, and sends what training changed."""

import re
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from flwr.app import Message
from torch import Tensor, nn

from fedhca2.clients import ClientState, Privacy, load_state, save_state
from fedhca2.clients.exchange import DeclinedError, Exchange, divergence
from fedhca2.clients.state_file import STATE_FILE, reply_again, save_answer
from fedhca2.experiment.clients import NAME
from fedhca2.federation.flower.records import decode_order, encode_reply, header_of, pack, profile_as_data
from fedhca2.messages import Order, Profile, Reply
from fedhca2.objectives import Attracted, Objective, Proximal, squared_distance
from fedhca2.params import Slot, layouts, unflatten
from fedhca2.whole_files import private_folder

PROTOCOL = 2  # version of these messages; server and clients need the same
NOTHING_TAKEN = -1  # the number of the first rows is 0


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
                raise ValueError(f"{slot}: expected an encoder, decoder or head, whose statistics belong to it")
            self._claim(slot, prefix, trained)
            if slot.statistics:
                self._claim(slot.statistics, prefix, norms)
            if slot not in self._names:
                raise ValueError(f"{slot}: expected a trained parameter whose name begins with {prefix!r}, got none")
        self._names = dict(sorted(self._names.items()))
        self.tasks = tuple(dict.fromkeys(slot.task for slot in slots if slot.task))
        if not self.tasks:
            raise ValueError(f"parts: expected a decoder.TASK or head.TASK, got {', '.join(prefixes) or 'none'}")

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
        tensors = self.tensors()
        return {slot: {inner: tensors[name] for inner, name in names.items()} for slot, names in self._names.items()}


class LocalRound:
    """One round of your training loop: its number, from 0, and the term that some methods add to the loss.

    Set `steps` to the number of steps that you took if it differs between clients and the method is FedNova.
    """

    def __init__(self, number: int, strength: float, pulled: list[tuple[Tensor, Tensor]]) -> None:
        self.number, self.steps = number, 1
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
    """Adapts your PyTorch model to a strategy of this package. Create one for every message in your ClientApp.

    The constructor restores nothing; `train` and `evaluate` load the state saved in `folder` into the model first. The
    state is written before a reply leaves: a repeated message gets the same answer, and an exception changes nothing.
    `examples/flower_app` is a whole app.
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
        """Take the model as it is initialised; `name` is this client's, and no other connected client has it.

        :param parts: the module of each part: {"encoder": "body", "decoder.depth": "…", "head.depth": "…"}.
        :param samples: the number of training samples, a client's weight in some methods.
        :param folder: where this client keeps its state; a folder for each run is made in it.
        :param dataset: tells clients of different data sets apart, for methods that group clients.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"name: expected letters, digits, '-', '_' and '.', got {name!r}")
        self.parts, self.folder = NamedParts(model, parts), Path(folder)
        self.profile = Profile(name, dataset, self.parts.tasks, samples, layouts(self.parts))
        self._run = ""

    def introduce(self, message: Message) -> Message:
        """Answer a query: name, data set, tasks, number of samples, and the names and shapes of parameters."""
        return Message(pack({**profile_as_data(self.profile), "protocol": PROTOCOL}), reply_to=message)

    def train(self, message: Message, fit: Fit) -> Message:
        """Take the rows that were sent, train with `fit`, and answer with the update, agreements and losses."""
        header = self._open(message)
        order = decode_order(message.content, self.profile.layouts)
        reply = reply_again(self._folder, order, self._round) or self._perform(order, header, fit)
        return Message(encode_reply(reply, header["wire"], taken=self._taken), reply_to=message)

    def evaluate(self, message: Message, score: Score) -> Message:
        """Take the rows that were sent, and answer with the scores."""
        header = self._open(message)
        declined = self._take(decode_order(message.content, self.profile.layouts), header["rows"])
        save_state(self._folder / STATE_FILE, self._state())
        scores = {name: float(value) for name, value in score().items()}
        return Message(pack({"scores": scores, "taken": self._taken, "declined": declined}), reply_to=message)

    def _open(self, message: Message) -> dict[str, Any]:
        """Return to the state after the last message of this run; returns the header of the message."""
        header = header_of(message.content)
        run = header["run"]
        if not re.fullmatch("[0-9a-f]{32}", run) or self._run not in ("", run):  # it becomes the name of a folder
            raise ValueError(f"run: expected {self._run or '32 hexadecimal digits'}, got {run!r:.80}")
        self._run = run
        self._folder = private_folder(self.folder / run / self.profile.client)
        objective = {"none": Objective(), "start": Proximal(), "received": Attracted()}[header["anchor"]]
        self._exchange = Exchange(self.parts, Privacy(), lambda slot, round: inf, objective)
        if (self._folder / STATE_FILE).exists():
            self._restore(load_state(self._folder / STATE_FILE))
        else:
            self._round, self._taken = -1, NOTHING_TAKEN
            save_state(self._folder / STATE_FILE, self._state())
        return header

    def _take(self, order: Order, number: int) -> str:
        """Take rows once, however often they are sent; returns the reason if they do not fit."""
        if number <= self._taken:
            return ""
        try:
            self._exchange.receive(self.parts, order)
        except DeclinedError as error:
            return f"its rows were not taken: {error}"
        self._taken = number
        return ""

    def _perform(self, order: Order, header: Mapping[str, Any], fit: Fit) -> Reply:
        began = perf_counter()
        declined = self._take(order, header["rows"])
        self._exchange.begin_training(self.parts, order)
        local = LocalRound(order.round, header["pull"], self._pair_with_anchors())
        losses = {task: float(loss) for task, loss in fit(local).items()}
        if not set(losses) <= set(self.profile.tasks):
            raise ValueError(f"losses: expected those of {', '.join(self.profile.tasks)}, got {', '.join(losses)}")
        if local.strength and not local.was_pulled:
            raise ValueError(
                f"fit: expected `loss + round.pull()` in the training loop of {header['method']}, got no call of pull()"
            )
        if fault := divergence(losses, self.parts.parameters()):
            self._restore(load_state(self._folder / STATE_FILE))
            return Reply(self.profile.client, order.round, failed=fault)
        rows, agreement = self._exchange.outgoing(self.parts, order, local.steps, lambda part: 0.0)
        report = {"seconds": perf_counter() - began, "steps": local.steps, "declined": declined}
        reply = Reply(self.profile.client, order.round, rows, agreement, losses, **report)  # type: ignore[arg-type]
        self._round = order.round
        save_answer(self._folder, reply, self._state())
        return reply

    def _pair_with_anchors(self) -> list[tuple[Tensor, Tensor]]:
        """Parameters, each with its anchor."""
        rows, tensors = self._exchange.anchors(self.parts), self.parts.slots()
        return [
            (tensors[slot][name], anchor)
            for slot, row in rows.items()
            for name, anchor in unflatten(row, self.profile.layouts[slot]).items()
        ]

    def _state(self) -> ClientState:
        tensors = {f"model/{name}": tensor for name, tensor in self.parts.tensors().items()}
        copies = {name: tensor.detach().cpu().clone() for name, tensor in (tensors | self._exchange.tensors()).items()}
        return ClientState(copies, {"round": self._round, "taken": self._taken, **self._exchange.values()})

    @torch.no_grad()
    def _restore(self, state: ClientState) -> None:
        tensors = self.parts.tensors()
        saved = {name.removeprefix("model/"): row for name, row in state.tensors.items() if name.startswith("model/")}
        if {name: row.shape for name, row in saved.items()} != {name: row.shape for name, row in tensors.items()}:
            raise ValueError(f"{self._folder / STATE_FILE}: expected the model's names and shapes, got others")
        for name, tensor in tensors.items():
            tensor.copy_(saved[name])
        self._exchange.restore(state.tensors, state.values, next(self.parts.parameters()).device)
        self._round, self._taken = int(state.values["round"]), int(state.values["taken"])
