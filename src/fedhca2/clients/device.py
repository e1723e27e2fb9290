"""Where clients work: device slots, and training steps and forward passes captured as CUDA graphs on them.

A GPU only holds the client that is working on it, unless there is room for all. A graph works on its own tensors, in
memory of its own. A client's values are copied into them before an epoch and back after it. So memory does not grow
with the number of clients, and one capture serves all clients with the same architecture, tasks and sizes.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from fedhca2.clients.training import (
    PLAIN,
    Learner,
    LocalTerms,
    Losses,
    TaskLoss,
    add_gradients,
    autocast,
    autocast_dtype,
    set_mode,
    sum_of,
    take_step,
    task_loss,
)
from fedhca2.compiling import Graphs, capture_graph, compiled, with_constants
from fedhca2.data.batches import Batch, DeviceFeed
from fedhca2.models.fast import WeightsCastTogether, compile_parts, use_fast_layers
from fedhca2.models.multitask import MultiTaskModel, apply_head
from fedhca2.params import copy_packed, copy_values
from fedhca2.tasks import Task

if TYPE_CHECKING:
    from fedhca2.clients.client import Client

S = TypeVar("S", bound="CapturedStep")
T = TypeVar("T")
StepKind = Literal["plain", "captured", "compiled"]


class CompilingError(RuntimeError):
    """A step could not be compiled, usually because there is no C compiler."""


class Captures:
    """The graphs of one device slot, captured on first use."""

    def __init__(self, device: torch.device, *, compile: bool) -> None:
        self.device, self.compile = device, compile
        self.graphs = Graphs(device)

    def step(self, learner: Learner, batch: Batch, terms: LocalTerms) -> "CapturedStep":
        """The captured step for this learner's kind of model and batch, loaded with the learner's values."""
        return self._loaded(CapturedStep, learner, batch, terms)

    def gradients(self, learner: Learner, batch: Batch) -> "CapturedGradients":
        """The captured gradients of this learner's kind of model and batch, loaded with the learner's values."""
        return self._loaded(CapturedGradients, learner, batch, PLAIN)

    def _loaded(self, work: type[S], learner: Learner, batch: Batch, terms: LocalTerms) -> S:
        shapes = (*batch.labels, *((value.shape, value.dtype) for value in batch.tensors))
        key = (work, learner.model.kind, learner.training, shapes, terms.kind)
        try:
            step = self.graphs.get(key, lambda: work(self, learner, batch, terms))
        except Exception as error:
            if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise CompilingError(str(error).partition("\n")[0]) from error
            raise
        step.load(learner, terms)
        return step

    def forward(self, model: MultiTaskModel, image: Tensor, precision: str) -> "CapturedForward":
        """The captured forward pass for evaluation, loaded with the model's values."""
        key = (model.kind, image.shape, precision)
        forward = self.graphs.get(key, lambda: CapturedForward(self, model, image, precision))
        with torch.no_grad():
            copy_values(forward.values, _values(model))
        return forward


