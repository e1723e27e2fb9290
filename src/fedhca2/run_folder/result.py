"""The outcome of a run."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedhca2.clients.privacy import DELTA, audited_epsilon, epsilon
from fedhca2.metrics import delta_m, relative_gain
from fedhca2.records import html_table
from fedhca2.tasks import Task, TaskSet
from fedhca2.tasks.task import TRIVIAL
from fedhca2.version import __version__
from fedhca2.words import counted, gain_text, metric_title

Score = Annotated[float, BeforeValidator(lambda value: nan if value is None else value)]  # JSON has null for NaN
Scores = dict[str, dict[str, dict[str, Score]]]  # {client: {task: {metric: value}}}, the headline metric first
Scored = Literal["train", "val", "test"]  # the images that scores are on
Count = Annotated[int, Field(ge=0)]


def _check_origin(origin: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(origin.get("command"), str) or not datetime.fromisoformat(str(origin.get("started"))):
        raise ValueError(f"expected a text as command, got {origin.get('command')!r:.80}")
    return origin


class Result(BaseModel):
    """The outcome of a run, as in `result.json`. Files of other versions may lack fields, or have more, which are kept.

    Numbers that are not known are None, and NaN among scores.

    >>> result = Result(name="demo", method="fedper", rounds=5, seed=0, clients={"home": {"depth": {"rmse": 0.5}}})
    >>> result.clients["home"]["depth"], result.delta_m
    ({'rmse': 0.5}, None)

    :param name: the experiment's name.
    :param method: the method's name.
    :param rounds: how many rounds were trained.
    :param seed: the seed of the run.
    :param clients: final validation scores: client, task, metric, value.
    :param baseline: the same for clients that trained alone, or None.
    :param delta_m: Δm in percent; None without a baseline, or if a baseline score is 0.
    :param delta_m_by_client: the mean gain over all clients and tasks; Δm first averages clients of a kind.
    :param seconds: how long the run took.
    :param bytes: bytes sent, "up" by clients and "down" by the server.
    :param versions: versions of this package, Python and torch.
    :param device: what it ran on.
    :param skipped: unreadable files, by client.
    :param missing: clients without scores, with the reason.
    :param epsilon: ε of the client that sent the most updates, if they are noised.
    :param privacy: what noise has cost each client.
    :param origin: command, start and git commit.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: str
    method: str
    rounds: Count
    seed: int
    clients: Scores
    split: Scored = "val"  # what scores are on; nothing is chosen by test images
    baseline: Annotated[Scores | None, BeforeValidator(lambda scores: scores or None)] = None
    delta_m: float | None = None
    delta_m_by_client: float | None = None
    seconds: Annotated[float, Field(ge=0)] = 0.0
    bytes: Annotated[dict[Literal["up", "down"], Count], Field(min_length=2)] = {"up": 0, "down": 0}
    versions: dict[str, str] = {}
    device: str = ""
    skipped: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    epsilon: float | None = None
    privacy: dict[str, Any] | None = None  # the output of `privacy_spent` for every client
    origin: Annotated[dict[str, Any], AfterValidator(_check_origin)] | None = None  # the output of `origin`

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return self.model_dump()

    def __str__(self) -> str:
        gain = "" if self.delta_m is None else f", Δm {gain_text(self.delta_m)}"
        rounds, clients = counted(self.rounds, "round"), counted(len(self.clients), "client")
        return f"{self.name}: {self.method} after {rounds}, seed {self.seed}, {clients}{gain}"

    def __repr__(self) -> str:
        return f"Result({self})"

    def _repr_html_(self) -> str:
        rows = [
            [client, task, metric_title(next(iter(scores))), f"{next(iter(scores.values())):.4g}"]
            for client, tasks in self.clients.items()
            for task, scores in tasks.items()
        ]
        return f"<p>{escape(str(self))}</p>{html_table(['client', 'task', 'metric', 'score'], rows)}"


@dataclass(frozen=True)
class Headline:
    """A task's main score."""

    metric: str
    value: float
    higher_is_better: bool
    counts: bool  # whether it counts in Δm
    unit: str
    perfect: float  # the best possible value
    trivial: float  # the value of one answer for all images; NaN if it is unknown

    @property
    def is_clear(self) -> bool:
        """Whether it is clearly better than the trivial value, or that is unknown.

        Clearly: by a tenth of the trivial value, or of its distance from a perfect one.
        """
        better = (self.value - self.trivial) * (1 if self.higher_is_better else -1)
        return not better < 0.1 * min(abs(self.trivial), abs(self.perfect - self.trivial))


