"""The training loop: the only one, for every method."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedhca2.clients.capture import CapturedStep, Captures
from fedhca2.clients.optimizer import OptimizerConfig, Schedule
from fedhca2.clients.step import PLAIN, LocalTerms, Losses, set_mode, sum_of, take_step
from fedhca2.config import Config
from fedhca2.data.batches import Batch
from fedhca2.data.transforms import SCALES
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.packing import copy_values

Watch = Callable[[Tensor], None]  # called with the loss of every batch


class Training(Config):
    """Settings of a client's training."""

    batch_size: Annotated[int, Field(ge=1, description="images per step")] = 8
    learning_rate: Annotated[float, Field(gt=0, description="the highest rate, reached after the warm-up")] = 1e-4
    weight_decay: Annotated[float, Field(ge=0, description="of all parameters")] = 1e-4
    optimizer: OptimizerConfig = OptimizerConfig()
    loss_weights: Annotated[bool, Field(description="multiply each task's loss by the task's weight")] = True
    schedule: Schedule = Schedule()
    augment: Annotated[bool, Field(description="random scale, crop, flip and colours")] = True
    scales: Annotated[
        tuple[Annotated[float, Field(gt=0, le=10)], Annotated[float, Field(gt=0, le=10)]],
        Field(description="smallest and largest scale of augmented images"),
    ] = SCALES
    precision: Annotated[Literal["auto", "fp32", "bf16"], Field(description="auto: bf16 if the GPU has it")] = "auto"
    workers: Annotated[int, Field(ge=0, description="threads that preload images")] = 0
    step: Annotated[
        Literal["auto", "plain", "captured", "compiled"],
        Field(
            description="on a GPU: captured as a CUDA graph, or also compiled; auto: compiled if the run is long enough"
        ),
    ] = "auto"

    @field_validator("scales")
    @classmethod
    def _scales_in_order(cls, scales: tuple[float, float]) -> tuple[float, float]:
        if scales[0] > scales[1]:
            raise ValueError(f"scales should be the smallest and the largest, found {list(scales)}")
        return scales


class Learner:
    """A model and its optimiser.

    Moments persist across rounds, although the server changes the parameters, unless the optimiser is reset.
    """

    def __init__(self, model: MultiTaskModel, training: Training) -> None:
        self.model = model
        self.training = training
        self.optimizer = training.optimizer.build(model.parameters(), training.learning_rate, training.weight_decay)

    def train_epoch(
        self,
        batches: Iterable[Batch],
        rate: float,
        terms: LocalTerms = PLAIN,
        *,
        watch: Watch = lambda loss: None,
        captures: Captures | None = None,
    ) -> dict[str, float]:
        """Train one epoch at one learning rate on the model's device; returns each task's mean unweighted loss."""
        self.optimizer.rate = rate
        step: CapturedStep | Callable[[Batch], Losses] | None = None
        sums: Losses = {}
        count = 0
        for batch in batches:
            step = step or self._step(batch, terms, captures)
            losses = step(batch)
            if sums:
                torch._foreach_add_(list(sums.values()), list(losses.values()))
            else:
                sums = {task: loss.clone() for task, loss in losses.items()}
            count += 1
            watch(step.total if isinstance(step, CapturedStep) else sum_of(losses))
        if isinstance(step, CapturedStep):
            step.store(self)
        return {task: float(sums[task]) / count if count else 0.0 for task in self.model.decoders}

    def _step(
        self, batch: Batch, terms: LocalTerms, captures: Captures | None
    ) -> CapturedStep | Callable[[Batch], Losses]:
        if captures is not None:
            return captures.step(self, batch, terms)
        set_mode(self.model, terms.frozen)
        return partial(
            take_step,
            self.model,
            self.optimizer,
            precision=self.training.precision,
            weighted=self.training.loss_weights,
            terms=terms,
        )

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
        held = self.model.state_dict(keep_vars=True)  # without a call into torch for each
        values = {name: tensor for name, tensor in held.items() if name not in fixed}
        tensors = {f"{kind}/model/{name}": tensor for name, tensor in values.items()}
        for name, parameter in self.model.named_parameters() if self.optimizer.state else ():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{kind}/optimizer/{moment}/{name}"] = value
        return tensors

    def restore(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; raises ValueError if it does not fit."""
        prefix = f"{kind}/model/"
        model = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        own, given = self.model.state_dict(keep_vars=True), {**self.model.fixed, **model}
        shapes, found = ({name: tuple(value.shape) for name, value in held.items()} for held in (own, given))
        if misfits := [name for name in {**shapes, **found} if shapes.get(name) != found.get(name)]:
            name = misfits[0]
            sizes = f"should have shape {shapes.get(name, 'none')}, found {found.get(name, 'none')}"
            raise ValueError(f"the state does not fit the {kind} model: {name} {sizes}")
        copy_values(list(own.values()), [given[name] for name in own])
        parameters = dict(self.model.named_parameters())
        self.optimizer.state.clear()
        for name, tensor in tensors.items():
            if name.startswith(f"{kind}/optimizer/"):
                moment, _, parameter = name.removeprefix(f"{kind}/optimizer/").partition("/")
                held = self.optimizer.state[parameters[parameter]]
                held[moment] = tensor.to(parameters[parameter].device, copy=True)
