"""What a run came to, and whether another run is a fair baseline for it."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch
import yaml

from fedhca2.clients.privacy import epsilon
from fedhca2.experiment import ConfigError, Experiment
from fedhca2.federation.strict_json import numbers
from fedhca2.metrics import delta_m
from fedhca2.tasks import TASKS, LabelSpace
from fedhca2.version import __version__

Scores = dict[str, dict[str, dict[str, float]]]  # {client: {task: {metric: value}}}, the headline metric first
BASELINE, BASELINE_METRICS = "baseline.json", "baseline-metrics.json"
# What a run and its baseline may differ in: Local sends nothing, so neither guard nor privacy change it.
FREE = {
    "name",
    "title",
    "belongs_to",
    "method",
    "baseline",
    "evaluate_every",
    "checkpoints",
    "guard",
    "privacy",
    "devices",
}


@dataclass(frozen=True)
class Result:
    """The content of `result.json`."""

    name: str
    method: str
    rounds: int
    seed: int
    clients: Scores
    baseline: Scores | None
    delta_m: float | None  # nothing without a baseline, or where a gain over a score of 0 cannot be told
    seconds: float
    bytes: dict[str, int]
    versions: dict[str, str]
    device: str
    skipped: dict[str, list[str]] = field(default_factory=dict)  # files that could not be read, by client
    missing: dict[str, str] = field(default_factory=dict)  # clients without scores, and why
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
    """Δm over all tasks that count; nothing where none does, or where a gain cannot be told."""
    better = {
        task: headline(task, values).higher_is_better for tasks in scores.values() for task, values in tasks.items()
    }
    ours, theirs = _counted(scores), _counted(baseline)
    gain = delta_m(ours, theirs, better) if ours else nan
    return gain if isfinite(gain) else None


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
    scores = result["clients"] if result["method"] == "local" else result["baseline"]
    if scores is None:
        raise ConfigError(
            [f"--baseline {run}: should be a run of 'local', found {result['method']!r} without a baseline"]
        )
    known: Scores = numbers(scores)
    return known


def baseline_files(run: Path, scores: Scores) -> dict[str, Any]:
    """What a run keeps of a baseline from elsewhere: its scores, and how they came about, for the curves."""
    own = json.loads((run / "result.json").read_text("utf-8"))["method"] == "local"
    place = run if own else run / "baseline"
    if not own and (run / BASELINE_METRICS).is_file():
        events = json.loads((run / BASELINE_METRICS).read_text("utf-8"))
    else:
        events = _metric_events(place / "metrics.jsonl")
    return {BASELINE: scores, BASELINE_METRICS: events}


def _metric_events(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [event for event in events if event["event"] == "metric"]


def kept_baseline(run: Path) -> Scores | None:
    """The scores of a baseline from elsewhere that a run keeps, if it has one."""
    path = run / BASELINE
    try:
        scores: Scores | None = numbers(json.loads(path.read_text("utf-8"))) if path.is_file() else None
    except ValueError as error:
        raise ConfigError([f"{path}: should be JSON, found {error}"]) from None
    return scores


def finished_scores(run: Path, experiment: Experiment) -> Scores | None:
    """The scores of a run of exactly this experiment, if it came to its end."""
    try:
        result = json.loads((run / "result.json").read_text("utf-8"))
        config = (run / "config.yaml").read_text("utf-8")
    except OSError:
        return None
    scores: Scores = numbers(result["clients"])
    return scores if config == experiment.to_yaml() else None


def spent_epsilon(experiment: Experiment) -> float | None:
    """The ε of a run, where updates are noised."""
    return epsilon(experiment.privacy.noise, sent_rounds(experiment)) if experiment.privacy.noise else None


def sent_rounds(experiment: Experiment) -> int:
    """In how many rounds a client sends something, if it takes part in all of them."""
    return sum(bool(experiment.resolved_method.uploads(round)) for round in range(experiment.rounds))


def versions() -> dict[str, str]:
    """The software that a run used."""
    packages = ("torch", "timm", "numpy")
    own = {"fedhca2": __version__, "python": platform.python_version()}
    return own | {package: version(package) for package in packages}


def device_name(device: torch.device) -> str:
    """The hardware that a run used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"
