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

from fedhca2.clients.accounting import DELTA, audited_epsilon, epsilon
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.experiment.sources import read_config
from fedhca2.metrics import delta_m
from fedhca2.run_folder.strict_json import numbers, read_json
from fedhca2.tasks import TASKS, LabelSpace
from fedhca2.version import __version__

Scores = dict[str, dict[str, dict[str, float]]]  # {client: {task: {metric: value}}}, the headline metric first
BASELINE_FILES = BASELINE, BASELINE_METRICS = "baseline.json", "baseline-metrics.json"
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


@dataclass(frozen=True, kw_only=True)
class Result:
    """The content of `result.json`."""

    name: str
    method: str
    rounds: int
    seed: int
    clients: Scores
    baseline: Scores | None
    delta_m: float | None  # nothing without a baseline, or where a gain over a score of 0 cannot be told
    delta_m_by_client: float | None = None  # each client by itself, where Δm takes the means of clients of a kind
    seconds: float
    bytes: dict[str, int]
    versions: dict[str, str]
    device: str
    skipped: dict[str, list[str]] = field(default_factory=dict)  # files that could not be read, by client
    missing: dict[str, str] = field(default_factory=dict)  # clients without scores, and why
    epsilon: float | None = None  # of the client that sent most updates, where they are noised
    privacy: dict[str, Any] | None = None  # what `privacy_spent` says of every client

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
    """The main score among those of a task: that of whichever of its metrics it was judged by."""
    known = TASKS[task].metrics
    metric = known[next((name for name in known if name in scores), next(iter(known)))](LabelSpace(classes=1))
    return Headline(metric.name, scores[metric.name], metric.higher_is_better, TASKS[task].counts_in_delta_m)


def overall_gain(scores: Scores, baseline: Scores, kinds: Mapping[str, str] | None = None) -> float | None:
    """Δm over all tasks that count of the clients that were evaluated both times; without `kinds` by client.

    Nothing where no task counts, or where a gain cannot be told.
    """
    both = [client for client in scores if client in baseline]
    better = {
        task: headline(task, values).higher_is_better for tasks in scores.values() for task, values in tasks.items()
    }
    ours, theirs = _counted({c: scores[c] for c in both}), _counted({c: baseline[c] for c in both})
    gain = delta_m(ours, theirs, better, kinds) if ours else nan
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
        result, config = read_result(run), read_config(run / "config.yaml")
    except (OSError, UserError) as error:
        raise UserError([f"--baseline {run}: not a finished run: {error}"]) from None
    ours = experiment.to_dict()
    other = [key for key in sorted({*ours, *config} - FREE) if ours.get(key) != config.get(key)]
    if other:
        raise UserError(
            [f"--baseline {run}: should have the same settings as this run, found other {', '.join(other)}"]
        )
    scores = result["clients"] if result["method"] == "local" else result["baseline"]
    if scores is None:
        raise UserError(
            [f"--baseline {run}: should be a run of 'local', found {result['method']!r} without a baseline"]
        )
    known: Scores = numbers(scores)
    return known


def read_result(run: Path) -> dict[str, Any]:
    """The content of a run's `result.json`; OSError where there is none, UserError where it is damaged."""
    path = run / "result.json"
    result: dict[str, Any] = read_json(path)
    if not isinstance(result, dict) or not {"method", "clients", "baseline"} <= set(result):
        raise UserError([f"{path}: should be what a run came to, found {result!r:.40}"])
    return result


def baseline_files(run: Path, scores: Scores) -> dict[str, Any]:
    """What a run keeps of a baseline from elsewhere: its scores, and how they came about, for the curves."""
    own = read_result(run)["method"] == "local"
    place = run if own else run / "baseline"
    if not own and (run / BASELINE_METRICS).is_file():
        events = read_json(run / BASELINE_METRICS)
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
    return numbers(read_json(path)) if path.is_file() else None


def finished_scores(run: Path, experiment: Experiment) -> Scores | None:
    """The scores of a run of exactly this experiment, if it came to its end."""
    try:
        result, config = read_result(run), (run / "config.yaml").read_text("utf-8")
    except OSError:
        return None
    scores: Scores = numbers(result["clients"])
    return scores if config == experiment.to_yaml() else None


def privacy_spent(noise: float, updates: Mapping[str, int]) -> dict[str, Any] | None:
    """What client-level differential privacy has come to: for every client, by the updates that it has really sent.

    A site may add more noise than the experiment asks for, and only that site knows: its ε is then less than this.
    """
    if not noise:
        return None
    costs = {
        count: {"updates": count, "epsilon": epsilon(noise, count), "dp_accounting": audited_epsilon({noise: count})}
        for count in {0, *updates.values()}
    }
    clients = {client: costs[count] for client, count in sorted(updates.items())}
    return {"noise": noise, "delta": DELTA, **costs[max(costs)], "clients": clients}


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