class CapturedStep:
    """`take_step` on its own tensors."""

    def __init__(self, captures: Captures, learner: Learner, batch: Batch, terms: LocalTerms) -> None:
        training = learner.training
        self.model = deepcopy(learner.model)
        set_mode(self.model, terms.frozen)
        use_fast_layers(self.model, compile=captures.compile)
        if captures.compile:
            compile_parts(self.model)
        self.batch = batch.map(Tensor.clone)
        self.terms = terms.map(Tensor.clone)
        rate = torch.zeros((), device=captures.device)
        groups = [{**group, "lr": rate.clone()} for group in training.groups(self.model)]
        self.optimizer = training.optimizer.build(groups, rate, training.weight_decay)
        self.losses = {task: torch.zeros((), device=captures.device) for task in self.model.decoders}
        self.total = torch.zeros((), device=captures.device)
        self.constants: dict[Hashable, Any] = {}
        self.values = _values(self.model)
        loss = compiled(task_loss, captures.compile)

        def run() -> None:
            weighted, precision = training.loss_weights, training.precision
            self.model.encoder.hold_fixed()  # again: a frozen backbone keeps what it computes from its weights
            with ExitStack() as fewer_kernels:
                fewer_kernels.enter_context(with_constants(self.constants))
                if not captures.compile and (cast := autocast_dtype(captures.device, precision)):
                    fewer_kernels.enter_context(WeightsCastTogether(self.model.parameters(), cast))
                losses = self._work(precision, loss, weighted)
            for task, value in losses.items():
                self.losses[task].copy_(value)
            self.total.copy_(sum_of(losses))

        self.graph = capture_graph(run)

    def _work(self, precision: str, loss: TaskLoss, weighted: bool) -> Losses:
        return take_step(self.model, self.optimizer, self.batch, precision, self.terms, loss, weighted)

    def __call__(self, batch: Batch) -> Losses:
        """Take one step on this batch; the next step overwrites the losses, and their `total`."""
        for own, value in zip(self.batch.tensors, batch.tensors, strict=True):
            own.copy_(value, non_blocking=True)
        self.graph.replay()
        return self.losses

    @torch.no_grad()
    def load(self, learner: Learner, terms: LocalTerms) -> None:
        """Load a learner's values and its learning rates."""
        copy_values(self.values, [*learner.parameters, *learner.model.buffers()])
        copy_values(self.terms.tensors, terms.tensors)
        for group, other in zip(self.optimizer.param_groups, learner.optimizer.param_groups, strict=True):
            group["lr"].fill_(other["lr"])
        moments = list(self._moments(learner))
        pairs = [(own, learners[name]) for own, learners, name in moments if name in learners]
        copy_values([own for own, _ in pairs], [other for _, other in pairs])
        if fresh := [own for own, learners, name in moments if name not in learners]:  # not trained yet
            torch._foreach_zero_(fresh)

    @torch.no_grad()
    def store(self, learner: Learner) -> None:
        """Copy the values after the steps back to the learner."""
        copy_values([*learner.parameters, *learner.model.buffers()], self.values)
        moments = list(self._moments(learner))
        pairs = [(own, learners[name]) for own, learners, name in moments if name in learners]
        copy_values([other for _, other in pairs], [own for own, _ in pairs])
        fresh = [moment for moment in moments if moment[2] not in moment[1]]
        for copy, (_, learners, name) in zip(copy_packed([own for own, _, _ in fresh]), fresh, strict=True):
            learners[name] = copy

    def _moments(self, learner: Learner) -> Iterator[tuple[Tensor, dict[str, Tensor], str]]:
        """The optimiser's tensors: each with the learner's of the same parameter, and its name among them."""
        for own, other in zip(self.model.parameters(), learner.parameters, strict=True):
            for name, value in self.optimizer.state.get(own, {}).items():
                yield value, learner.optimizer.state[other], name


class CapturedGradients(CapturedStep):
    """`add_gradients` on its own tensors, which hold the gradients of one batch."""

    def _work(self, precision: str, loss: TaskLoss, weighted: bool) -> Losses:
        self.model.zero_grad()
        return add_gradients(self.model, self.batch, precision, self.terms, loss, weighted)

    @torch.no_grad()
    def add_to(self, learner: Learner, batch: Batch) -> Losses:
        """Add the gradients of a batch to those of a learner, and update its running statistics."""
        losses = self(batch)
        pairs = zip(learner.parameters, self.model.parameters(), strict=True)
        both = [(parameter, own.grad) for parameter, own in pairs if own.grad is not None]
        sums = [(parameter.grad, own) for parameter, own in both if parameter.grad is not None]
        if sums:
            torch._foreach_add_([total for total, _ in sums], [own for _, own in sums])
        for parameter, own in both:
            if parameter.grad is None:
                parameter.grad = own.clone()
        copy_values(list(learner.model.buffers()), list(self.model.buffers()))
        return losses