def headline(task: Task, scores: Mapping[str, float]) -> Headline:
    """The main score of a task, from the metric it was evaluated with."""
    metrics = task.empty_metrics
    metric = metrics[next((name for name in metrics if name in scores), next(iter(metrics)))]
    return Headline(
        metric.name,
        scores[metric.name],
        metric.higher_is_better,
        counts=task.counts_in_delta_m,
        unit=task.unit,
        perfect=metric.largest if metric.higher_is_better else 0.0,
        trivial=scores.get(TRIVIAL, nan),
    )


@dataclass(frozen=True)
class TaskScore:
    """A client's main score in a task, and the one it reached by training alone."""

    client: str
    task: str
    ours: Headline
    alone: Headline | None  # None if the baseline does not have this client and task

    @property
    def gain(self) -> float:
        """The relative gain over training alone in %; NaN if it is unknown."""
        return relative_gain(self.ours.value, self.alone.value, self.ours.higher_is_better) if self.alone else nan


def task_scores(scores: Scores, baseline: Scores | None, task_set: TaskSet) -> Iterator[TaskScore]:
    """Every client's main score in every task, in order."""
    for client, tasks in scores.items():
        alone = (baseline or {}).get(client, {})
        for task, values in tasks.items():
            kind = task_set[task]
            other = headline(kind, alone[task]) if task in alone else None
            yield TaskScore(client, task, headline(kind, values), other)


def overall_gain(
    scores: Scores, baseline: Scores, task_set: TaskSet, kinds: Mapping[str, str] | None = None
) -> float | None:
    """Δm over all counting tasks of the clients that were evaluated both times; without `kinds`, by client.

    None if no task counts, or if a gain is undefined.
    """
    ours, alone, better = dict[str, dict[str, float]](), dict[str, dict[str, float]](), dict[str, bool]()
    for one in task_scores(scores, baseline, task_set):
        if one.alone and one.ours.counts:
            ours.setdefault(one.client, {})[one.task] = one.ours.value
            alone.setdefault(one.client, {})[one.task] = one.alone.value
            better[one.task] = one.ours.higher_is_better
    gain = delta_m(ours, alone, better, kinds) if ours else nan
    return gain if isfinite(gain) else None


def both_gains(
    scores: Scores, baseline: Scores | None, task_set: TaskSet, kinds: Mapping[str, str]
) -> dict[str, float | None]:
    """Δm by kind and by client, as fields of a result."""
    gains = (overall_gain(scores, baseline or {}, task_set, each) for each in (kinds, None))
    return dict(zip(("delta_m", "delta_m_by_client"), gains, strict=True))


def gains_by_client(scores: Scores, baseline: Scores, task_set: TaskSet) -> dict[str, float]:
    """The mean gain over training alone of each client in % over its tasks that count, as far as gains are known."""
    gains: dict[str, list[float]] = {}
    for one in task_scores(scores, baseline, task_set):
        if one.ours.counts and isfinite(one.gain):
            gains.setdefault(one.client, []).append(one.gain)
    return {client: fmean(own) for client, own in gains.items()}


class AcrossClients(NamedTuple):
    """Who pays for a mean gain: the client that gains least, the share of clients that lose, and how much they differ.

    A client's gain is the mean over its tasks that count, in %. `deviation` is that of the clients' gains.
    """

    worst: float
    client: str
    harmed: float
    deviation: float


def across_clients(scores: Scores, baseline: Scores, task_set: TaskSet) -> AcrossClients | None:
    """How the gains over training alone differ between clients; None if none is known."""
    gains = gains_by_client(scores, baseline, task_set)
    if not gains:
        return None
    worst = min(gains, key=gains.__getitem__)
    harmed = 100 * sum(gain < 0 for gain in gains.values()) / len(gains)
    return AcrossClients(gains[worst], worst, harmed, pstdev(gains.values()))


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
    head, changes = _git("rev-parse", "HEAD"), _git("-c", "core.fsmonitor=false", "status", "--porcelain")
    return {
        "command": shlex.join([program, *words]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": head and {"commit": head.strip(), "dirty": changes is None or bool(changes)},
    }


def _git(*words: str) -> str | None:
    """What git says about the working directory; None outside of a repository."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or a very large one
        return None
    return done.stdout


def device_name(device: torch.device) -> str:
    """The hardware that a run used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {counted(torch.get_num_threads(), 'thread')}"
