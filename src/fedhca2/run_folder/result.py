"""The outcome of a run."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch

from fedhca2.clients.privacy import DELTA, audited_epsilon, epsilon
from fedhca2.metrics import delta_m, relative_gain
from fedhca2.tasks import Task, TaskSet
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
    delta_m: float | None  # None without a baseline, or if a baseline score is 0
    delta_m_by_client: float | None = None  # the mean over all clients and tasks; Δm first averages clients of a kind
    seconds: float
    bytes: dict[str, int]
    versions: dict[str, str]
    device: str
    skipped: dict[str, list[str]] = field(default_factory=dict)  # unreadable files, by client
    missing: dict[str, str] = field(default_factory=dict)  # clients without scores, and the reason
    epsilon: float | None = None  # of the client that sent the most updates, if they are noised
    privacy: dict[str, Any] | None = None  # the output of `privacy_spent` for every client
    origin: dict[str, Any] | None = None  # the output of `origin`

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Headline:
    """A task's main score."""

    metric: str
    value: float
    higher_is_better: bool
    counts: bool  # whether it counts in Δm
    unit: str


def headline(task: Task, scores: Mapping[str, float]) -> Headline:
    """The main score of a task, from the metric it was evaluated with."""
    known = task.empty_metrics
    metric = known[next((name for name in known if name in scores), next(iter(known)))]
    return Headline(metric.name, scores[metric.name], metric.higher_is_better, task.counts_in_delta_m, task.unit)


@dataclass(frozen=True)
class TaskScore:
    """A client's main score in a task, beside the one it reached by training alone."""

    client: str
    task: str
    ours: Headline
    alone: Headline | None  # None if the baseline does not have this client and task

    @property
    def gain(self) -> float:
        """The relative gain over training alone in %; NaN if it is unknown."""
        return relative_gain(self.ours.value, self.alone.value, self.ours.higher_is_better) if self.alone else nan


def task_scores(scores: Scores, baseline: Scores | None, known: TaskSet) -> Iterator[TaskScore]:
    """Every client's main score in every task, in order."""
    for client, tasks in scores.items():
        alone = (baseline or {}).get(client, {})
        for task, values in tasks.items():
            own, others = headline(known[task], values), headline(known[task], alone[task]) if task in alone else None
            yield TaskScore(client, task, own, others)


def overall_gain(
    scores: Scores, baseline: Scores, known: TaskSet, kinds: Mapping[str, str] | None = None
) -> float | None:
    """Δm over all counting tasks of the clients that were evaluated both times; without `kinds`, by client.

    None if no task counts, or if a gain is undefined.
    """
    both = [client for client in scores if client in baseline]
    better = {
        task: headline(known[task], values).higher_is_better
        for tasks in scores.values()
        for task, values in tasks.items()
    }
    ours, theirs = (_counted({c: held[c] for c in both}, known) for held in (scores, baseline))
    gain = delta_m(ours, theirs, better, kinds) if ours else nan
    return gain if isfinite(gain) else None


def _counted(scores: Scores, known: TaskSet) -> dict[str, dict[str, float]]:
    counted = {
        client: {task: one.value for task in tasks if (one := headline(known[task], tasks[task])).counts}
        for client, tasks in scores.items()
    }
    return {client: tasks for client, tasks in counted.items() if tasks}


def privacy_spent(noise: float, updates: Mapping[str, int]) -> dict[str, Any] | None:
    """The cost in client-level differential privacy of the updates that each client actually sent.

    A site may add more noise than the experiment asks for without saying so; its ε is then smaller than this.
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


def origin() -> dict[str, Any]:
    """Where a run comes from: the command, when it started, and the commit of the working directory's repository."""
    program, *words = sys.argv
    program = "fedhca2" if Path(program).name in ("fedhca2", "__main__.py") else program
    return {
        "command": shlex.join([program, *words]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": _commit(),
    }


def _commit() -> dict[str, Any] | None:
    """The commit of the working directory, and whether files differ from it; None outside of a repository."""
    head, changes = _git("rev-parse", "HEAD"), _git("-c", "core.fsmonitor=false", "status", "--porcelain")
    return None if head is None else {"commit": head.strip(), "dirty": changes is None or bool(changes)}


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or a very large one
        return None
    return done.stdout


def device_name(device: torch.device) -> str:
    """The hardware that a run used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"
