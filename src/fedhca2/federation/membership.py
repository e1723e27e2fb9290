"""What may change when a run is resumed: clients come and go, and those that stay keep their images."""

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedhca2.errors import Fault, UserError
from fedhca2.experiment import ClientSpec, Experiment, OpenData, Shard, class_names, new_shard, require_usable
from fedhca2.run_folder.files import mapping
from fedhca2.run_folder.folder import PARTITION
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress

FIXED = ("seed", "method", "model", "privacy", "metrics")  # settings that no resumed run can change


def check_changes(before: Experiment, after: Experiment, file: Path | None = None, *, settings_stay: bool) -> None:
    """Raise UserError if a run cannot continue with these changed settings.

    :param file: the file of the changed settings, for the message.
    :param settings_stay: no setting may change.
    """
    old, new = before.to_dict(), after.to_dict()
    pairs = {key: (old[key], new[key]) for key in (old if settings_stay else FIXED)}
    if not settings_stay:
        pairs |= {f"data.{name}": (old["data"][name], new["data"][name]) for name in old["data"] if name in new["data"]}
        # Moments do not fit another optimiser.
        pairs["training.optimizer"] = old["training"]["optimizer"], new["training"]["optimizer"]
    faults = [fault for where, pair in pairs.items() for fault in _find_differences(where, *pair)]
    old_specs = {} if settings_stay else {spec.name: spec for spec in before.specs}
    for spec in after.specs:  # the length of their rounds may change
        was = old_specs.get(spec.name)
        if was and replace(spec, epochs=was.epochs, steps=was.steps) != was:
            got = f"{spec.data}: {', '.join(spec.tasks)} with encoder {spec.model.encoder.title}"
            faults.append(Fault("clients", f"expected that {spec.name!r} keeps its data, tasks and model, got {got}"))
    if faults:
        raise UserError.of(Fault(f"{file}: {where}" if file else where, message) for where, message in faults)


def _find_differences(where: str, old: Any, new: Any) -> list[Fault]:
    """A fault for every setting that has changed since the run started."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys((*old, *new))
        return [fault for key in keys for fault in _find_differences(f"{where}.{key}", old.get(key), new.get(key))]
    if old == new:
        return []
    return [Fault(where, f"expected what the run started with, {old!r:.60}, got {new!r:.60}")]


def shards_after(experiment: Experiment, data: Mapping[str, OpenData], run: RunFiles) -> dict[str, Shard]:
    """Every client's images: those of a known client are in the run's folder; a new one gets what no other has.

    Raises UserError if the folder does not say which, if they are no longer there, or if classes have changed.
    """
    saved = run.partition
    if saved is None:
        raise UserError(run.path, f"expected {PARTITION}, which says which images each client has, got no such file")
    staying = [(spec, _check_record(spec.name, saved[spec.name])) for spec in experiment.specs if spec.name in saved]
    if faults := [fault for spec, record in staying for fault in _find_changes(spec, data[spec.data], record)]:
        raise UserError.of(faults)
    shards = {spec.name: _make_saved_shard(data[spec.data], record) for spec, record in staying}
    _add_new_clients(experiment, data, shards)
    require_usable(experiment, data, shards)
    return {spec.name: shards[spec.name] for spec in experiment.specs}


def _check_record(client: str, record: Any) -> dict[str, Any]:
    """A client's record in `partition.json`; one of an older run may lack the unused images that it was dealt."""
    where = f"{PARTITION}: {client}"
    lists = mapping(where, record)
    lists = {"dealt": lists.get("train"), "test": [], **lists}
    for key in ("train", "val", "dealt", "test"):
        if not isinstance(lists.get(key), list) or not all(isinstance(image, str) for image in lists[key]):
            raise UserError(f"{where}.{key}", f"expected a list of ids of images, got {lists.get(key)!r:.60}")
    return lists


def _find_changes(spec: ClientSpec, data: OpenData, record: Mapping[str, Any]) -> list[Fault]:
    """What the data set lacks of a client's saved images and classes."""
    where, faults = f"data.{spec.data}", []
    for split, ids, images in (
        ("train", set(data.train.ids), [*record["train"], *record["dealt"]]),
        ("val", set(data.val.ids), [*record["val"], *record["test"]]),
    ):
        if gone := [image for image in dict.fromkeys(images) if image not in ids]:
            listed = ", ".join(map(repr, gone[:5])) + (f" and {len(gone) - 5} more" if gone[5:] else "")
            expected = f"expected the images that {spec.name!r} has in {PARTITION}"
            faults.append(Fault(where, f"{expected}, got a {split} split without {listed}"))
    classes = class_names(spec, data)
    if (saved := record.get("classes", classes)) != classes:
        expected = f"expected the classes that {spec.name!r} has in {PARTITION}, {saved!r:.200}"
        faults.append(Fault(where, f"{expected}, got {classes!r:.200}"))
    return faults


def _make_saved_shard(data: OpenData, record: Mapping[str, Any]) -> Shard:
    train, val = ({id: index for index, id in enumerate(split.ids)} for split in (data.train, data.val))
    lists = (("train", train), ("val", val), ("dealt", train), ("test", val))
    return Shard(*([indices[id] for id in record[key]] for key, indices in lists))


def _add_new_clients(experiment: Experiment, data: Mapping[str, OpenData], shards: dict[str, Shard]) -> None:
    """Give each client without images some that no other of its kind has."""
    new = [spec for spec in experiment.specs if spec.name not in shards]
    faults: list[Fault] = []
    for spec in new:
        rivals = [other for other in experiment.specs if other.name in shards and _share_images(spec, other)]
        taken = {index for other in rivals for index in shards[other.name].dealt}
        free = [index for index in range(len(data[spec.data].train)) if index not in taken]
        waiting = [other for other in new if other.name not in shards and _share_images(spec, other)]
        shard = shards[spec.name] = new_shard(experiment, spec, data[spec.data], tuple(free[:: len(waiting)]))
        if len(shard.train) < experiment.training.batch_size:
            count, hint = experiment.training.batch_size, "give it a data set of its own"
            expected = f"{count} images of {spec.data!r} for {spec.name!r} that no other client has"
            faults.append(Fault("clients", f"expected {expected}, got {len(shard.train)}; {hint}"))
    if faults:
        raise UserError.of(faults)


def drop_departed_clients(progress: Progress, clients: Container[str]) -> Progress:
    """The state of a run without the clients that have left."""
    weights = {key: learned for key, learned in progress.state.weights.items() if key.client in clients}
    pending = {client: rows for client, rows in progress.pending.items() if client in clients}
    at_work = {client: round for client, round in progress.at_work.items() if client in clients}
    return Progress(replace(progress.state, weights=weights), pending, at_work)


def _share_images(one: ClientSpec, other: ClientSpec) -> bool:
    """Whether two clients divide a data set's images: single-task clients do, and multi-task clients do."""
    return one.data == other.data and (len(one.tasks) > 1) == (len(other.tasks) > 1)
