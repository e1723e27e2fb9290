"""One run from an experiment to its folder."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedhca2.data.files import FileError
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data, partition_as_data, without_broken
from fedhca2.federation.membership import check_changes, shards_after
from fedhca2.federation.training import Given, RunWatcher, choose_devices, prepare, train
from fedhca2.run_folder.baseline import baseline_files, finished_scores, read_baseline
from fedhca2.run_folder.names import BASELINE_FILES, BASELINE_FOLDER, CONFIG, PARTITION, RESULT
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import (
    Result,
    Scores,
)
from fedhca2.run_folder.writer import RunFolder

__all__ = ["RunWatcher", "choose_devices", "resume", "run"]


def run(experiment: Experiment, out: Path, watcher: RunWatcher, baseline: Path | None = None) -> Result:
    """Train, evaluate and write the run's folder.

    The Local baseline comes from a finished run where one is given, is trained along where the experiment says so, and
    is absent otherwise.
    """
    early = (PARTITION, *BASELINE_FILES) if baseline else (PARTITION,)
    with closing(RunFolder.new(out, early)) as folder, _files_named():
        known = read_baseline(baseline, experiment) if baseline else None
        choose_devices(experiment.devices)
        data = open_data(experiment)
        shards, skipped = without_broken(experiment, data, assign_shards(experiment, data))
        beside: dict[str, Any] = {PARTITION: partition_as_data(experiment, data, shards)}
        if baseline and known is not None:
            beside |= baseline_files(baseline, known)
        return _run(experiment, Given(data, shards, skipped), folder, beside, watcher, known)


def resume(out: Path, watcher: RunWatcher, overrides: list[str] | None = None) -> Result:
    """Go on with a run that was interrupted, or with a finished one for more rounds; some settings may be changed.

    Everything is checked before anything is changed: a folder that cannot be resumed stays as it was.
    """
    if not (out / CONFIG).is_file():
        raise UserError([f"{out}: should be the folder of a run, found no {CONFIG} in it"])
    with closing(RunFolder.open(out)) as folder, _files_named():
        written, experiment = Experiment.load(out / CONFIG), Experiment.load(out / CONFIG, overrides)
        began = folder.checkpoint.experiment if folder.checkpoint else written
        check_changes(began, written, f"{out / CONFIG}: ")
        check_changes(began, experiment)
        known = RunFiles(out).kept_baseline
        if known is not None and experiment.rounds != began.rounds:
            raise UserError(
                [f"rounds: should be {began.rounds}, as in the baseline of this run, found {experiment.rounds}"]
            )
        if (out / RESULT).exists() and experiment.rounds <= began.rounds:
            raise UserError([f"{out}: has come to its end; --set rounds=… above {began.rounds} goes on"])
        choose_devices(experiment.devices)
        data = open_data(experiment)
        kept = RunFiles(out).partition or {}
        shards, skipped = without_broken(experiment, data, shards_after(experiment, data, kept))
        beside = {PARTITION: partition_as_data(experiment, data, shards)}
        return _run(experiment, Given(data, shards, skipped), folder, beside, watcher, known)


@contextmanager
def _files_named() -> Iterator[None]:
    """A file that cannot be read is a line that names it and says how to go on without it."""
    try:
        yield
    except FileError as error:
        raise UserError([f"{error} (skip_broken: true leaves such files out)"]) from None


def _run(
    experiment: Experiment,
    given: Given,
    folder: RunFolder,
    beside: Mapping[str, Any],
    watcher: RunWatcher,
    known: Scores | None,
) -> Result:
    """The baseline, if it is trained along and not finished yet, and the run."""
    if known is None and experiment.baseline:
        known = finished_scores(folder.path / BASELINE_FOLDER, experiment.with_method("local"))
        if known is None:
            known = _train_baseline(experiment, given, folder, beside, watcher)
    ready = prepare(experiment, given, folder, folder.path)
    folder.rewind(experiment, beside)
    return train(ready, watcher, known)


def _train_baseline(
    experiment: Experiment, given: Given, folder: RunFolder, beside: Mapping[str, Any], watcher: RunWatcher
) -> Scores:
    local = experiment.with_method("local")
    with closing(RunFolder.at(folder.path / BASELINE_FOLDER)) as aside:
        if aside.checkpoint:
            check_changes(aside.checkpoint.experiment, local, f"{aside.path}: ")
        if folder.checkpoint:
            prepare(experiment, given, folder, folder.path)  # what is refused is refused before the baseline changes
        ready = prepare(local, given, aside, folder.path)
        folder.rewind(experiment, beside)
        aside.rewind(local)
        return train(ready, watcher, None).clients
