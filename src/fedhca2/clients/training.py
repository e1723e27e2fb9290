"""The training loop, the only one for every method: settings, optimiser, learning rates, and one step after another."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import cos, pi
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from fedhca2.config import Config
from fedhca2.data.augmentation import SCALES
from fedhca2.data.batches import Batch
from fedhca2.models.layers import dropping
from fedhca2.models.multitask import MultiTaskModel, Scaled, apply_head, slot_prefix
from fedhca2.objectives import add_pull
from fedhca2.params import ENCODER, Part, copy_values
from fedhca2.tasks import Task

if TYPE_CHECKING:
    from fedhca2.clients.device import Captures

BETAS = (0.9, 0.999)  # how much of Adam's moments stays in each step

Losses = dict[str, Tensor]
TaskLoss = Callable[[Task, nn.Module, Tensor, Tensor], Tensor]
Watch = Callable[[Tensor], None]  # called with the loss of every batch


class OptimizerConfig(Config):
    """AdamW; Adam or SGD, which add the weight decay to the gradient."""

    kind: Literal["adamw", "adam", "sgd"] = Field("adamw", description="the algorithm")
    amsgrad: bool = Field(False, description="Adam and AdamW divide by the largest second moment so far, not the last")
    momentum: float = Field(0.0, ge=0, lt=1, description="how much of the last SGD step goes into the next")
    reset: Literal["never", "every_round"] = Field("never", description="when moments and steps are reset")

    @model_validator(mode="after")
    def _only_of_its_kind(self) -> "OptimizerConfig":
        if self.kind == "sgd" and self.amsgrad:
            raise ValueError("expected amsgrad with adam or adamw only, got it with sgd")
        if self.kind != "sgd" and self.momentum:
            raise ValueError(f"expected momentum with sgd only, got it with {self.kind}, which has its own")
        return self

    def build(self, parameters: Iterable[Any], rate: float | Tensor, weight_decay: float) -> Optimizer:
        """Build torch's optimiser of these parameters, or groups; with a tensor as rate, steps can be captured."""
        captured = isinstance(rate, Tensor)
        if self.kind == "sgd":
            # Only fused steps can be captured, and only others can start with moments of some parameters but not all.
            return SGD(parameters, rate, momentum=self.momentum, weight_decay=weight_decay, fused=captured or None)
        algorithm = AdamW if self.kind == "adamw" else Adam
        return algorithm(
            parameters,
            rate,
            betas=BETAS,
            weight_decay=weight_decay,
            amsgrad=self.amsgrad,
            fused=True,
            capturable=captured,
        )


