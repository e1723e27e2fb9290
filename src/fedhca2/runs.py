"""Running experiments and opening runs, from a notebook or a script."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from math import nan
from pathlib import Path
from typing import Literal

from PIL.Image import Image
from rich.console import Console

from fedhca2 import imports
from fedhca2.deployment.trained import evaluate
from fedhca2.errors import Fault, UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import ComparisonRun, plan_runs, run_all
from fedhca2.federation.parallel_runs import run_in_parallel
from fedhca2.federation.run import resume as resume_here
from fedhca2.federation.run import run as run_here
from fedhca2.imports import require_paths
from fedhca2.live import hand_over
from fedhca2.methods import Method
from fedhca2.records import Records, html_table
from fedhca2.reports.comparison import Comparison
from fedhca2.reports.console import ParallelConsole, watch_here
from fedhca2.reports.layouts import write_comparison
from fedhca2.reports.page.tables import result_table
from fedhca2.run_folder.folder import PAGE, comparison_folder, default_folder
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import SlotKey
from fedhca2.run_folder.result import Result, Scored, task_scores
from fedhca2.run_folder.writer import check_same, read_baseline

Place = str | Path
EngineName = Literal["in-process", "flower-local", "flower-ray"]


def run(
    experiment: Experiment,
    out: Place | None = None,
    *,
    baseline: Place | None = None,
    engine: EngineName = "in-process",
    quiet: bool = False,
    exist_ok: bool = True,
) -> "Run":
    """Train and evaluate an experiment, and return the run; raises UserError if a setting, file or folder is wrong.

    If `out` holds this very run, an interrupted one continues and a finished one is opened, so a cell of a notebook can
    be repeated. A run with other settings is never overwritten.

    >>> import fedhca2
    >>> experiment = fedhca2.Experiment.load("demo", ["rounds=2"])
    >>> run = fedhca2.run(experiment, "runs/first")  # doctest: +SKIP
    >>> run.result.delta_m  # doctest: +SKIP

    :param experiment: what to run; see `Experiment.load`.
    :param out: the run's folder, by default a new one under runs/.
    :param baseline: the folder of a finished run of 'local' to compare with.
    :param engine: where clients run: in this process, in local Flower processes, or in Flower's Ray simulation.
    :param quiet: print nothing.
    :param exist_ok: False refuses a folder that holds a run.
    """
    folder, other = Path(out) if out else default_folder(experiment.name), Path(baseline) if baseline else None
    files = RunFiles(folder)
    if not exist_ok or not files.begun:
        with watch_here(Console(quiet=quiet)) as watcher:
            run_function(engine)(experiment, folder, watcher=watcher, baseline=other)
        return Run(folder)
    imports.allow_code(experiment.own_code)  # which the user has just named
    check_same(files, experiment)
    if other and files.recorded_baseline != read_baseline(other, experiment):
        raise UserError(folder, f"expected a run with the baseline {baseline}, got another one or none")
    if not files.finished:
        return resume(folder, quiet=quiet)
    Console(quiet=quiet).print(f"{folder} holds this run, which is finished", highlight=False)
    return Run(folder)


def resume(
    folder: Place, overrides: list[str] | None = None, *, quiet: bool = False, allow_code: Sequence[str] = ()
) -> "Run":
    """Continue an interrupted run from its last checkpoint, or a finished one for more rounds; return the run.

    >>> import fedhca2
    >>> run = fedhca2.resume("runs/first", ["rounds=50"])  # doctest: +SKIP

    :param folder: the run's folder.
    :param overrides: settings to change, such as `["rounds=50"]`; seed, method, model and privacy cannot change.
    :param quiet: print nothing.
    :param allow_code: files and modules that the folder names and that you trust, if you have not run them here before.
    """
    existing = Run.open(folder, allow_code)
    with watch_here(Console(quiet=quiet)) as watcher:
        resume_function(existing.folder)(existing.folder, watcher=watcher, overrides=overrides)
    return Run(existing.folder)


def compare(
    experiment: Experiment,
    methods: str | Method | Sequence[str | Method],
    out: Place | None = None,
    *,
    seeds: int = 1,
    jobs: int | None = 1,
    trivial: bool = False,
    quiet: bool = False,
) -> Comparison:
    """Run each method with each seed on the same data, write tables and a report, and return the comparison.

    Repeat the call to continue: finished runs are not repeated. Methods other than the experiment's own have their
    default settings, or those that the experiment gives them in `methods`.

    >>> import fedhca2
    >>> experiment = fedhca2.Experiment.load("demo")
    >>> comparison = fedhca2.compare(experiment, ["local", "fedper"], "runs/both", seeds=3)  # doctest: +SKIP
    >>> comparison.table().to_csv("table.csv")  # doctest: +SKIP

    :param experiment: what to run, with each of the methods.
    :param methods: names, import paths, or objects of `Method`.
    :param out: the folder of all runs, by default runs/compare-NAME.
    :param seeds: seeds per method; a test of what is beyond chance needs three.
    :param jobs: how many runs at a time, each in a process of its own; None: one per GPU, or per core without one.
    :param trivial: also list what a constant answer scores.
    :param quiet: print nothing.
    """
    listed = [methods] if isinstance(methods, str | Method) else methods
    chosen = [each if isinstance(each, str) else hand_over(each, "method") for each in listed]
    names = [each if isinstance(each, str) else each.path for each in chosen]
    folder = Path(out) if out else comparison_folder(experiment.name)
    planned = plan_runs(experiment, names, seeds, folder)
    if jobs != 1:
        require_paths("jobs", (path for one in planned for path in one.experiment.own_code))
    if faults := run_planned(planned, jobs, Console(quiet=quiet)):
        raise UserError.of(Fault(str(run), f"did not finish: {why}") for run, why in faults.items())
    return write_comparison([RunFiles.open(one.folder) for one in planned], folder, trivial=trivial)


def run_planned(
    planned: Sequence[ComparisonRun], jobs: int | None, console: Console, *, mps: bool = False
) -> Mapping[Path, str]:
    """Run what is not finished; with several `jobs` in processes, whose errors are returned."""
    if jobs == 1:
        with watch_here(console) as watcher:
            for _ in run_all(planned, watcher):
                pass
        return {}
    with ParallelConsole(console, len(planned), sum(one.finished for one in planned)) as side_by_side:
        return run_in_parallel(planned, jobs, side_by_side, mps=mps)


def run_function(engine: EngineName) -> Callable[..., Result]:
    """The function that runs an experiment on the named engine, with the arguments of `federation.run.run`."""
    if engine == "in-process":
        return run_here
    from fedhca2.federation.flower.local import run_over_flower

    return partial(run_over_flower, engine=engine)


def resume_function(folder: Path) -> Callable[..., Result]:
    """The function that continues a run on its original engine, with the arguments of `federation.run.resume`."""
    if RunFiles(folder).flower_note is None:
        return resume_here
    from fedhca2.federation.flower.local import resume_over_flower

    return resume_over_flower


@dataclass(frozen=True, repr=False)
class Run:
    """A run on disk, finished or not. In a notebook it shows its table of results.

    >>> import fedhca2
    >>> run = fedhca2.Run.open("runs/first")  # doctest: +SKIP
    >>> run.result.delta_m, run.report()  # doctest: +SKIP
    """

    folder: Path

    @classmethod
    def open(cls, folder: Place, allow_code: Sequence[str] = ()) -> "Run":
        """Open the run in a folder; `allow_code` are files and modules that the folder names and that you trust."""
        imports.allow_code(allow_code)
        return cls(RunFiles.open(folder).path)

    @cached_property
    def files(self) -> RunFiles:
        """The run's files: config, events, scores, samples."""
        return RunFiles.open(self.folder)

    @cached_property
    def result(self) -> Result:
        """The outcome of the run: every client's scores, Δm, time and bytes."""
        return self.files.outcome

    def scores(self) -> Records:
        """A record for each client and task: its main `score`, that of training `alone`, and the `gain` in percent.

        `trivial` is the score of a constant answer. `group` has the clients with the same data and tasks. `counts` says
        whether the task counts in Δm. Unknown numbers are NaN.
        """
        records = Records()
        for one in task_scores(self.result.clients, self.result.baseline, self.files.task_set):
            metric = {"metric": one.ours.metric, "unit": one.ours.unit, "higher_is_better": one.ours.higher_is_better}
            who = {"client": one.client, "group": self.files.kinds[one.client], "task": one.task, **metric}
            others = {"alone": one.alone.value if one.alone else nan, "trivial": one.ours.trivial}
            records.append({**who, "score": one.ours.value, **others, "gain": one.gain, "counts": one.ours.counts})
        return records

    def history(self) -> Records:
        """A record for each measured score and training loss: round, method, client, task, metric, value.

        Round r has the losses of that round and the scores after it, so 0 is before training. The rounds of training
        alone have the method 'local'.
        """
        files = self.files
        events = [(files.method, event) for kind in ("metric", "loss") for event in files.of(kind)]
        events += [("local", event) for kind in ("metric", "loss") for event in files.baseline_events(kind)]
        records = [
            {"round": event["round"] + (event["event"] == "loss"), "method": method}
            | {key: event[key] for key in ("client", "task", "metric", "value")}
            for method, event in events
        ]
        return Records(sorted(records, key=lambda record: record["round"]))

    def weights(self) -> Records:
        """A record for each learned α and β: round, client, part, task, layer from 1, weight.

        α is of the encoder as a whole, with the task "" and layer 0; a β is of one layer of a task's decoder.
        """
        records = Records()
        for event in self.files.of("weights"):
            for key, values in event["weights"].items():
                slot = (parsed := SlotKey.parse(key)).slot
                who = {"round": event["round"] + 1, "client": parsed.client, "part": slot.part, "task": slot.task}
                first = 0 if slot.part == "encoder" else 1
                records += [{**who, "layer": layer, "weight": value} for layer, value in enumerate(values, first)]
        return records

    def evaluate(self, split: Scored | None = None, client: str | None = None, thresholds: int = 99) -> Result:
        """Score the saved models again, and those of the local baseline if the run trained it.

        :param split: the images to score: "val", "test" or "train". By default those of the run's result.
        :param client: the client to evaluate; by default all.
        :param thresholds: how many thresholds the score of edges tries.
        """
        return evaluate(self.folder, lambda _: None, split, thresholds, client)

    def report(self, path: Place | None = None) -> Path:
        """Write the report to this path, by default report.html in the run's folder, and return the path."""
        from fedhca2.reports.page.write import write_page

        return write_page([self.files], Path(path) if path else self.folder / PAGE)

    def picture(self, client: str, sample: int = 0) -> Image:
        """Draw a client's sample, counted from 0: input, label, and the predictions before and after training."""
        from fedhca2.reports.pictures import samples_panel

        return samples_panel(self.files, client, sample)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        table = result_table(self.files)
        rows = [[cell.text for cell in row] for row in table.rows]
        about = str(self.result) if self.files.finished else f"{self.folder}: not finished"
        return f"<p>{escape(about)}</p>{html_table(table.columns, rows)}<p>{escape(table.note)}</p>"
