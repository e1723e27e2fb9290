"""A finished run with its models evaluated once more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedhca2.clients import Client, DeviceSlot
from fedhca2.data.dataset import Split
from fedhca2.data.files import FileError
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, OpenData, Shard, build_client, open_data
from fedhca2.federation.in_process import choose_devices
from fedhca2.federation.membership import shards_after
from fedhca2.run_folder.names import PARTITION
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Result, Scores, overall_gain

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate a run's models on: a split, so many thresholds for edges, and all clients or one."""

    split: Split = "val"
    thresholds: int = 99
    client: str | None = None


def evaluated(run: Path, wanted: Evaluation, progress: Progress) -> Result:
    """The run's result with new scores, of its own models and of those of the Local baseline that it trained along.

    A baseline that came from another run has no models here; its scores serve where they are of the same kind.
    `progress` hears which client is next.
    """
    files = RunFiles(run)
    result = Result(**files.finished_result)
    began = files.experiment()
    experiment = began.model_copy(update={"model": began.model.blank})  # trained values replace the first ones
    names = [spec.name for spec in experiment.specs]
    if wanted.client is not None and wanted.client not in names:
        raise UserError([f"--client: should be one of {', '.join(names)}, found {wanted.client!r}"])
    data = open_data(experiment)
    if files.partition is None:
        raise UserError([f"{run}: should say which images each client has, found no {PARTITION} in it"])
    shards = shards_after(experiment, data, files.partition)
    scores = _scores(files, experiment, data, shards, wanted, progress)
    baseline = _known_baseline(files, wanted)
    if files.baseline.begun:
        baseline = _scores(files.baseline, experiment, data, shards, wanted, progress)
    return replace(
        result,
        clients=scores,
        baseline=baseline,
        delta_m=overall_gain(scores, baseline or {}, experiment.kinds),
        delta_m_by_client=overall_gain(scores, baseline or {}),
    )


def _known_baseline(run: RunFiles, wanted: Evaluation) -> Scores | None:
    known = run.kept_baseline
    if (wanted.split, wanted.thresholds) != ("val", 99) or known is None:
        return None
    return {client: scores for client, scores in known.items() if wanted.client in (None, client)}


def _scores(
    run: RunFiles,
    experiment: Experiment,
    data: Mapping[str, OpenData],
    shards: Mapping[str, Shard],
    wanted: Evaluation,
    progress: Progress,
) -> Scores:
    scores = {}
    for spec in experiment.specs:
        if wanted.client in (None, spec.name):
            progress(spec.name)
            client = build_client(experiment, spec, data[spec.data], shards[spec.name], DeviceSlot(choose_devices()[0]))
            _load(client, run.model_file(spec.name))
            try:
                scores[spec.name] = _evaluate(client, wanted)
            except FileError as error:
                raise UserError([str(error)]) from None
    return scores


def _load(client: Client, path: Path) -> None:
    try:
        client.personal.model.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError([f"{path}: should be the trained model of {client.name!r}, found {reason}"]) from None


def _evaluate(client: Client, wanted: Evaluation) -> dict[str, dict[str, float]]:
    batches = client.data.val if wanted.split == "val" else client.data.train
    labels = {task: replace(space, edge_thresholds=wanted.thresholds) for task, space in batches.data.labels.items()}
    return client.evaluate_on(batches, labels)
