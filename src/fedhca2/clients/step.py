"""One training step: mixed precision, forward, the losses of all tasks, backward, and the optimiser."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedhca2.clients.optimizer import Adam
from fedhca2.data.batches import Batch
from fedhca2.models.layers import dropping
from fedhca2.models.multitask import MultiTaskModel, apply_head
from fedhca2.objectives import add_pull
from fedhca2.params import Part
from fedhca2.tasks import Task

Losses = dict[str, Tensor]
TaskLoss = Callable[[Task, nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LocalTerms:
    """What a method adds to a step: frozen parts, and parameters that are pulled towards an anchor."""

    frozen: frozenset[Part] = frozenset()
    pull: float = 0.0
    pulled: Sequence[tuple[str, Tensor]] = ()  # a parameter's name, and its anchor


PLAIN = LocalTerms()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Mixed precision, if requested or if the device supports it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=autocast_dtype(device, precision) is not None)


def autocast_dtype(device: torch.device, precision: str) -> torch.dtype | None:
    """The type of mixed precision, None without it."""
    wanted = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.bfloat16 if wanted else None


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
    return task.loss(apply_head(head, decoded, label.shape[-2:]), label)


def task_prediction(task: Task, head: nn.Module, decoded: Tensor, size: torch.Size) -> Tensor:
    """One task's final prediction, from its decoder's features."""
    return task.predict(apply_head(head, decoded, size))


def sum_of(losses: Losses) -> Tensor:
    """The sum of all tasks' losses."""
    return torch.stack(list(losses.values())).sum()


def total_loss(model: MultiTaskModel, losses: Losses, weighted: bool) -> Tensor:
    """The sum of all tasks' losses, each times its task's weight if they are `weighted`."""
    return sum_of({task: model.tasks[task].weight * value if weighted else value for task, value in losses.items()})


def take_step(
    model: MultiTaskModel,
    optimizer: Adam,
    batch: Batch,
    precision: str,
    terms: LocalTerms = PLAIN,
    loss: TaskLoss = task_loss,
    weighted: bool = True,
) -> Losses:
    """Update the model once, with each task's loss `weighted` or not; returns the losses before weighting."""
    with autocast(batch.image.device, precision), dropping(model.drops, batch.keep):
        decoded = model.decode(model.encoder(batch.image))
        losses = {
            task: loss(model.tasks[task], head, decoded[task], batch.labels[task]) for task, head in model.heads.items()
        }
    optimizer.zero_grad()
    torch.autograd.backward(total_loss(model, losses, weighted))
    if terms.pulled:
        own = dict(model.named_parameters())
        add_pull([own[name] for name, _ in terms.pulled], [anchor for _, anchor in terms.pulled], terms.pull)
    optimizer.step()
    return {task: value.detach() for task, value in losses.items()}
