"""Scores of a model over a whole split."""

from collections.abc import Iterable, Mapping

import torch

from fedhca2.clients.training import autocast
from fedhca2.data.dataset import Sample
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.tasks import TASKS, LabelSpace


@torch.inference_mode()
def evaluate(
    model: MultiTaskModel,
    batches: Iterable[Sample],
    spaces: Mapping[str, LabelSpace],
    device: torch.device,
    precision: str,
) -> dict[str, dict[str, float]]:
    """Every score of every task: {task: {metric: value}}, the headline metric first."""
    model.eval()
    metrics = {task: TASKS[task].metric(spaces[task]) for task in model.decoders}
    for batch in batches:
        with autocast(device, precision):
            outputs = model(batch["image"].to(device, non_blocking=True))
        for task, output in outputs.items():
            metrics[task].update(TASKS[task].predict(output), batch[task].to(device, non_blocking=True))
    return {task: metric.compute() for task, metric in metrics.items()}
