"""One run on any engine: from an experiment or a saved state, through its rounds, to its result."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from fedhca2.data.files import FileError
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import Engine, Fleets
from fedhca2.federation.in_process import InProcessEngine
from fedhca2.federation.membership import check_changes
from fedhca2.federation.rounds import Outcome, run_rounds
from fedhca2.federation.stopping import Interrupted, stop_between_rounds
from fedhca2.imports import allow_code
from fedhca2.run_folder.baseline import baseline_files, finished_scores, read_baseline
from fedhca2.run_folder.names import BASELINE_FILES, BASELINE_FOLDER
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress, Watcher
from fedhca2.run_folder.result import Result, Scores, origin, overall_gain, privacy_spent, versions
from fedhca2.run_folder.writer import RunFolder

IN_PROCESS = InProcessEngine()


def run(
    experiment: Experiment,
    out: Path,
    *,
    watcher: Watcher,
    engine: Engine = IN_PROCESS,
    baseline: Path | None = None,
) -> Result:
    """Train, evaluate and write the run's folder.

    The Local baseline comes from a finished run if one is given, is trained first if the experiment asks for one, and
    is absent otherwise.
    """
    experiment = experiment.resolve()
    early = (*engine.file_names, *BASELINE_FILES) if baseline else engine.file_names
    with closing(RunFolder.new(out, early)) as folder, _files_named():
        known = read_baseline(baseline, experiment) if baseline else None
        fleets = engine.prepare(experiment, out, resumed=False)
        beside = {**fleets.files, **(baseline_files(baseline, known) if baseline and known is not None else {})}
        ready, known = _ready(experiment, engine, fleets, folder, beside, watcher, known)
        return ready.train(watcher, known)


def check_new(experiment: Experiment, out: Path, baseline: Path | None = None) -> Scores | None:
    """Check the folder and the baseline of a run that starts; returns the baseline's scores, and changes nothing.

    Raises UserError if there is something in the folder, or if the baseline is not of this experiment.
    """
    RunFolder.new(out, (*IN_PROCESS.file_names, *BASELINE_FILES)).close()
    return read_baseline(baseline, experiment) if baseline else None


def resume(out: Path, *, watcher: Watcher, engine: Engine = IN_PROCESS, overrides: list[str] | None = None) -> Result:
    """Continue an interrupted run, or a finished one for more rounds; some settings may change.

    Everything is checked before anything changes: a folder that cannot be resumed stays unchanged.
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
    watcher: Watcher,
    engine: Engine = IN_PROCESS,
    baseline: Path | None = None,
) -> Result:
    """Run an experiment, or continue it if its folder holds a run."""
    if RunFiles(out).begun:
        allow_code(experiment.own_code)  # which the user has just named
        return resume(out, watcher=watcher, engine=engine)
    return run(experiment, out, watcher=watcher, engine=engine, baseline=baseline)


@contextmanager
def reopened(
    out: Path, overrides: list[str] | None = None, *, settings_stay: bool = False
) -> Iterator[tuple[RunFolder, Experiment]]:
    """Open the folder of a resumable run, with the settings to continue with; raises UserError if there is none."""
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
            how = "" if settings_stay else f"; --set rounds=… above {began.rounds} continues it"
            page = "" if files.has_page else f"; `{shlex.join(['fedhca2', 'report', str(out)])}` draws its missing page"
            raise UserError([f"{out}: is finished{how}{page}"])
        yield folder, experiment


def _ready(
    experiment: Experiment,
    engine: Engine,
    fleets: Fleets,
    folder: RunFolder,
    beside: Mapping[str, Any],
    watcher: Watcher,
    known: Scores | None,
) -> tuple["ResumableRun", Scores | None]:
    """Prepare the run in its rewound folder, and get the baseline's scores, trained first if the experiment says so."""
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
    watcher: Watcher,
) -> Scores:
    """The scores of Local, trained in a folder within the run's unless it is already finished there."""
    local, place = experiment.with_method("local"), folder.path / BASELINE_FOLDER
    if (known := finished_scores(place, local)) is not None:
        return known
    with closing(RunFolder.at(place)) as aside:
        if aside.checkpoint:
            check_changes(aside.checkpoint.experiment, local, f"{place}: ", settings_stay=engine.settings_stay)
        if folder.checkpoint:
            ResumableRun(experiment, fleets, folder)  # every refusal comes before the baseline changes
        ready = ResumableRun(local, fleets, aside, baseline_of=folder.path)
        folder.rewind(experiment, beside)
        aside.rewind(local)
        return ready.train(watcher, None).clients


