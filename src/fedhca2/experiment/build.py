"""The one place that wires things: an experiment becomes data sets, shards and clients."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedhca2.clients import Client, Work
from fedhca2.data.batches import Batches
from fedhca2.data.dataset import Dataset
from fedhca2.data.partition import even_split, keep
from fedhca2.experiment.clients import ClientSpec
from fedhca2.experiment.errors import ConfigError
from fedhca2.experiment.experiment import Experiment
from fedhca2.models import build_model
from fedhca2.tasks import TASKS


@dataclass(frozen=True)
class OpenData:
    """Both splits of one data set."""

    train: Dataset
    val: Dataset


@dataclass(frozen=True)
class Shard:
    """Which images a client trains and is evaluated on."""

    train: list[int]
    val: list[int]


def open_data(experiment: Experiment) -> dict[str, OpenData]:
    """The data sets that clients use."""
    used = dict.fromkeys(spec.data for spec in experiment.specs)
    return {name: OpenData(experiment.data[name].open("train"), experiment.data[name].open("val")) for name in used}


def assign_shards(experiment: Experiment, data: Mapping[str, OpenData]) -> dict[str, Shard]:
    """Every client's images.

    The single-task clients of a data set share its images evenly, and so do its multi-task clients among themselves.
    """
    groups: dict[tuple[str, bool], list[ClientSpec]] = {}
    for spec in experiment.specs:
        groups.setdefault((spec.data, len(spec.tasks) > 1), []).append(spec)
    shards = {}
    lines = []
    for (name, _), specs in groups.items():
        train, val = data[name].train, data[name].val
        try:
            parts = even_split(len(train), len(specs), experiment.seed)
        except ValueError as error:
            lines.append(f"data.{name}: {error}")
            continue
        for spec, part in zip(specs, parts, strict=True):
            shards[spec.name] = Shard(keep(part, train.usable(spec.tasks)), list(val.usable(spec.tasks)))
    batch = experiment.training.batch_size
    for name, shard in shards.items():
        if len(shard.train) < batch:
            lines.append(
                f"clients: {name!r} has {len(shard.train)} training images, fewer than training.batch_size = {batch}"
            )
        if not shard.val:
            lines.append(f"clients: {name!r} has no image to be evaluated on")
    if lines:
        raise ConfigError(lines)
    return {spec.name: shards[spec.name] for spec in experiment.specs}


def build_clients(
    experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard], device: torch.device
) -> list[Client]:
    """All clients of an experiment, with encoders that start equal."""
    return [build_client(experiment, spec, data[spec.data], shards[spec.name], device) for spec in experiment.specs]


def build_client(
    experiment: Experiment, spec: ClientSpec, data: OpenData, shard: Shard, device: torch.device
) -> Client:
    """One client with its own images, decoders and heads."""
    training, method = experiment.training, experiment.resolved_method
    channels = {task: TASKS[task].channels_for(data.train.labels[task]) for task in spec.tasks}
    try:
        model = build_model(experiment.model, channels, data.train.size, seed=experiment.seed, client=spec.name)
    except (ValueError, RuntimeError, KeyError) as error:
        raise ConfigError([f"model: cannot be built: {error}"]) from error

    def batches(split: Dataset, indices: list[int]) -> Batches:
        return Batches(split, indices, spec.tasks, batch_size=training.batch_size, workers=training.workers)

    work = Work(
        dataset=spec.data,
        train=batches(data.train, shard.train),
        val=batches(data.val, shard.val),
        rounds=experiment.rounds,
        epochs=spec.epochs,
        seed=experiment.seed,
    )
    return Client(spec.name, model, work, training, objective=method.local, batch_norm=method.batch_norm, device=device)
