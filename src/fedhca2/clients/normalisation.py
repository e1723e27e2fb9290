"""Running statistics of BatchNorm layers, measured anew after the parameters before them were changed."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedhca2.data.dataset import Sample


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Sample]) -> None:
    """Replace the statistics by plain averages over these batches."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    model.eval()  # nothing is dropped
    for layer in layers:
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
    for batch in batches:
        model(batch["image"])
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