@contextmanager
def _files_named() -> Iterator[None]:
    """Report an unreadable file in one line that names it and says how to continue without it."""
    try:
        yield
    except FileError as error:
        raise UserError(error.path, f"{error.fault} (skip_broken: true skips such files)") from None


class ResumableRun:
    """A run that can continue from its last checkpoint. All checks have passed, and no file has changed."""

    def __init__(
        self, experiment: Experiment, fleets: Fleets, folder: RunFolder, *, baseline_of: Path | None = None
    ) -> None:
        """`baseline_of` is the folder of the run whose baseline this is: the one to resume after an interruption."""
        self.experiment, self.folder, self.to_resume = experiment, folder, baseline_of or folder.path
        self._began = perf_counter()
        notes: Mapping[str, Any] = folder.checkpoint.notes if folder.checkpoint else {"seconds": 0.0}
        self._before = float(notes["seconds"])
        self._origin = notes.get("origin") or origin()
        done = folder.checkpoint.progress.state.round if folder.checkpoint else 0
        if done > experiment.rounds:
            raise UserError(
                [f"rounds: should be at least {done}, which the run has already done, found {experiment.rounds}"]
            )
        self.fleet = fleets.open(experiment, folder, baseline=baseline_of is not None)

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, including before interruptions."""
        return self._before + perf_counter() - self._began

    @property
    def _notes(self) -> dict[str, Any]:
        """What a checkpoint keeps about the run itself."""
        return {"seconds": self.seconds, "origin": self._origin}

    def train(self, watcher: Watcher, baseline: Scores | None) -> Result:
        """Train all remaining rounds in a rewound folder; stops between two rounds on request."""
        experiment, fleet = self.experiment, self.fleet

        def choose(names: Iterable[str], round: int) -> list[str]:
            return experiment.participation.choose(names, round, experiment.seed)

        with fleet.begin(watcher) as told:
            if fleet.checkpoint_first:
                self.folder.commit(Progress(), fleet, self._notes)
            with stop_between_rounds(at_once=fleet.stops_at_once) as stopping:

                def passed(progress: Progress) -> None:
                    done, every = progress.state.round, fleet.checkpoint_every
                    if stopping.signal or (every and done % every == 0) or done == experiment.rounds:
                        self.folder.commit(progress, fleet, self._notes)
                    if stopping.signal:
                        raise Interrupted(stopping.signal, self.to_resume, done)

                outcome = run_rounds(
                    fleet.server(),
                    fleet,
                    experiment.rounds,
                    experiment.evaluate_every,
                    told,
                    choose=choose,
                    compare_every=experiment.diagnostics.every if experiment.diagnostics else 0,
                    progress=fleet.progress,
                    passed=passed,
                    wait=self.folder.waiting.keep,
                )
            outcome = fleet.finish(outcome)
        return self._conclude(outcome, baseline)

    def _conclude(self, outcome: Outcome, baseline: Scores | None) -> Result:
        """Write the result of the run."""
        if outcome.missing:
            self.folder.events.log("absent", round=self.experiment.rounds, clients=outcome.missing)
        privacy = privacy_spent(self.experiment.privacy.noise, self.folder.events.updates)
        result = Result(
            name=self.experiment.name,
            method=self.experiment.method_name,
            rounds=self.experiment.rounds,
            seed=self.experiment.seed,
            clients=outcome.scores,
            baseline=baseline,
            delta_m=overall_gain(outcome.scores, baseline or {}, self.experiment.task_set, self.experiment.kinds),
            delta_m_by_client=overall_gain(outcome.scores, baseline or {}, self.experiment.task_set),
            seconds=self.seconds,
            bytes={"up": self.folder.events.bytes_up, "down": self.folder.events.bytes_down},
            versions=versions(),
            device=self.fleet.device,
            skipped=dict(self.fleet.skipped),
            missing=dict(outcome.missing),
            epsilon=privacy["epsilon"] if privacy else None,
            privacy=privacy,
            origin=self._origin,
        )
        self.folder.finish(result.to_dict())
        return result
