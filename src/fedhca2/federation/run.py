"""One run from an experiment to its folder."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedhca2.data.files import FileError
from fedhca2.experiment import ConfigError, Experiment, assign_shards, open_data, partition_as_data, without_broken
from fedhca2.federation.membership import check_changes, shards_after
from fedhca2.federation.result import (
    Result,
    Scores,
    baseline_files,
    finished_scores,
    kept_baseline,
    read_baseline,
)
from fedhca2.federation.run_folder import RunFolder
from fedhca2.federation.strict_json import read_json
from fedhca2.federation.training import Given, RunWatcher, choose_devices, train

PARTITION = "partition.json"
__all__ = ["RunWatcher", "choose_devices", "resume", "run"]


def run(experiment: Experiment, out: Path, watcher: RunWatcher, baseline: Path | None = None) -> Result:
    """Train, evaluate and write the run's folder.

    The Local baseline comes from a finished run where one is given, is trained along where the experiment says so, and
    is absent otherwise.
    """
    known = read_baseline(baseline, experiment) if baseline else None
    choose_devices(experiment.devices)
    data = open_data(experiment)
    shards, skipped = without_broken(experiment, data, assign_shards(experiment, data))
    beside: dict[str, Any] = {PARTITION: partition_as_data(experiment, data, shards)}
    if baseline and known is not None:
        beside |= baseline_files(baseline, known)
    with closing(RunFolder(out, experiment, beside=beside)) as folder, _files_named():
        return _run(experiment, Given(data, shards, skipped), folder, watcher, known)


def resume(out: Path, watcher: RunWatcher, overrides: list[str] | None = None) -> Result:
    """Go on with a run that was interrupted, or with a finished one for more rounds; some settings may be changed."""
    if not (out / "config.yaml").is_file():
        raise ConfigError([f"{out}: should be the folder of a run, found no config.yaml in it"])
    before = Experiment.load(out / "config.yaml")
    experiment = Experiment.load(out / "config.yaml", overrides)
    check_changes(before, experiment)
    known = kept_baseline(out)
    if known is not None and experiment.rounds != before.rounds:
        raise ConfigError(
            [f"rounds: should be {before.rounds}, as in the baseline of this run, found {experiment.rounds}"]
        )
    if (out / "result.json").exists() and experiment.rounds <= before.rounds:
        raise ConfigError([f"{out}: has come to its end; --set rounds=… above {before.rounds} goes on"])
    choose_devices(experiment.devices)
    data = open_data(experiment)
    shards = shards_after(experiment, data, read_json(out / PARTITION) if (out / PARTITION).exists() else {})
    shards, skipped = without_broken(experiment, data, shards)
    beside = {PARTITION: partition_as_data(experiment, data, shards)}
    with closing(RunFolder(out, experiment, resume=True, beside=beside)) as folder, _files_named():
        return _run(experiment, Given(data, shards, skipped), folder, watcher, known)


@contextmanager
def _files_named() -> Iterator[None]:
    """A file that cannot be read is a line that names it and says how to go on without it."""
    try:
        yield
    except FileError as error:
        raise ConfigError([f"{error} (skip_broken: true leaves such files out)"]) from None


def _run(experiment: Experiment, given: Given, folder: RunFolder, watcher: RunWatcher, known: Scores | None) -> Result:
    """The baseline, if it is trained along and not finished yet, and the run."""
    if known is None and experiment.baseline:
        local = experiment.with_method("local")
        place = folder.path / "baseline"
        known = finished_scores(place, local)
        if known is None:
            with closing(RunFolder(place, local, resume=True)) as aside:
                known = train(local, given, aside, watcher, None, folder.path).clients
    return train(experiment, given, folder, watcher, known, folder.path)
