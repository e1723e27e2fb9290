"""`fedhca2 compare`, `sweep`, `report` and `leaderboard`: compare several runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from fedhca2.cli import lazy, options
from fedhca2.cli.app import app, command, open_console, print_json
from fedhca2.cli.run import draw_page
from fedhca2.errors import UserError
from fedhca2.run_folder.folder import PAGE, comparison_folder, lock_folder
from fedhca2.strict_yaml import YamlError, parse_yaml
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import counted

if TYPE_CHECKING:
    from fedhca2.experiment import Experiment
    from fedhca2.federation.comparison_runs import ComparisonRun
    from fedhca2.reports.comparison import Comparison
    from fedhca2.run_folder.reader import RunFiles

Jobs = Annotated[
    str,
    Option(
        metavar="N|auto",
        help="Parallel runs, each with its share of the cores; auto: one per GPU, or per core without a GPU.",
    ),
]
Mps = Annotated[bool, Option("--mps", help="Let parallel runs share a GPU with NVIDIA's MPS, if installed.")]


@command(app, panel="Compare")
def compare(
    config: options.ExperimentName = "demo",
    methods: Annotated[
        list[str] | None,
        options.Methods(
            help="Comma-separated methods, or `all`. Each runs with its default settings, or with those under "
            "`methods` in the experiment.",
            show_default="fedavg,fedhca2",
        ),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Seeds per method, counted up from the experiment's seed.")] = 1,
    out: Annotated[Path | None, options.Out(help="Folder for all runs.", show_default="runs/compare-NAME")] = None,
    jobs: Jobs = "1",
    mps: Mps = False,
    overrides: options.Overrides = None,
    trivial: options.Trivial = False,
    as_json: options.Json = False,
) -> None:
    """Compare methods with the same data, splits and initial weights. Repeat the command to continue.

    Example: `fedhca2 compare demo --methods fedper,fedhca2 --seeds 3`
    """
    max_jobs = _parse_jobs(jobs)
    experiment = lazy.experiment.Experiment.load(config, overrides or [])
    folder = out or comparison_folder(experiment.name)
    names = _method_names(methods or ["fedavg,fedhca2"])
    if not names:
        raise UserError("--methods", "expected at least one method, or 'all', got none")
    planned = lazy.comparison_runs.plan_runs(experiment, names, seeds, folder)
    _carry_out(planned, folder, max_jobs, mps, as_json, trivial=trivial)


@command(app, panel="Compare")
def sweep(
    config: options.ExperimentName,
    over: Annotated[
        list[str],
        Option(
            metavar="KEY=V1,V2,…",
            help="Setting to vary, and its values: method.c=0.2,0.4,0.6. copies=1,2,4 varies the clients per group. "
            "Repeatable: all combinations are run.",
        ),
    ],
    methods: Annotated[
        list[str] | None,
        options.Methods(
            help="Comma-separated further methods, each a curve; a method without the setting is a horizontal line.",
            show_default="none",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        Option(
            metavar="TASK",
            help="Task whose score to plot, such as semseg, or with its data set pascal:semseg.",
            show_default="Δm",
        ),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Seeds per value.")] = 1,
    out: Annotated[Path | None, options.Out(help="Folder for all runs.", show_default="runs/sweep-NAME-KEY")] = None,
    jobs: Jobs = "1",
    mps: Mps = False,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
) -> None:
    """Run an experiment for several values of a setting and plot Δm. Repeat the command to continue.

    Example: `fedhca2 sweep demo --over method.c=0.2,0.4 --seeds 3`
    """
    max_jobs = _parse_jobs(jobs)
    values = _swept_values(over)
    planned, curves = _variants(config, values, _method_names(methods or []), overrides or [])
    first = next(iter(planned.values()))
    measure = _measure(metric, first) if metric else None
    folder = out or comparison_folder("-".join([first.name, *values]), "sweep")
    row_of = {name: row for name, (row, _) in lazy.comparison_runs.row_folders(planned, folder).items()}

    def draw(runs: Sequence["RunFiles"], table: "Comparison") -> list[str]:
        """Write the figure of the values of one setting that have finished; returns its name."""
        label_of = {run.path.parent: label for label, same in lazy.variants.variants(runs).items() for run in same}
        labels = {
            method: {value: label_of[row_of[name]] for value, name in curve.items() if row_of[name] in label_of}
            for method, curve in curves.items()
        }
        finished = {method: by_value for method, by_value in labels.items() if by_value}
        if len(values) > 1 or not finished:
            return []
        svg = lazy.drawings.draw_sweep(next(iter(values)), finished, table, measure)
        write_whole(folder / lazy.drawings.SWEEP_FILE, svg.encode(), ORDINARY)
        return [lazy.drawings.SWEEP_FILE]

    _carry_out(lazy.comparison_runs.plan_sweep(planned, seeds, folder), folder, max_jobs, mps, as_json, draw)


def _method_names(methods: Sequence[str]) -> list[str]:
    """The methods of an option, which may be repeated."""
    listed = [name.strip() for name in ",".join(methods).split(",")]
    return [each for name in listed if name for each in (lazy.methods.METHODS if name == "all" else [name])]


def _measure(metric: str, experiment: "Experiment") -> tuple[str, str]:
    """The group of clients and the task that an option names; raises UserError unless it is exactly one."""
    tasks = {spec.name: spec.tasks for spec in experiment.specs}
    groups = lazy.comparison.group_names(tasks, {spec.name: spec.data for spec in experiment.specs})
    pairs = list(dict.fromkeys((groups[client], task) for client, own in tasks.items() for task in own))
    data, _, name = (part.strip() for part in metric.rpartition(":"))
    matches = [pair for pair in pairs if pair[1] == name and f"{pair[0]},".startswith(f"{data}," * bool(data))]
    if len(matches) != 1:
        names = "; ".join(f"{group}: {task}" for group, task in matches or pairs)
        raise UserError(f"--metric {metric:.200}", f"expected one of: {names}")
    return matches[0]


def _swept_values(over: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The swept settings, each with its values by name; raises UserError if one is not a setting with values."""
    swept: dict[str, dict[str, Any]] = {}
    for text in over:
        where, (key, equals, listed) = f"--over {text:.200}", text.partition("=")
        try:
            values = parse_yaml(f"[{listed}]") if equals and key else []
        except YamlError as error:
            raise UserError(where, f"the values are {error}") from None
        if not isinstance(values, list) or len(values) < 2:
            raise UserError(where, "expected KEY=V1,V2,… with two values or more, as in method.c=0.2,0.4")
        if key.partition(".")[0] in (*lazy.variants.FREE, "devices"):
            hint = "--seeds runs several" if key == "seed" else "it does not change any result"
            raise UserError(where, f"expected another setting than {key!r}: {hint}")
        if key in swept:
            raise UserError(where, f"expected all values of {key} in one --over, got it twice")
        swept[key] = {str(value) if isinstance(value, str) else json.dumps(value): value for value in values}
        if len(swept[key]) < len(values):
            raise UserError(where, "expected different values, got one of them twice")
    return swept


