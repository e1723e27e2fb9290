"""What a run came to."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from math import isfinite, nan
from typing import Any

import torch

from fedhca2.clients.accounting import DELTA, audited_epsilon, epsilon
from fedhca2.metrics import delta_m
from fedhca2.tasks import TASKS, LabelSpace
from fedhca2.version import __version__

Scores = dict[str, dict[str, dict[str, float]]]  # {client: {task: {metric: value}}}, the headline metric first


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
