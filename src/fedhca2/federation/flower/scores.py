"""Scores as a site may tell them: with noise, for which it pays as for an update."""

from collections.abc import Mapping
from math import isfinite, sqrt

import torch
from torch import Tensor

from fedhca2.clients.privacy import Privacy, privatise
from fedhca2.params import Slot
from fedhca2.tasks import TASKS, LabelSpace

Metrics = Mapping[str, Mapping[str, float]]  # {task: {metric: value}}


def noised_scores(metrics: Metrics, noise: float, key: bytes, round: int) -> tuple[Metrics, dict[Slot, Tensor]]:
    """Each task's main score with noise, and what was noised, as the ledger writes it down.

    Scores are taken as shares of their range, cut to it. So all k of them together are a vector no longer than √k,
    whatever the data are, and get the noise of an update with that clip: one that tells as much costs as much.
    """
    main = {task: next(name for name in TASKS[task].metrics if name in scores) for task, scores in metrics.items()}
    ranges = {task: TASKS[task].metrics[name](LabelSpace(classes=1)).largest for task, name in main.items()}
    shares = {Slot("head", task): _share(metrics[task][name] / ranges[task]) for task, name in main.items()}
    sent = privatise(shares, Privacy(clip=sqrt(len(shares)), noise=noise), key, round)
    return {task: {name: float(sent[Slot("head", task)]) * ranges[task]} for task, name in main.items()}, sent


def _share(value: float) -> Tensor:
    return torch.tensor([min(max(value, 0.0), 1.0) if isfinite(value) else 0.0], dtype=torch.float64)
