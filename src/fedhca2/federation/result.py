"""What a run came to, and whether another run is a fair baseline for it."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from fedhca2.experiment import ConfigError, Experiment
from fedhca2.metrics import delta_m
from fedhca2.tasks import TASKS, LabelSpace
from fedhca2.version import __version__

Scores = dict[str, dict[str, dict[str, float]]]  # {client: {task: {metric: value}}}, the headline metric first
# What a run and its baseline may differ in: Local sends nothing, so neither guard nor privacy change it.
FREE = {"name", "title", "belongs_to", "method", "baseline", "evaluate_every", "checkpoints", "guard", "privacy"}


@dataclass(frozen=True)
class Result:
    """The content of `result.json`."""

    name: str
    method: str
    rounds: int
    seed: int
    clients: Scores
    baseline: Scores | None
    delta_m: float | None
    seconds: float
    bytes: dict[str, int]
    versions: dict[str, str]
    device: str
    skipped: dict[str, list[str]] = field(default_factory=dict)  # files that could not be read, by client
    epsilon: float | None = None  # of client-level differential privacy at δ = 1e-5, where updates are noised

    def to_dict(self) -> dict[str, Any]:
        """As data that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class Headline:
    """A task's main score."""

    metric: str
    value: float
    higher_is_better: bool
    counts: bool  # in Δm


def headline(task: str, scores: Mapping[str, float]) -> Headline:
    """The main score among those of a task."""
    metric = TASKS[task].metric(LabelSpace(classes=1))
    return Headline(metric.name, scores[metric.name], metric.higher_is_better, TASKS[task].counts_in_delta_m)


def overall_gain(scores: Scores, baseline: Scores) -> float | None:
    """Δm over all tasks that count, or nothing where none does."""
    better = {
        task: headline(task, values).higher_is_better for tasks in scores.values() for task, values in tasks.items()
    }
    ours, theirs = _counted(scores), _counted(baseline)
    return delta_m(ours, theirs, better) if ours else None


def _counted(scores: Scores) -> dict[str, dict[str, float]]:
    found = {
        client: {task: headline(task, values).value for task, values in tasks.items() if headline(task, values).counts}
        for client, tasks in scores.items()
    }
    return {client: tasks for client, tasks in found.items() if tasks}


def read_baseline(run: Path, experiment: Experiment) -> Scores:
    """The Local scores of a finished run, if it had the same data, clients, seed and rounds."""
    try:
        result = json.loads((run / "result.json").read_text("utf-8"))
        config = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError([f"--baseline {run}: not a finished run: {error}"]) from None
    ours = experiment.to_dict()
    other = [key for key in sorted({*ours, *config} - FREE) if ours.get(key) != config.get(key)]
    if other:
        raise ConfigError(
            [f"--baseline {run}: should have the same settings as this run, found other {', '.join(other)}"]
        )
    scores: Scores | None = result["clients"] if result["method"] == "local" else result["baseline"]
    if scores is None:
        raise ConfigError(
            [f"--baseline {run}: should be a run of 'local', found {result['method']!r} without a baseline"]
        )
    return scores


def finished_scores(run: Path, experiment: Experiment) -> Scores | None:
    """The scores of a run of exactly this experiment, if it came to its end."""
    try:
        result = json.loads((run / "result.json").read_text("utf-8"))
        config = (run / "config.yaml").read_text("utf-8")
    except OSError:
        return None
    scores: Scores = result["clients"]
    return scores if config == experiment.to_yaml() else None


def versions() -> dict[str, str]:
    """The software that a run used."""
    packages = ("torch", "timm", "numpy")
    own = {"fedhca2": __version__, "python": platform.python_version()}
    return own | {package: version(package) for package in packages}


def device_name(device: torch.device) -> str:
    """The hardware that a run used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
