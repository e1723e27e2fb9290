"""What may change when a run is resumed: clients come and go, and those that stay keep their images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedhca2.data.partition import keep
from fedhca2.errors import UserError
from fedhca2.experiment import ClientSpec, Experiment, OpenData, Shard, assign_shards
from fedhca2.run_folder.names import PARTITION
from fedhca2.run_folder.records import Progress

FIXED = ("seed", "method", "model", "privacy", "metrics")


def check_changes(before: Experiment, after: Experiment, where: str = "", *, settings_stay: bool = False) -> None:
    """Raise UserError if a run cannot continue with these changed settings; `where` names their file.

    With `settings_stay`, no setting may change.
    """
    old, new = before.to_dict(), after.to_dict()
    if settings_stay:
        lines = [line for key in old for line in differences(key, old[key], new[key])]
    else:
        lines = _forbidden_changes(before, after)
    if lines:
        raise UserError(where + line for line in lines)


def _forbidden_changes(before: Experiment, after: Experiment) -> list[str]:
    old, new = before.to_dict(), after.to_dict()
    lines = [line for key in FIXED for line in differences(key, old[key], new[key])]
    for name in old["data"]:
        if name in new["data"]:
            lines += differences(f"data.{name}", old["data"][name], new["data"][name])
    optimizers = (values["training"]["optimizer"] for values in (old, new))  # moments do not fit another optimiser
    lines += differences("training.optimizer", *optimizers)
    known = {spec.name: spec for spec in before.specs}
    for spec in after.specs:
        if spec.name in known and replace(spec, epochs=known[spec.name].epochs) != known[spec.name]:
            lines.append(f"clients: {spec.name!r} should keep its data, tasks and model, found {_described(spec)}")
    return lines


def differences(place: str, old: Any, new: Any) -> list[str]:
    """A line for every setting that has changed since the run started."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys((*old, *new))
        return [line for key in keys for line in differences(f"{place}.{key}", old.get(key), new.get(key))]
    if old == new:
        return []
    return [f"{place}: should be what the run started with, {old!r:.60}, found {new!r:.60}"]


def shards_after(
    experiment: Experiment, data: Mapping[str, OpenData], kept: Mapping[str, Mapping[str, Any]]
) -> dict[str, Shard]:
    """Every client's images: a known client keeps its own, and a new one gets images that no other of its kind has.

    `kept` is the content of the run's `partition.json`.
    """
    new = [spec for spec in experiment.specs if spec.name not in kept]
    if not new and len(kept) == len(experiment.specs):
        return assign_shards(experiment, data)
    shards = {
        spec.name: _kept_shard(data[spec.data], record)
        for spec in experiment.specs
        if (record := kept.get(spec.name)) is not None
    }
    lines: list[str] = []
    for spec in new:
        rivals = [other for other in experiment.specs if other.name in shards and _share(spec, other)]
        taken = {index for other in rivals for index in (shards[other.name].dealt or shards[other.name].train)}
        free = [index for index in range(len(data[spec.data].train)) if index not in taken]
        waiting = [other for other in new if other.name not in shards and _share(spec, other)]
        part = free[:: len(waiting)]
        usable = keep(part, data[spec.data].train.for_share(part).usable(spec.tasks)) if part else []
        if len(usable) < experiment.training.batch_size:
            lines.append(
                f"clients: {spec.name!r} should find {experiment.training.batch_size} images of {spec.data!r} that no "
                f"other client has, found {len(usable)}; give it a data set of its own"
            )
        shards[spec.name] = Shard(usable, list(data[spec.data].val.usable(spec.tasks)), tuple(part))
    if lines:
        raise UserError(lines)
    return {spec.name: shards[spec.name] for spec in experiment.specs}


def _kept_shard(data: OpenData, kept: Mapping[str, Any]) -> Shard:
    train = {id: index for index, id in enumerate(data.train.ids)}
    val = {id: index for index, id in enumerate(data.val.ids)}
    try:
        return Shard(
            [train[id] for id in kept["train"]], [val[id] for id in kept["val"]], [train[id] for id in kept["dealt"]]
        )
    except KeyError as error:
        raise UserError([f"{PARTITION}: should have images of data {kept['data']!r}, found {error}"]) from None


def without_strangers(progress: Progress, clients: Sequence[str]) -> Progress:
    """The state of a run without the clients that have left."""
    weights = {key: held for key, held in progress.state.weights.items() if key.split("/")[0] in clients}
    pending = {client: rows for client, rows in progress.pending.items() if client in clients}
    return Progress(replace(progress.state, weights=weights), pending)


def _share(one: ClientSpec, other: ClientSpec) -> bool:
    """Whether two clients divide a data set's images: single-task clients do, and multi-task clients do."""
    return one.data == other.data and (len(one.tasks) > 1) == (len(other.tasks) > 1)


def _described(spec: ClientSpec) -> str:
    return f"{spec.data}: {', '.join(spec.tasks)} with encoder {spec.model.encoder.title}"