class Schedule(Config):
    """A linear warm-up, then half a cosine down to `lowest`, or steps down by `decay`."""

    warmup_epochs: int = Field(5, ge=0, description="epochs of the warm-up")
    warmup_from: float = Field(1.25e-7, ge=0, description="rate at the start of the warm-up")
    lowest: float = Field(1.25e-6, ge=0, description="rate at the end")
    lag: bool = Field(True, description="use the previous epoch's rate, as the authors' code does")

    decay: float | None = Field(None, gt=0, le=1, description="factor per step, instead of the cosine")
    decay_every: int = Field(1, ge=1, description="epochs between steps of `decay`")

    def rate(self, epoch: int, epochs: float, peak: float) -> float:
        """The learning rate of one of this many epochs, of which the last may be cut short.

        >>> [Schedule().rate(epoch, 10, 1e-4) for epoch in (0, 1, 6)]
        [1.25e-07, 1.25e-07, 0.0001]
        >>> Schedule(warmup_epochs=0, lag=False, decay=0.5, decay_every=2).rate(5, 10, 1e-4)
        2.5e-05
        """
        step = max(epoch - 1, 0) if self.lag else epoch
        if step < self.warmup_epochs:
            return self.warmup_from + step * (peak - self.warmup_from) / self.warmup_epochs
        if self.decay is not None:
            return max(peak * self.decay ** ((step - self.warmup_epochs) // self.decay_every), self.lowest)
        progress = (step - self.warmup_epochs) / max(epochs - self.warmup_epochs, 1)
        return self.lowest + 0.5 * (peak - self.lowest) * (1 + cos(pi * min(progress, 1.0)))


class Training(Config):
    """Settings of a client's training."""

    batch_size: int = Field(8, ge=1, description="images per step")
    learning_rate: float = Field(1e-4, gt=0, description="the highest rate, reached after the warm-up")
    encoder_rate: float | None = Field(
        None,
        gt=0,
        description="the encoder's highest rate, by default `learning_rate`; it follows the same schedule. "
        "`model.encoder.frozen` keeps a backbone as it is",
    )
    weight_decay: float = Field(1e-4, ge=0, description="weight decay of all parameters")
    optimizer: OptimizerConfig = OptimizerConfig()
    loss_weights: bool = Field(True, description="multiply each task's loss by the task's weight")
    schedule: Schedule = Schedule()
    augment: bool = Field(True, description="random scale, crop, flip and colours")
    scales: tuple[Annotated[float, Field(gt=0, le=10)], Annotated[float, Field(gt=0, le=10)]] = Field(
        SCALES, description="smallest and largest scale of augmented images"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 if the GPU has it")
    workers: int = Field(0, ge=0, description="threads that preload images")
    step: Literal["auto", "plain", "captured", "compiled"] = Field(
        "auto",
        description="on a GPU: captured as a CUDA graph, or also compiled; auto: compiled if the run is long enough",
    )

    @field_validator("scales")
    @classmethod
    def _scales_in_order(cls, scales: tuple[float, float]) -> tuple[float, float]:
        if scales[0] > scales[1]:
            raise ValueError(f"expected the smallest and the largest scale, in this order, got {list(scales)}")
        return scales

    def rate_share(self, part: Part) -> float:
        """The rate of a part, as a share of the schedule's."""
        return self.encoder_rate / self.learning_rate if part == "encoder" and self.encoder_rate else 1.0

    def groups(self, model: MultiTaskModel) -> list[dict[str, Any]]:
        """A model's parameters in torch's groups, each with its `share` of the schedule's rate."""
        if self.encoder_rate is None:
            return [{"params": list(model.parameters()), "share": 1.0}]
        encoder = list(model.encoder.parameters())
        others = [each for name, each in model.named_parameters() if not name.startswith(slot_prefix(ENCODER))]
        return [{"params": encoder, "share": self.rate_share("encoder")}, {"params": others, "share": 1.0}]


@dataclass(frozen=True)
class LocalTerms:
    """What a method adds to a step: frozen parts, and parameters that are pulled towards an anchor, or that drift."""

    frozen: frozenset[Part] = frozenset()
    pull: float = 0.0
    pulled: Sequence[tuple[str, Tensor]] = ()  # a parameter's name, and its anchor
    drifts: Sequence[tuple[str, Tensor]] = ()  # and what is subtracted from it, times the learning rate

    def map(self, changed: Callable[[Tensor], Tensor]) -> "LocalTerms":
        """The same with other tensors."""
        pairs = ([(name, changed(tensor)) for name, tensor in each] for each in (self.pulled, self.drifts))
        return LocalTerms(self.frozen, self.pull, *pairs)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return [tensor for _, tensor in (*self.pulled, *self.drifts)]

    @property
    def kind(self) -> Hashable:
        """Everything but the tensors."""
        return self.frozen, self.pull, tuple(name for name, _ in self.pulled), tuple(name for name, _ in self.drifts)


PLAIN = LocalTerms()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Mixed precision, if requested or if the device supports it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=autocast_dtype(device, precision) is not None)


def autocast_dtype(device: torch.device, precision: str) -> torch.dtype | None:
    """The type of mixed precision, None without it."""
    enabled = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.bfloat16 if enabled else None


def set_mode(model: MultiTaskModel, frozen: frozenset[Part]) -> None:
    """Set training mode; frozen parts, and a frozen backbone, keep parameters and the statistics of BatchNorms.

    An interaction is frozen with the decoders.
    """
    decoders = [("decoder", module) for module in (model.decoders, model.interaction) if module is not None]
    for part, module in (("encoder", model.encoder), *decoders, ("head", model.heads)):
        module.train(part not in frozen).requires_grad_(part not in frozen)
    model.encoder.hold_fixed()


def task_loss(task: Task, head: nn.Module, decoded: Tensor, label: Tensor) -> Tensor:
    """The loss of one task, from its decoder's features."""
    return loss_of(task, head, apply_head(head, decoded, label.shape[-2:]), label)


def loss_of(task: Task, head: nn.Module, output: Tensor, label: Tensor) -> Tensor:
    """The loss of a head's output, of standardised values if it has their mean and deviation."""
    if isinstance(head, Scaled):
        output, label = head.standardised(output), head.standardised(label)
    return task.loss(output, label)


def sum_of(losses: Losses) -> Tensor:
    """The sum of all tasks' losses."""
    return torch.stack(list(losses.values())).sum()


def total_loss(model: MultiTaskModel, losses: Losses, weighted: bool) -> Tensor:
    """The sum of all tasks' losses, each times its task's weight if they are `weighted`."""
    return sum_of({task: model.tasks[task].weight * value if weighted else value for task, value in losses.items()})


def add_gradients(
    model: MultiTaskModel,
    batch: Batch,
    precision: str,
    terms: LocalTerms = PLAIN,
    loss: TaskLoss = task_loss,
    weighted: bool = True,
) -> Losses:
    """Add a batch's gradients to those of the parameters, with each task's loss `weighted` or not.

    Returns the losses before weighting.
    """
    with autocast(batch.image.device, precision), dropping(model.drops, batch.keep):
        decoded = model.decode(model.encoder(batch.image))
        losses = {
            task: loss(model.tasks[task], head, decoded[task], batch.labels[task]) for task, head in model.heads.items()
        }
    torch.autograd.backward(total_loss(model, losses, weighted))
    if terms.pulled:
        own = dict(model.named_parameters())
        add_pull([own[name] for name, _ in terms.pulled], [anchor for _, anchor in terms.pulled], terms.pull)
    return {task: value.detach() for task, value in losses.items()}


def take_step(
    model: MultiTaskModel,
    optimizer: Optimizer,
    batch: Batch,
    precision: str,
    terms: LocalTerms = PLAIN,
    loss: TaskLoss = task_loss,
    weighted: bool = True,
) -> Losses:
    """Update the model once with the gradients of a batch; returns the losses before weighting."""
    optimizer.zero_grad()
    losses = add_gradients(model, batch, precision, terms, loss, weighted)
    optimizer.step()
    if terms.drifts:
        own = dict(model.named_parameters())
        rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
        with torch.no_grad():
            for name, drift in terms.drifts:
                if own[name].requires_grad:
                    own[name].sub_(drift * rates[own[name]])
    return losses


class Learner:
    """A model and its optimiser.

    Moments persist across rounds, although the server changes the parameters, unless the optimiser is reset.
    """

    def __init__(self, model: MultiTaskModel, training: Training) -> None:
        self.model = model
        self.training = training
        self.parameters = list(model.parameters())
        self.optimizer = training.optimizer.build(training.groups(model), training.learning_rate, training.weight_decay)

    def train_epoch(
        self,
        batches: Iterable[Batch],
        rate: float,
        terms: LocalTerms = PLAIN,
        *,
        watch: Watch = lambda loss: None,
        captures: "Captures | None" = None,
    ) -> dict[str, float]:
        """Train one epoch at the schedule's `rate` on the model's device; returns each task's mean unweighted loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        precision, weighted = self.training.precision, self.training.loss_weights
        captured = None
        sums: Losses = {}
        count = 0
        for batch in batches:
            if captures:
                captured = captured or captures.step(self, batch, terms)
                losses = captured(batch)
            else:
                if not count:
                    set_mode(self.model, terms.frozen)
                losses = take_step(self.model, self.optimizer, batch, precision, terms, weighted=weighted)
            sums = {task: sums[task] + loss if sums else loss.clone() for task, loss in losses.items()}
            count += 1
            watch(captured.total if captured else sum_of(losses))
        if captured:
            captured.store(self)
        return {task: float(sums[task]) / count if count else 0.0 for task in self.model.decoders}

    def add_gradients(self, batch: Batch, captures: "Captures | None") -> Losses:
        """Add a batch's gradients to those of the parameters, for a step of an optimiser elsewhere."""
        if captures:
            return captures.gradients(self, batch).add_to(self, batch)
        set_mode(self.model, frozenset())
        return add_gradients(self.model, batch, self.training.precision, weighted=self.training.loss_weights)

    def end_round(self) -> None:
        """Reset the moments if they should not persist across rounds."""
        if self.training.optimizer.reset == "every_round":
            self.optimizer.state.clear()

    def move(self, moved: Callable[[Tensor], Tensor]) -> None:
        """Move the model and its moments to another device."""
        self.model._apply(moved)  # type: ignore[no-untyped-call]
        for moments in self.optimizer.state.values():
            moments.update({name: moved(value) for name, value in moments.items()})

    def tensors(self, kind: str) -> dict[str, Tensor]:
        """The model's values and moments by name, for the client's state; `kind` distinguishes the client's models.

        A frozen backbone is not part of it.
        """
        fixed = self.model.fixed
        values = self.model.state_dict(keep_vars=True)  # without a call into torch for each
        tensors = {f"{kind}/model/{name}": tensor for name, tensor in values.items() if name not in fixed}
        for name, parameter in self.model.named_parameters() if self.optimizer.state else ():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{kind}/optimizer/{moment}/{name}"] = value
        return tensors

    def restore(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; raises ValueError if it does not fit."""
        prefix = f"{kind}/model/"
        model = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        own, values = self.model.state_dict(keep_vars=True), {**self.model.fixed, **model}
        shapes, saved = ({name: tuple(value.shape) for name, value in each.items()} for each in (own, values))
        if misfits := [name for name in {**shapes, **saved} if shapes.get(name) != saved.get(name)]:
            name = misfits[0]
            sizes = f"expected shape {shapes.get(name, 'none')}, got {saved.get(name, 'none')}"
            raise ValueError(f"the state does not fit the {kind} model: {name}: {sizes}")
        copy_values(list(own.values()), [values[name] for name in own])
        parameters = dict(self.model.named_parameters())
        for each in self.parameters:  # others' may be there too
            self.optimizer.state.pop(each, None)
        for name, tensor in tensors.items():
            if name.startswith(f"{kind}/optimizer/"):
                moment, _, parameter = name.removeprefix(f"{kind}/optimizer/").partition("/")
                moments = self.optimizer.state[parameters[parameter]]
                moments[moment] = tensor.to(parameters[parameter].device, copy=True)
