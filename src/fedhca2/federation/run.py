"""One run on any engine: from an experiment or a saved state, through its rounds, to its result."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from fedhca2.data.files import FileError
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import InProcessEngine
from fedhca2.federation.guard import Guard, Reach
from fedhca2.federation.look_ahead import look_ahead_watchers
from fedhca2.federation.membership import check_changes, drop_departed_clients
from fedhca2.federation.rounds import Engine, Fleet, Outcome, has_stalled, is_due, run_rounds
from fedhca2.federation.server import Server
from fedhca2.federation.stopping import Interrupted, stop_between_rounds
from fedhca2.federation.sum_server import SumOnlyServer
from fedhca2.imports import allow_code
from fedhca2.run_folder.folder import BASELINE, BASELINE_FILES, BASELINE_FOLDER, PAGE
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress, Watcher, Watchers
from fedhca2.run_folder.result import Result, Scores, both_gains, origin, privacy_spent, versions
from fedhca2.run_folder.writer import RunFolder, baseline_files, check_fresh, read_baseline

IN_PROCESS = InProcessEngine()


def run(
    experiment: Experiment, out: Path, *, watcher: Watcher, engine: Engine = IN_PROCESS, baseline: Path | None = None
) -> Result:
    """Train, evaluate and write the run's folder.

    The Local baseline comes from a finished run if one is given, is trained first if the experiment asks for one, and
    is absent otherwise.
    """
    experiment = experiment.resolve()
    early = (*engine.file_names, *BASELINE_FILES) if baseline else engine.file_names
    with closing(RunFolder.new(out, early)) as folder, _name_broken_files():
        extra = baseline_files(baseline, read_baseline(baseline, experiment)) if baseline else {}
        ready = _prepare(experiment, engine, folder, watcher, extra)
        with ready.rounds(watcher) as train:
            outcome = train()
        return ready.conclude(outcome)


def check_new(experiment: Experiment, out: Path, baseline: Path | None = None) -> Scores | None:
    """Check the folder and the baseline of a run that starts; returns the baseline's scores, and changes nothing.

    Raises UserError if there is something in the folder, or if the baseline is not of this experiment.
    """
    check_fresh(out, (*IN_PROCESS.file_names, *BASELINE_FILES))
    return read_baseline(baseline, experiment) if baseline else None


def resume(out: Path, *, watcher: Watcher, engine: Engine = IN_PROCESS, overrides: list[str] | None = None) -> Result:
    """Continue an interrupted run, or a finished one for more rounds; some settings may change.

    Everything is checked before anything changes: a folder that cannot be resumed stays unchanged.
    """
    with reopen(out, overrides, settings_stay=engine.settings_stay) as (folder, experiment), _name_broken_files():
        ready = _prepare(experiment.resolve(), engine, folder, watcher)
        with ready.rounds(watcher) as train:
            outcome = train()
        return ready.conclude(outcome)


def run_or_resume(
    experiment: Experiment, out: Path, *, watcher: Watcher, engine: Engine = IN_PROCESS, baseline: Path | None = None
) -> Result:
    """Run an experiment, or continue it if its folder holds a run."""
    if RunFiles(out).begun:
        allow_code(experiment.own_code)  # which the user has just named
        return resume(out, watcher=watcher, engine=engine)
    return run(experiment, out, watcher=watcher, engine=engine, baseline=baseline)


@contextmanager
def reopen(
    out: Path, overrides: list[str] | None = None, *, settings_stay: bool = False
) -> Iterator[tuple[RunFolder, Experiment]]:
    """Open the folder of a resumable run, with the settings to continue with; raises UserError if there is none."""
    files = RunFiles.open(out)
    with closing(RunFolder.open(out)) as folder:
        written, experiment = files.experiment(), files.experiment(overrides)
        began = folder.checkpoint.experiment if folder.checkpoint else written
        check_changes(began, written, files.config_file, settings_stay=settings_stay)
        check_changes(began, experiment, settings_stay=settings_stay)
        check_rounds(experiment, folder)
        if files.recorded_baseline is not None and experiment.rounds != began.rounds:
            fault = f"expected {began.rounds}, as in the baseline of this run, got {experiment.rounds}"
            raise UserError("rounds", fault)
        if files.finished and experiment.rounds <= began.rounds:
            how = "" if settings_stay else f". To train longer: --set rounds=N with N above {began.rounds}"
            command = shlex.join(["fedhca2", "report", str(out)])
            page = "" if (out / PAGE).is_file() else f". To write its report: {command}"
            raise UserError(out, f"already finished{how}{page}")
        yield folder, experiment


def _prepare(
    experiment: Experiment, engine: Engine, folder: RunFolder, watcher: Watcher, extra_files: Mapping[str, Any] = {}
) -> "_Run":
    """Open the clients, train the baseline if the experiment asks for one, and rewind the folder.

    :param extra_files: what a new run stores of a baseline from another run.
    """
    with ExitStack() as stack:
        fleet = stack.enter_context(closing(engine.open(experiment, folder)))
        rewind = partial(folder.rewind, experiment, {**fleet.files, **extra_files})
        scores = extra_files[BASELINE] if extra_files else RunFiles(folder.path).recorded_baseline
        if scores is None and experiment.baseline:
            scores = _train_baseline(experiment.with_method("local"), engine, fleet, folder.path, rewind, watcher)
        rewind()
        stack.pop_all()  # stays open
    return _Run(experiment, fleet, folder, folder.path, scores)


def _train_baseline(
    local: Experiment, engine: Engine, fleet: Fleet, run: Path, rewind: Callable[[], None], watcher: Watcher
) -> Scores:
    """The scores of Local, trained in a folder within the run's unless it is already finished there.

    :param rewind: rewinds the run, once all checks have passed.
    """
    path = run / BASELINE_FOLDER
    files = RunFiles(path)
    if files.begun and files.result and files.config_file.read_text("utf-8") == local.to_yaml():
        return files.result.clients
    with closing(RunFolder.open(path) if files.begun else RunFolder.new(path)) as own:
        if own.checkpoint:
            check_changes(own.checkpoint.experiment, local, path, settings_stay=engine.settings_stay)
        check_rounds(local, own)
        alone = _Run(local, fleet.baseline(local, own), own, to_resume=run)
        rewind()
        own.rewind(local)
        with alone.rounds(watcher) as train:
            outcome = train()
        return alone.conclude(outcome).clients


@contextmanager
def _name_broken_files() -> Iterator[None]:
    """Report an unreadable file in one line that names it and says how to continue without it."""
    try:
        yield
    except FileError as error:
        raise UserError("", f"{error} (skip_broken: true skips such files)") from None


def check_rounds(experiment: Experiment, folder: RunFolder) -> None:
    """Raise UserError if a run has already done more rounds than an experiment has."""
    done = folder.checkpoint.progress.state.round if folder.checkpoint else 0
    if done > experiment.rounds:
        raise UserError("rounds", f"expected at least {done}, which the run has already done, got {experiment.rounds}")


def make_guard(experiment: Experiment, fleet: Fleet) -> Guard:
    """The server for the clients of a fleet and for those that join later, with the guard before it."""
    everyone, present = fleet.expected.values(), fleet.profiles
    if fleet.summer is None:
        server = Server(experiment.resolved_method, everyone, present, experiment.participation.late)
    else:
        server = SumOnlyServer(experiment, everyone, fleet.summer, present)
    reach = replace(Reach.of(experiment), images=fleet.images)
    return Guard(server, experiment.guard, reach, experiment.task_set)


class _Run:
    """A run in a rewound folder, with its clients. All checks have passed."""

    def __init__(
        self, experiment: Experiment, fleet: Fleet, folder: RunFolder, to_resume: Path, baseline: Scores | None = None
    ) -> None:
        """:param to_resume: the folder to resume after an interruption, of this run or of the one it is part of."""
        self.experiment, self.fleet, self.folder, self.to_resume = experiment, fleet, folder, to_resume
        self.baseline = baseline
        self._began = perf_counter()
        notes: Mapping[str, Any] = folder.checkpoint.notes if folder.checkpoint else {"seconds": 0.0}
        self._before = float(notes["seconds"])
        self._origin = notes.get("origin") or origin()

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, including before interruptions."""
        return self._before + perf_counter() - self._began

    @contextmanager
    def rounds(self, watcher: Watcher) -> Iterator[Callable[[], Outcome]]:
        """Gather the clients; yields the function that trains all remaining rounds, and saves their models after it.

        It stops between two rounds on request.
        """
        experiment, fleet = self.experiment, self.fleet

        with closing(fleet):
            watchers = self._start(watcher)
            with stop_between_rounds(at_once=fleet.stops_at_once) as stopping:

                def on_round_end(progress: Progress, is_last: bool) -> None:
                    done = progress.state.round
                    is_last = is_last or done == experiment.rounds
                    if stopping.signal or is_last or is_due(done, fleet.checkpoint_every):
                        self._commit(progress)
                    if stopping.signal:
                        raise Interrupted(stopping.signal, self.to_resume, done)

                def is_over(scores: Scores) -> bool:
                    history.append(scores)
                    return has_stalled(history, experiment.patience, experiment.task_set)

                history, guard, checkpoint = self._evaluations(), make_guard(experiment, fleet), self.folder.checkpoint
                names = {spec.name for spec in experiment.specs}
                progress = drop_departed_clients(checkpoint.progress, names) if checkpoint else None
                over = progress and has_stalled(history, experiment.patience, experiment.task_set)
                yield partial(
                    run_rounds,
                    guard.server,
                    fleet,
                    progress.state.round if progress and over else experiment.rounds,
                    experiment.evaluate_every,
                    watchers,
                    guard=guard,
                    choose=partial(experiment.participation.choose, seed=experiment.seed),
                    compare_every=experiment.diagnostics.every if experiment.diagnostics else 0,
                    is_over=is_over,
                    progress=progress,
                    on_round_end=on_round_end,
                )
            fleet.finish()

    def _start(self, watcher: Watcher) -> Watchers:
        """Gather the clients; returns the watchers of the rounds."""
        fleet, events, checkpoint = self.fleet, self.folder.events, self.folder.checkpoint
        fleet.gather()
        watcher.started(self.experiment, fleet.shards)
        events.watcher = watcher
        known, final = checkpoint.clients if checkpoint else (), "test" if self.experiment.tested else "val"
        events.follow(fleet.profiles, fleet.traffic, known, final)
        fleet.warm_up()
        if fleet.checkpoint_first:
            self._commit(Progress())
        return Watchers(events, *look_ahead_watchers(self.experiment, fleet, events, watcher.batch), watcher)

    def _evaluations(self) -> list[Scores]:
        """The scores of the evaluations that the run has done already."""
        scores = dict[int, Scores]()
        for event in RunFiles(self.folder.path).of("metric") if self.experiment.patience else ():
            of_client = scores.setdefault(event["round"], {}).setdefault(event["client"], {})
            of_client.setdefault(event["task"], {})[event["metric"]] = event["value"]
        return [each for _, each in sorted(scores.items())]

    def _commit(self, progress: Progress) -> None:
        self.folder.commit(progress, self.fleet.save, {"seconds": self.seconds, "origin": self._origin})

    def conclude(self, outcome: Outcome) -> Result:
        """Write the result of the run."""
        if outcome.missing:
            self.folder.events.log("absent", round=outcome.rounds, clients=outcome.missing)
        privacy = privacy_spent(self.experiment.privacy.noise, self.folder.events.updates)
        result = Result(
            name=self.experiment.name,
            method=self.experiment.method_name,
            rounds=outcome.rounds,
            split="test" if self.experiment.tested else "val",
            seed=self.experiment.seed,
            clients=outcome.scores,
            baseline=self.baseline,
            **both_gains(outcome.scores, self.baseline, self.experiment.task_set, self.experiment.kinds),
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
