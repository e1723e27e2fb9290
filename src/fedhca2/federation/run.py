"""One run from an experiment to its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from fedhca2.experiment import Experiment, OpenData, Shard, assign_shards, build_clients, open_data
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.result import Result, Scores, device_name, overall_gain, read_baseline, versions
from fedhca2.federation.rounds import Watcher, run_rounds
from fedhca2.federation.run_folder import RunFolder
from fedhca2.federation.samples import sample_labels, sample_predictions
from fedhca2.federation.server import Server, ServerRecord
from fedhca2.messages import Order, Reply


class RunWatcher(Watcher, Protocol):
    """Whoever wants to know how a run goes, from its start."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """A run begins; its Local baseline, where it has one, is a run of its own before it."""


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


def run(experiment: Experiment, out: Path, watcher: RunWatcher, baseline: Path | None = None) -> Result:
    """Train, evaluate and write the run's folder.

    The Local baseline comes from a finished run where one is given, is trained along where the experiment says so, and
    is absent otherwise.
    """
    known = read_baseline(baseline, experiment) if baseline else None
    data = open_data(experiment)
    shards = assign_shards(experiment, data)
    folder = RunFolder(out, experiment)
    if known is None and experiment.baseline:
        local = experiment.with_method("local")
        known = _train(local, data, shards, RunFolder(out / "baseline", local), watcher, None).clients
    return _train(experiment, data, shards, folder, watcher, known)


def _train(
    experiment: Experiment,
    data: Mapping[str, OpenData],
    shards: Mapping[str, Shard],
    folder: RunFolder,
    watcher: RunWatcher,
    baseline: Scores | None,
) -> Result:
    began = perf_counter()
    device = choose_device()
    watcher.started(experiment, shards)
    clients = build_clients(experiment, data, shards, device)
    samples = {client.name: sample_labels(client) | sample_predictions(client, "before") for client in clients}
    fleet = InProcess(clients)
    server = Server(experiment.resolved_method, fleet.profiles.values())
    scores = run_rounds(server, fleet, experiment.rounds, experiment.evaluate_every, _All([folder, watcher]))
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
        seconds=perf_counter() - began,
        bytes={"up": folder.bytes_up, "down": folder.bytes_down},
        versions=versions(),
        device=device_name(device),
    )
    folder.finish(result.to_dict())
    return result
