"""Dividing the images among an experiment's clients."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhca2.data.dataset import Dataset
from fedhca2.data.files import FileError
from fedhca2.data.own import OwnSamples
from fedhca2.data.partition import keep
from fedhca2.errors import Fault, UserError
from fedhca2.experiment.clients import ClientSpec
from fedhca2.experiment.experiment import Experiment
from fedhca2.models.pretrained import digest


@dataclass(frozen=True)
class OpenData:
    """Both splits of one data set."""

    train: Dataset
    val: Dataset


@dataclass(frozen=True)
class Shard:
    """The images a client trains and is evaluated on; `dealt` also includes those that its tasks cannot use.

    `test` has images of the validation split that are kept for the end, if there are any.
    """

    train: Sequence[int]
    val: Sequence[int]
    dealt: Sequence[int] = ()
    test: Sequence[int] = ()


def open_data(experiment: Experiment) -> dict[str, OpenData]:
    """Open the data sets that clients use.

    Raises UserError if their files, the encoder's, or labels for the clients' tasks are missing.
    """
    experiment = experiment.resolve()
    for weights in dict.fromkeys(spec.model.encoder.weights for spec in experiment.specs):
        try:
            digest(weights)
        except ValueError as error:
            raise UserError("model.encoder.weights", str(error)) from None
    for name in dict.fromkeys(spec.data for spec in experiment.specs):
        config = experiment.data[name]
        root = getattr(config, "root", None)
        if root is not None and not root.is_dir():
            raise UserError(f"data.{name}.root", f"expected a folder, got none at {root}")
    return {name: OpenData(experiment.open(name, "train"), experiment.open(name, "val")) for name in experiment.labels}


def assign_shards(experiment: Experiment, data: Mapping[str, OpenData]) -> dict[str, Shard]:
    """Divide the images, by the partition of each data set.

    The single-task clients of a data set divide its images, and so do its multi-task clients. All draw from one
    generator, first the single-task clients and then the others, as in the authors' code.
    """
    groups: dict[tuple[bool, str], list[ClientSpec]] = {}
    for spec in sorted(experiment.specs, key=lambda spec: len(spec.tasks) > 1):
        groups.setdefault((len(spec.tasks) > 1, spec.data), []).append(spec)
    rng = np.random.RandomState(experiment.seed)
    shards: dict[str, Shard] = {}
    faults: list[Fault] = []
    for (_, name), specs in groups.items():
        try:
            parts = experiment.data[name].partition.assign(
                data[name].train, [spec.name for spec in specs], rng, experiment.task_set
            )
            shards |= {spec.name: new_shard(experiment, spec, data[name], parts[spec.name]) for spec in specs}
        except FileError as error:
            faults.append(Fault(f"data.{name}", str(error)))
        except ValueError as error:
            faults.append(Fault(f"data.{name}.partition", str(error)))
    if faults:
        raise UserError.of(faults)
    require_usable(experiment, data, shards)
    return {spec.name: shards[spec.name] for spec in experiment.specs}


def require_usable(experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]) -> None:
    """Raise UserError if a client has too few images, none with labels, or some, tried here, that cannot be read."""
    if faults := _too_small(experiment, shards):
        raise UserError.of(faults)
    if not experiment.skip_broken:
        _try_samples(experiment, data, shards)
    if faults := _unlabelled(experiment, data, shards):
        raise UserError.of(faults)


def new_shard(experiment: Experiment, spec: ClientSpec, data: OpenData, part: Sequence[int]) -> Shard:
    """The images of a client whose share of the training images is this part."""
    usable = keep(part, data.train.for_share(part).usable(spec.tasks)) if part else []
    val, test = experiment.data[spec.data].divide(data.val.usable(spec.tasks), data.val)
    return Shard(usable, val, part, test)


def _try_samples(experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]) -> None:
    """Read some samples of data sets that cannot check their files when they are opened; raises UserError."""
    faults, tried = dict[Fault, FileError](), 32  # samples of each client and split
    for spec in experiment.specs:
        opened, shard = data[spec.data], shards[spec.name]
        try:
            for split, indices in ((opened.train, shard.train), (opened.val, shard.val)):
                for index in indices[:: -(-len(indices) // tried)] if isinstance(split, OwnSamples) else ():
                    split.load(index, spec.tasks)
        except FileError as error:
            faults.setdefault(Fault(f"data.{spec.data}", str(error)), error)
    if faults:
        raise UserError.of(faults) from next(iter(faults.values()))


def _unlabelled(experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]) -> list[Fault]:
    """The tasks of which a client has no label at all, where data sets may lack some; reads samples until all have one.

    Unreadable samples are reported elsewhere, or left out.
    """
    faults = []
    for spec in experiment.specs:
        opened, shard = data[spec.data], shards[spec.name]
        for split, indices, kind in ((opened.train, shard.train, "training"), (opened.val, shard.val, "validation")):
            missing = set(spec.tasks) if isinstance(split, OwnSamples) else set[str]()
            for index in indices if missing else ():
                with suppress(FileError):
                    sample = split.load(index, sorted(missing))
                    missing -= {task for task in missing if experiment.task_set[task].known(sample[task]).any()}
                if not missing:
                    break
            expected = f"in some {kind} samples of {spec.name!r}, got none in {len(indices)}"
            faults += [Fault(f"data.{spec.data}", f"expected a label of {name!r} {expected}") for name in missing]
    return faults


def _too_small(experiment: Experiment, shards: Mapping[str, Shard]) -> list[Fault]:
    faults, batch, tested = [], experiment.training.batch_size, experiment.tested
    for name, shard in shards.items():
        if len(shard.train) < batch:
            expected = f"at least training.batch_size = {batch} training images"
            faults.append(Fault("clients", f"expected {expected} for {name!r}, got {len(shard.train)}"))
        if not shard.val:
            faults.append(Fault("clients", f"expected validation images for {name!r}, got none"))
        if tested and not shard.test:
            faults.append(Fault("clients", f"expected images to test {name!r} on at the end, got none"))
    return faults


def partition_as_data(
    experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]
) -> dict[str, dict[str, Any]]:
    """The content of `partition.json`: every client's images by id, {client: {data, train, val, dealt, classes}}."""
    partition: dict[str, dict[str, Any]] = {}
    for spec in experiment.specs:
        train, val = data[spec.data].train.ids, data[spec.data].val.ids
        shard = shards[spec.name]
        partition[spec.name] = {
            "data": spec.data,
            "train": [train[i] for i in shard.train],
            "val": [val[i] for i in shard.val],
            "dealt": [train[i] for i in shard.dealt],
            **({"test": [val[i] for i in shard.test]} if shard.test else {}),
            **({"classes": classes} if (classes := class_names(spec, data[spec.data])) else {}),
        }
    return partition


