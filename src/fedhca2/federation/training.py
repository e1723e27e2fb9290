"""All rounds of one run, from its start or from its last checkpoint, to its result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from fedhca2.clients.privacy import epsilon
from fedhca2.experiment import ConfigError, Experiment, OpenData, Shard, build_clients
from fedhca2.federation.checkpoints import Checkpoints
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.membership import without_strangers
from fedhca2.federation.result import Result, Scores, device_name, overall_gain, versions
from fedhca2.federation.rounds import Progress, Watcher, run_rounds
from fedhca2.federation.run_folder import RunFolder
from fedhca2.federation.samples import sample_labels, sample_predictions
from fedhca2.federation.server import Server, ServerRecord
from fedhca2.federation.stopping import Interrupted, stop_between_rounds
from fedhca2.messages import Order, Reply


class RunWatcher(Watcher, Protocol):
    """Whoever wants to know how a run goes, from its start."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """A run begins; its Local baseline, where it has one, is a run of its own before it."""


@dataclass(frozen=True)
class Given:
    """What a run is given: data sets, each client's images, and what had to be left out."""

    data: Mapping[str, OpenData]
    shards: Mapping[str, Shard]
    skipped: dict[str, list[str]]


@dataclass(frozen=True)
class _All:
    """Tells several watchers."""

    watchers: Sequence[Watcher]

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        for watcher in self.watchers:
            watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        for watcher in self.watchers:
            watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        for watcher in self.watchers:
            watcher.aggregated(round, record, seconds)


def choose_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(
    experiment: Experiment,
    given: Given,
    folder: RunFolder,
    watcher: RunWatcher,
    baseline: Scores | None,
    run: Path,
) -> Result:
    """Every round that is still to come; `run` is what to resume if it is interrupted."""
    began = perf_counter()
    device = choose_device()
    watcher.started(experiment, given.shards)
    clients = build_clients(experiment, given.data, given.shards, device)
    samples = {client.name: sample_labels(client) | sample_predictions(client, "before") for client in clients}
    fleet = InProcess(clients)
    server = Server(experiment.resolved_method, fleet.profiles.values(), experiment.guard)
    checkpoints = Checkpoints(folder.path / "checkpoints", experiment.checkpoints.keep)
    progress, seconds = _go_on(folder, checkpoints, fleet)
    if progress is not None and progress.state.round > experiment.rounds:
        raise ConfigError([f"rounds: should be at least {progress.state.round}, as the run has come, found fewer"])

    def choose(names: Iterable[str], round: int) -> list[str]:
        return experiment.participation.choose(names, round, experiment.seed)

    with stop_between_rounds() as stopping:

        def passed(progress: Progress) -> None:
            every = experiment.checkpoints.every
            last = progress.state.round == experiment.rounds
            if stopping.signal or last or (every and progress.state.round % every == 0):
                notes = {**folder.position(), "seconds": seconds + perf_counter() - began}
                checkpoints.save(progress, fleet, notes)
            if stopping.signal:
                raise Interrupted(stopping.signal, run, progress.state.round)

        scores = run_rounds(
            server,
            fleet,
            experiment.rounds,
            experiment.evaluate_every,
            _All([folder, watcher]),
            choose=choose,
            progress=progress,
            passed=passed,
        )
    for client in clients:
        folder.save_model(client.name, client.personal.model)
        folder.save_samples(client.name, samples[client.name] | sample_predictions(client, "after"))
    result = Result(
        name=experiment.name,
        method=experiment.method_name,
        rounds=experiment.rounds,
        seed=experiment.seed,
        clients=scores,
        baseline=baseline,
        delta_m=overall_gain(scores, baseline) if baseline else None,
        seconds=seconds + perf_counter() - began,
        bytes={"up": folder.bytes_up, "down": folder.bytes_down},
        versions=versions(),
        device=device_name(device),
        skipped=given.skipped,
        epsilon=_epsilon(experiment),
    )
    folder.finish(result.to_dict())
    checkpoints.prune(1)
    return result


def _epsilon(experiment: Experiment) -> float | None:
    """What the rounds in which something was sent cost."""
    if not experiment.privacy.noise:
        return None
    method = experiment.resolved_method
    return epsilon(experiment.privacy.noise, sum(bool(method.uploads(round)) for round in range(experiment.rounds)))


def _go_on(folder: RunFolder, checkpoints: Checkpoints, fleet: InProcess) -> tuple[Progress | None, float]:
    """Where the run stands, with its clients and events put there, and the seconds that it took."""
    checkpoint = checkpoints.latest()
    known = checkpoint.clients if checkpoint else {}
    folder.rewind(checkpoint.notes if checkpoint else {"events": 0, "bytes_up": 0, "bytes_down": 0})
    folder.introduced(profile for name, profile in fleet.profiles.items() if name not in known)
    if checkpoint is None:
        return None, 0.0
    fleet.restore(checkpoint.path, checkpoint.clients)
    return without_strangers(checkpoint.progress, list(fleet.profiles)), checkpoint.notes["seconds"]
