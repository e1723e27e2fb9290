"""One run from an experiment to its folder, on any engine."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedhca2.data.files import FileError
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import Engine, Fleets, RunWatcher
from fedhca2.federation.in_process_engine import InProcessEngine, choose_devices
from fedhca2.federation.membership import check_changes
from fedhca2.federation.resumable_run import ResumableRun
from fedhca2.run_folder.baseline import baseline_files, finished_scores, read_baseline
from fedhca2.run_folder.names import BASELINE_FILES, BASELINE_FOLDER
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Result, Scores
from fedhca2.run_folder.writer import RunFolder

__all__ = ["RunWatcher", "choose_devices", "reopened", "resume", "run", "run_or_resume"]

IN_PROCESS = InProcessEngine()


def run(
    experiment: Experiment,
    out: Path,
    *,
    watcher: RunWatcher,
    engine: Engine = IN_PROCESS,
    baseline: Path | None = None,
) -> Result:
    """Train, evaluate and write the run's folder.

    The Local baseline comes from a finished run where one is given, is trained along where the experiment says so, and
    is absent otherwise.
    """
    early = (*engine.file_names, *BASELINE_FILES) if baseline else engine.file_names
    with closing(RunFolder.new(out, early)) as folder, _files_named():
        known = read_baseline(baseline, experiment) if baseline else None
        fleets = engine.prepare(experiment, out, resumed=False)
        beside = {**fleets.files, **(baseline_files(baseline, known) if baseline and known is not None else {})}
        ready, known = _ready(experiment, engine, fleets, folder, beside, watcher, known)
        return ready.train(watcher, known)


def resume(
    out: Path, *, watcher: RunWatcher, engine: Engine = IN_PROCESS, overrides: list[str] | None = None
) -> Result:
    """Go on with a run that was interrupted, or with a finished one for more rounds; some settings may be changed.

    Everything is checked before anything is changed: a folder that cannot be resumed stays as it was.
    """
    with reopened(out, overrides, settings_stay=engine.settings_stay) as (folder, experiment), _files_named():
        known = RunFiles(out).kept_baseline
        fleets = engine.prepare(experiment, out, resumed=True)
        ready, known = _ready(experiment, engine, fleets, folder, fleets.files, watcher, known)
        return ready.train(watcher, known)


def run_or_resume(
    experiment: Experiment,
    out: Path,
    *,
    watcher: RunWatcher,
    engine: Engine = IN_PROCESS,
    baseline: Path | None = None,
) -> Result:
    """Run an experiment, or go on with it as it was if its folder has been begun."""
    if RunFiles(out).begun:
        return resume(out, watcher=watcher, engine=engine)
    return run(experiment, out, watcher=watcher, engine=engine, baseline=baseline)


@contextmanager
def reopened(
    out: Path, overrides: list[str] | None = None, *, settings_stay: bool = False
) -> Iterator[tuple[RunFolder, Experiment]]:
    """The folder of a run that can be resumed, and the settings to go on with; UserError if it cannot."""
    files = RunFiles.open(out)
    with closing(RunFolder.open(out)) as folder:
        written, experiment = files.experiment(), files.experiment(overrides)
        began = folder.checkpoint.experiment if folder.checkpoint else written
        check_changes(began, written, f"{files.config_file}: ", settings_stay=settings_stay)
        check_changes(began, experiment, settings_stay=settings_stay)
        if files.kept_baseline is not None and experiment.rounds != began.rounds:
            raise UserError(
                [f"rounds: should be {began.rounds}, as in the baseline of this run, found {experiment.rounds}"]
            )
        if files.finished and experiment.rounds <= began.rounds:
            how = "" if settings_stay else f"; --set rounds=… above {began.rounds} goes on"
            raise UserError([f"{out}: has come to its end{how}"])
        yield folder, experiment


def _ready(
    experiment: Experiment,
    engine: Engine,
    fleets: Fleets,
    folder: RunFolder,
    beside: Mapping[str, Any],
    watcher: RunWatcher,
    known: Scores | None,
) -> tuple[ResumableRun, Scores | None]:
    """The run in its folder, rewound, and the baseline's scores: trained first where the experiment asks for them."""
    if known is None and experiment.baseline:
        known = _train_baseline(experiment, engine, fleets, folder, beside, watcher)
    ready = ResumableRun(experiment, fleets, folder)
    folder.rewind(experiment, beside)
    return ready, known


def _train_baseline(
    experiment: Experiment,
    engine: Engine,
    fleets: Fleets,
    folder: RunFolder,
    beside: Mapping[str, Any],
    watcher: RunWatcher,
) -> Scores:
    """The scores of Local, which is trained in a folder within the run's unless it has come to its end there."""
    local, place = experiment.with_method("local"), folder.path / BASELINE_FOLDER
    if (known := finished_scores(place, local)) is not None:
        return known
    with closing(RunFolder.at(place)) as aside:
        if aside.checkpoint:
            check_changes(aside.checkpoint.experiment, local, f"{place}: ", settings_stay=engine.settings_stay)
        if folder.checkpoint:
            ResumableRun(experiment, fleets, folder)  # what is refused is refused before the baseline changes
        ready = ResumableRun(local, fleets, aside, baseline_of=folder.path)
        folder.rewind(experiment, beside)
        aside.rewind(local)
        return ready.train(watcher, None).clients


@contextmanager
def _files_named() -> Iterator[None]:
    """A file that cannot be read is a line that names it and says how to go on without it."""
    try:
        yield
    except FileError as error:
        raise UserError([f"{error} (skip_broken: true leaves such files out)"]) from None