def _variants(
    config: str, swept: Mapping[str, Mapping[str, Any]], methods: Sequence[str], overrides: Sequence[str]
) -> tuple[dict[str, "Experiment"], dict[str, dict[str, str]]]:
    """The experiment for each combination of values and each method, by name, and its name by method and values.

    The experiment's own method comes first. Raises UserError if they cannot be compared.
    """
    plain = lazy.experiment.Experiment.load(config, list(overrides))
    own, planned, curves = plain.method_name, dict[str, "Experiment"](), dict[str, dict[str, str]]()
    for method in dict.fromkeys([own, *methods]):
        for chosen in product(*([(key, *pair) for pair in swept[key].items()] for key in swept)):
            steps = [step for step in chosen if method == own or _concerns(step[0], method, plain)]
            name = " ".join([*([method] if method != own else []), *(f"{key}={shown}" for key, shown, _ in steps)])
            if name not in planned:
                changes = [change for key, _, value in steps for change in _changes(key, value, method, plain)]
                loaded = lazy.experiment.Experiment.load(config, [*overrides, *changes])
                planned[name] = loaded if method == own else loaded.with_method(method)
            curves.setdefault(method, {})[" ".join(shown for _, shown, _ in chosen)] = name
    (first_name, first), *others = planned.items()
    for name, other in others:  # may have other numbers of the same kinds of clients
        renamed = len(other.kinds) == len(first.kinds) and other.kinds != first.kinds
        if renamed or set(other.kinds.values()) != set(first.kinds.values()):
            raise UserError(f"--over {name}", f"expected the clients and tasks of {first_name}, got others")
    return planned, curves


