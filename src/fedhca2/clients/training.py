"""The training loop: the only one, for every method."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedhca2.clients.schedule import Schedule
from fedhca2.config import Config
from fedhca2.data.dataset import Sample
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.objectives import squared_distance
from fedhca2.params import Part
from fedhca2.tasks import TASKS

Watch = Callable[[Tensor], None]  # told the loss of every batch


class Training(Config):
    """How a client trains."""

    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    schedule: Schedule = Schedule()
    augment: Annotated[bool, Field(description="random scale, crop, flip and colours")] = True
    precision: Annotated[Literal["auto", "fp32", "bf16"], Field(description="auto: bf16 where the GPU has it")] = "auto"
    workers: Annotated[int, Field(ge=0, description="threads that load images ahead")] = 0


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Mixed precision where it is asked for, or where the device is made for it."""
    wanted = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)


class Learner:
    """A model and its optimiser, whose moments outlast the rounds although the server changes the parameters."""

    def __init__(self, model: MultiTaskModel, training: Training, device: torch.device) -> None:
        self.model = model.to(device)
        self.training = training
        self.device = device
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )

    def train_epoch(
        self,
        batches: Iterable[Sample],
        rate: float,
        *,
        frozen: frozenset[Part] = frozenset(),
        pull: float = 0.0,
        pulled: Sequence[tuple[Tensor, Tensor]] = (),
        watch: Watch = lambda loss: None,
    ) -> dict[str, float]:
        """One epoch at one learning rate; `pulled` are pairs of a parameter and what it is pulled towards.

        Returns each task's mean loss, before its weight.
        """
        self._set_mode(frozen)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = {task: torch.zeros((), device=self.device) for task in self.model.decoders}
        count = 0
        for batch in batches:
            losses = self._step(batch, pull, pulled)
            for task, loss in losses.items():
                sums[task] += loss
            count += 1
            watch(torch.stack(list(losses.values())).sum())
        return {task: float(total) / max(count, 1) for task, total in sums.items()}

    def _set_mode(self, frozen: frozenset[Part]) -> None:
        """Frozen parts keep their parameters and the statistics of their BatchNorms."""
        parts: dict[Part, nn.Module] = {
            "encoder": self.model.encoder,
            "decoder": self.model.decoders,
            "head": self.model.heads,
        }
        for part, module in parts.items():
            module.train(part not in frozen).requires_grad_(part not in frozen)

    def _step(self, batch: Sample, pull: float, pulled: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        batch = {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}
        with autocast(self.device, self.training.precision):
            outputs = self.model(batch["image"])
        losses = {task: TASKS[task].loss(output, batch[task]) for task, output in outputs.items()}
        total = torch.stack([TASKS[task].weight * loss for task, loss in losses.items()]).sum()
        if pulled:
            values, anchors = zip(*pulled, strict=True)
            total = total + 0.5 * pull * squared_distance(values, anchors)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        self.optimizer.step()
        return {task: loss.detach() for task, loss in losses.items()}
