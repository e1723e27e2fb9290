"""A training step and a forward pass captured as CUDA graphs, shared by all clients of the same kind.

A graph works on its own tensors, in memory of its own. A client's values are copied into them before an epoch and back
after it. So memory does not grow with the number of clients, and one capture serves all clients with the same
architecture, tasks and sizes.
"""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedhca2.clients.step import (
    LocalTerms,
    Losses,
    autocast,
    autocast_dtype,
    set_mode,
    sum_of,
    take_step,
    task_loss,
    task_prediction,
)
from fedhca2.compiling import Graphs, capture_graph, compiled, with_constants
from fedhca2.data.batches import Batch
from fedhca2.models.fast import WeightsCastTogether, compile_parts, quicken
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.packing import copied_together

if TYPE_CHECKING:
    from fedhca2.clients.training import Learner


class CompilingError(RuntimeError):
    """A step could not be compiled, usually because there is no C compiler."""


class Captures:
    """The graphs of one device slot, captured on first use."""

    def __init__(self, device: torch.device, *, compile: bool) -> None:
        self.device, self.compile = device, compile
        self.graphs = Graphs(device)

    def step(self, learner: "Learner", batch: Batch, terms: LocalTerms) -> "CapturedStep":
        """The captured step for this learner's kind of model and batch, loaded with the learner's values."""
        names = tuple(name for name, _ in terms.pulled)
        key = (learner.model.kind, learner.training, _shapes(batch), terms.frozen, terms.pull, names)
        try:
            step = self.graphs.get(key, lambda: CapturedStep(self, learner, batch, terms))
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
            _copy(forward.values, _values(model))
        return forward


class CapturedStep:
    """`take_step` on its own tensors."""

    def __init__(self, captures: Captures, learner: "Learner", batch: Batch, terms: LocalTerms) -> None:
        training = learner.training
        self.model = deepcopy(learner.model)
        set_mode(self.model, terms.frozen)
        quicken(self.model, compile=captures.compile)
        if captures.compile:
            compile_parts(self.model)
        self.batch = batch.map(Tensor.clone)
        self.terms = LocalTerms(terms.frozen, terms.pull, [(name, anchor.clone()) for name, anchor in terms.pulled])
        self.rate = torch.zeros((), device=captures.device)
        self.optimizer = training.optimizer.build(self.model.parameters(), self.rate, training.weight_decay)
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
                losses = take_step(self.model, self.optimizer, self.batch, precision, self.terms, loss, weighted)
            for task, value in losses.items():
                self.losses[task].copy_(value)
            self.total.copy_(sum_of(losses))

        self.graph = capture_graph(run)

    def __call__(self, batch: Batch) -> Losses:
        """Take one step on this batch; the next step overwrites the losses, and their `total`."""
        for own, value in zip(self.batch.tensors, batch.tensors, strict=True):
            own.copy_(value, non_blocking=True)
        self.graph.replay()
        return self.losses

    @torch.no_grad()
    def load(self, learner: "Learner", terms: LocalTerms) -> None:
        """Load a learner's values and its learning rate."""
        _copy(self.values, [*learner.optimizer.parameters, *learner.model.buffers()])
        _copy([anchor for _, anchor in self.terms.pulled], [anchor for _, anchor in terms.pulled])
        self.rate.fill_(learner.optimizer.rate)
        moments = list(self._moments(learner))
        known = [(own, held[name]) for own, held, name in moments if name in held]
        _copy([own for own, _ in known], [other for _, other in known])
        if fresh := [own for own, held, name in moments if name not in held]:  # not trained yet
            torch._foreach_zero_(fresh)

    @torch.no_grad()
    def store(self, learner: "Learner") -> None:
        """Copy the values after the steps back to the learner."""
        _copy([*learner.optimizer.parameters, *learner.model.buffers()], self.values)
        moments = list(self._moments(learner))
        known = [(own, held[name]) for own, held, name in moments if name in held]
        _copy([other for _, other in known], [own for own, _ in known])
        fresh = [moment for moment in moments if moment[2] not in moment[1]]
        for copy, (_, held, name) in zip(copied_together([own for own, _, _ in fresh]), fresh, strict=True):
            held[name] = copy

    def _moments(self, learner: "Learner") -> Iterator[tuple[Tensor, dict[str, Tensor], str]]:
        """The optimiser's tensors: each with the learner's of the same parameter, and its name among them."""
        for own, other in zip(self.optimizer.parameters, learner.optimizer.parameters, strict=True):
            for name, value in self.optimizer.state[own].items() if own in self.optimizer.state else ():
                yield value, learner.optimizer.state[other], name


class CapturedForward:
    """Predictions of all tasks, on its own tensors."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(self, captures: Captures, model: MultiTaskModel, image: Tensor, precision: str) -> None:
        self.model = deepcopy(model)
        quicken(self.model, compile=captures.compile)
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


def _shapes(batch: Batch) -> Hashable:
    return *batch.labels, *((value.shape, value.dtype) for value in batch.tensors)


def _values(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
