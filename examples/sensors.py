"""Machines with sensors: inputs other than images, with data, a task, and a whole model defined outside the package.

The press has labelled faults, the pump its remaining life, and the fan both. Each machine vibrates in its own way.
`sensors.yaml` in this folder is the experiment:

    fedhca2 run examples/sensors.yaml

Run this file to train it with several methods: python examples/sensors.py [METHOD …]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from fedhca2 import Experiment, Task, run
from fedhca2.tasks import losses, metrics

SENSORS, READINGS = 3, 64
FAULTS = ("none", "bearing", "belt", "imbalance")
# Frequency of each fault's trace in a sensor's readings, and which sensor shows it.
TRACES = {"bearing": (13.0, 0), "belt": (2.0, 1), "imbalance": (5.0, 2)}


class Machines:
    """Readings of one machine: a hum of its own, a trace of its fault, and noise that grows with wear."""

    shape = (SENSORS, READINGS)
    labels = {"fault": FAULTS, "life": ["share left"]}  # noqa: RUF012

    def __init__(self, split: str, machine: int = 0, count: int = 240, seed: int = 0) -> None:
        rng = np.random.default_rng((seed, machine, split == "val"))
        self.faults = rng.integers(0, len(FAULTS), count)
        self.life = rng.random(count)
        phases = rng.random((count, SENSORS, 2, 1)) * 2 * np.pi
        time = np.linspace(0, 1, READINGS)
        self.readings = np.sin(2 * np.pi * (7 + 2 * machine) * time + phases[:, :, 0])  # the hum
        for number, fault in enumerate(FAULTS[1:], 1):
            frequency, sensor = TRACES[fault]
            trace = 0.7 * np.sin(2 * np.pi * frequency * time + phases[:, sensor, 1])
            self.readings[:, sensor] += (self.faults == number)[:, None] * trace
        self.readings += rng.normal(size=self.readings.shape) * (1.1 - self.life)[:, None, None] * 0.6

    def __len__(self) -> int:
        return len(self.faults)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"input": self.readings[index], "fault": self.faults[index], "life": self.life[index]}


LIFE = Task(
    name="life",
    output="vector",
    channels=1,
    loss=losses.smooth_l1,
    metric=lambda space: metrics.VectorMAE(),
    weight=10.0,
)


class Temporal(nn.Module):
    """Convolutions over time; the readings of all sensors become two maps, each half as long as the one before."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.channels = [width, 2 * width]
        self.first = nn.Sequential(nn.Conv1d(SENSORS, width, 7, 2, 3), nn.GroupNorm(4, width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv1d(width, 2 * width, 5, 2, 2), nn.GroupNorm(4, 2 * width), nn.ReLU())

    def forward(self, readings: Tensor) -> list[Tensor]:
        """Compute both maps."""
        fine = self.first(readings)
        return [fine, self.second(fine)]


class Pool(nn.Module):
    """Mean and deviation of every map over time, and a hidden layer."""

    def __init__(self, channels: list[int], width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * sum(channels), width)

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Features of a task, [B, width]."""
        pooled = [each.mean(dim=2) for each in maps] + [each.std(dim=2) for each in maps]
        features: Tensor = self.hidden(torch.cat(pooled, dim=1)).relu()
        return features


class Line(nn.Linear):
    """A task's output from its features: width in, channels out."""


def main(methods: list[str]) -> None:
    """Train with each method, and print its scores."""
    config = Path(__file__).with_name("sensors.yaml")
    for method in methods:
        with TemporaryDirectory() as folder:
            result = run(Experiment.load(config, [f"method={method}"]), Path(folder) / "run").result
        print(f"{method}: Δm {result.delta_m:+.1f} %")
        for client, tasks in result.clients.items():
            print("  ", client, {task: f"{next(iter(scores.values())):.3g}" for task, scores in tasks.items()})


if __name__ == "__main__":
    main(sys.argv[1:] or ["fedper", "fedavg", "fedhca2"])