def task_prediction(task: Task, head: nn.Module, decoded: Tensor, size: torch.Size) -> Tensor:
    """One task's final prediction, from its decoder's features."""
    return task.predict(apply_head(head, decoded, size))


class CapturedForward:
    """Predictions of all tasks, on its own tensors."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, captures: Captures, model: MultiTaskModel, image: Tensor, precision: str) -> None:
        self.model = deepcopy(model)
        use_fast_layers(self.model, compile=captures.compile)
        self.image = image.clone()
        self.predictions: dict[str, Tensor] = {}
        self.constants: dict[Hashable, Any] = {}
        self.values = _values(self.model)
        predict = compiled(task_prediction, captures.compile)

        def run() -> None:
            self.model.eval()  # again: backbones keep what they compute from their weights until a mode is set
            with autocast(image.device, precision), with_constants(self.constants):
                decoded = self.model.decode(self.model.encoder(self.image))
                for task, head in self.model.heads.items():
                    prediction = predict(model.tasks[task], head, decoded[task], self.image.shape[-2:])
                    self.predictions.setdefault(task, torch.empty_like(prediction)).copy_(prediction)

        self.graph = capture_graph(run)

    def __call__(self, image: Tensor) -> Mapping[str, Tensor]:
        """Predict every task in its final form; the next call overwrites the result."""
        self.image.copy_(image, non_blocking=True)
        self.graph.replay()
        return self.predictions


def _values(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


class Stopped(Exception):  # noqa: N818
    """Work at a device slot ended early, because `DeviceSlot.stop` was set."""


class DeviceSlot:
    """A device for one client at a time, with the graphs captured on it and the feed of its batches.

    Several device slots on one GPU let several clients work at the same time.
    """

    def __init__(self, device: torch.device, step: StepKind = "captured", *, keeps: bool = False) -> None:
        """`keeps`: clients stay on the GPU when they have worked."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.keeps = device, keeps
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        gpu = device.type == "cuda" and step != "plain"
        self.captures = Captures(device, compile=step == "compiled") if gpu else None
        self.feed = DeviceFeed(device, compile=step == "compiled") if device.type == "cuda" else None
        self.kinds: set[str] = set()  # of clients that have worked here
        self.stop = Event()  # while it is set, work here ends with the current batch

    def until_stopped(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, and raise Stopped instead of the next one when `stop` is set."""
        for batch in batches:
            if self.stop.is_set():
                raise Stopped
            yield batch
            if self.stop.is_set():  # before the next one is read
                raise Stopped

    def release(self) -> None:
        """Let go of graphs, images and other memory; the slot takes no further steps."""
        self.captures = self.feed = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def on_device(client: "Client") -> Iterator[None]:
    """Move everything a client holds to its device slot for a while, then back to host memory, unless it stays."""
    slot = client.device_slot
    device = slot.device
    if device.type == "cpu":
        yield
        return

    def copied(tensor: Tensor) -> Tensor:  # once the stream has reached this point
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)

    with torch.cuda.device(device), torch.cuda.stream(slot.stream):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())  # which may still be writing the rows
        was_there = client.where == device
        # Rows that it replaces may be memory of another slot's stream, which that slot would use again at once.
        replaced = client.exchange.tensors()
        if not was_there:
            _move(client, lambda tensor: tensor.to(device, non_blocking=True))
        try:
            yield
        finally:
            if not was_there and not slot.keeps:
                _move(client, copied)
            torch.cuda.current_stream().synchronize()
            replaced.clear()


def _move(client: "Client", copied: Callable[[Tensor], Tensor]) -> None:
    """Move everything a client holds: large tensors one by one, and small ones, of which there are many, together."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    client.move(collect)
    moved = iter(copy_packed([tensor for tensor in tensors if _is_small(tensor)], copied))
    client.move(lambda tensor: next(moved) if _is_small(tensor) else copied(tensor))


def _is_small(tensor: Tensor) -> bool:
    return tensor.nbytes < 2**18 and tensor.is_contiguous()  # copying it costs more than its bytes
