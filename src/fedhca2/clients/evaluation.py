"""Scores of a model over a whole split."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedhca2.clients.capture import CapturedForward, Captures
from fedhca2.clients.step import autocast
from fedhca2.data.dataset import Sample
from fedhca2.metrics import Metric
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.tasks import TASKS


@torch.inference_mode()
def evaluate(
    model: MultiTaskModel,
    batches: Iterable[Sample],
    metrics: Mapping[str, Metric],
    precision: str,
    captures: Captures | None = None,
) -> dict[str, dict[str, float]]:
    """Every score of every task: {task: {metric: value}}, the headline metric first. Batches are where the model is.

    `metrics` are accumulators that have seen nothing yet, one for each task.
    """
    model.eval()
    captured: CapturedForward | None = None

    def predictions(image: Tensor) -> Mapping[str, Tensor]:
        nonlocal captured
        if captures is not None:
            captured = captured or captures.forward(model, image, precision)
            if captured.image.shape == image.shape:  # all batches but the last
                return captured(image)
        with autocast(image.device, precision):
            return {task: TASKS[task].predict(output) for task, output in model(image).items()}

    for batch in batches:
        for task, prediction in predictions(batch["image"]).items():
            metrics[task].update(prediction, batch[task])
    return {task: metric.compute() for task, metric in metrics.items()}