def class_names(spec: ClientSpec, data: OpenData) -> dict[str, list[str]]:
    """The names of the classes of a client's tasks, where they come with the data and so may change with them."""
    spaces = data.train.labels if isinstance(data.train, OwnSamples) else {}
    return {task: list(spaces[task].names) for task in spec.tasks if task in spaces and spaces[task].names}


def without_broken(
    experiment: Experiment, data: Mapping[str, OpenData], shards: Mapping[str, Shard]
) -> tuple[dict[str, Shard], dict[str, list[str]]]:
    """Drop unreadable samples from shards; also returns their faults by client.

    This reads everything once, so it is only done with `skip_broken`.
    """
    if not experiment.skip_broken:
        return dict(shards), {}
    left, skipped = dict[str, Shard](), dict[str, list[str]]()
    for spec in experiment.specs:
        shard, broken = shards[spec.name], list[str]()
        train, val = data[spec.data].train.for_share(shard.dealt), data[spec.data].val
        readable: list[list[int]] = []
        for split, indices in ((train, shard.train), (val, shard.val), (val, shard.test)):
            readable.append([])
            for index in indices:
                try:
                    split.load(index, spec.tasks)
                    readable[-1].append(index)
                except FileError as error:
                    broken.append(str(error))
        left[spec.name] = Shard(readable[0], readable[1], shard.dealt, readable[2])
        if broken:
            skipped[spec.name] = broken
    if faults := _too_small(experiment, left):
        listed = "; ".join(f"{len(broken)} of {name!r}, such as {broken[0]}" for name, broken in skipped.items())
        raise UserError.of([*faults, *([Fault("", f"unreadable files: {listed}")] if listed else [])])
    return left, skipped