def _concerns(key: str, method: str, experiment: "Experiment") -> bool:
    """Whether a swept setting is one of another method too."""
    if not key.startswith("method."):
        return True
    other, name = experiment.with_method(method).resolved_method, key.removeprefix("method.")
    part, _, field = name.partition(".")
    parts = lazy.methods.components_of(other)
    return name in lazy.methods.settings_of(other) or (part in parts and field in type(parts[part]).model_fields)


def _changes(key: str, value: Any, method: str, experiment: "Experiment") -> list[str]:
    """A swept value as overrides: `copies` are those of every entry of `clients`."""
    if key == "copies":
        return [f"clients.{entry}.copies={json.dumps(value)}" for entry in range(len(experiment.clients))]
    if key.startswith("method.") and method != experiment.method_name:
        key = f"methods.{method}.{key.removeprefix('method.')}"
    return [f"{key}={json.dumps(value)}"]


def _carry_out(
    planned: Sequence["ComparisonRun"],
    folder: Path,
    max_jobs: int | None,
    mps: bool,
    as_json: bool,
    draw: Callable[[Sequence["RunFiles"], "Comparison"], list[str]] = lambda *_: [],
    *,
    trivial: bool = False,
) -> None:
    """Run what is not finished, then show the table of all; `draw` writes further files."""
    console = open_console(stderr=as_json)
    done = sum(run.finished for run in planned)
    console.print(f"{counted(len(planned), 'run')} in {folder}/, {done} already finished", highlight=False)
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(folder)
    try:
        faults = lazy.runs.run_planned(planned, max_jobs, console, mps=mps)
    finally:
        lock.release()
    runs = [lazy.reader.RunFiles.open(run.folder) for run in lazy.comparison_runs.complete_runs(planned)]
    table = lazy.layouts.write_comparison(runs, folder, trivial=trivial) if runs else None
    if table is not None:
        console.print(lazy.layouts.comparison_table(table))
        ranks = [lazy.drawings.RANKS_FILE] if (folder / lazy.drawings.RANKS_FILE).exists() else []
        written = ", ".join(["table.md", "table.csv", "table.tex", *ranks, *draw(runs, table)])
        console.print(f"{written} are in {folder}/", highlight=False, soft_wrap=True)
        draw_page(console, runs, folder)
    if as_json:
        failed = {str(run): why for run, why in faults.items()}
        print_json({"folder": str(folder), "table": table.table() if table is not None else [], "failed": failed})
    if faults:
        typer.echo(f"{len(faults)} of {counted(len(planned), 'run')} failed; repeat the command to retry", err=True)
        raise typer.Exit(1)


def _parse_jobs(jobs: str) -> int | None:
    """The most runs at a time, or None for one per GPU or core."""
    if jobs == "auto":
        return None
    if not jobs.isdecimal() or int(jobs) < 1:
        raise typer.BadParameter(f"expected a number from 1, or auto, got {jobs!r}", param_hint="--jobs")
    return int(jobs)


@command(app, panel="Compare")
def report(
    runs: Annotated[list[Path], options.RunFolder(help="Folder of a run or of a comparison; several to compare runs.")],
    out: Annotated[
        Path | None, options.Out(help="HTML file to write.", show_default="report.html in the first folder")
    ] = None,
    allow_code: options.AllowCode = None,
) -> None:
    """Write a self-contained HTML report."""
    folders = [folder for run in runs for folder in lazy.comparison_runs.find_runs(run) or [run]]
    files = [lazy.reader.RunFiles.open(folder) for folder in folders]
    typer.echo(lazy.write.write_page(files, out or runs[0] / PAGE))


@command(app, panel="Compare")
def leaderboard(
    folder: options.RunsFolder = Path("runs"),
    allow_code: options.AllowCode = None,
    as_json: options.Json = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV, a row for each experiment and method.")] = False,
) -> None:
    """Rank the methods of every experiment by Δm over seeds, with the worst client, time and bytes."""
    board, console = lazy.comparison.leaderboard(folder), open_console(highlight=False)
    if as_json:
        print_json(board)
    elif as_csv:
        typer.echo(board.to_csv(), nl=False)
    else:
        console.print(lazy.layouts.board_table(board) if board else f"No finished runs in {folder}")
