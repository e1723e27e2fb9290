"""`fedhca2 compare`, `sweep` and `report`: compare several runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import typer

from fedhca2.cli.app import open_console, print_json
from fedhca2.cli.run import draw_page
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import (
    ComparisonRun,
    complete_runs,
    find_runs,
    plan_runs,
    plan_sweep,
    sweep_rows,
)
from fedhca2.methods import METHODS, components_of, settings_of
from fedhca2.reports.comparison import Comparison, group_names
from fedhca2.reports.comparison import leaderboard as ranked
from fedhca2.reports.drawings import RANKS_FILE, SWEEP_FILE, draw_sweep
from fedhca2.reports.layouts import board_table, comparison_table, write_comparison
from fedhca2.reports.page.write import write_page
from fedhca2.reports.variants import FREE, variants
from fedhca2.run_folder.folder import PAGE, comparison_folder, lock_folder, sweep_folder
from fedhca2.run_folder.reader import RunFiles
from fedhca2.runs import run_planned
from fedhca2.strict_yaml import YamlError, parse_yaml
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import counted


def compare(
    config: str,
    methods: list[str] | None,
    seeds: int,
    out: Path | None,
    jobs: str,
    mps: bool,
    overrides: list[str] | None,
    trivial: bool,
    as_json: bool,
) -> None:
    """Compare methods on the same data, shards and initial values. Finished runs are not repeated."""
    max_jobs = _parse_jobs(jobs)
    experiment = Experiment.load(config, overrides or [])
    folder = out or comparison_folder(experiment.name)
    names = _method_names(methods or ["fedavg,fedhca2"])
    if not names:
        raise UserError("--methods", "expected at least one method, or 'all', got none")
    _carry_out(plan_runs(experiment, names, seeds, folder), folder, max_jobs, mps, as_json, trivial=trivial)


def sweep(
    config: str,
    over: list[str],
    methods: list[str] | None,
    metric: str | None,
    seeds: int,
    out: Path | None,
    jobs: str,
    mps: bool,
    overrides: list[str] | None,
    as_json: bool,
) -> None:
    """Run an experiment with several values of settings, and draw Δm over them. Finished runs are not repeated."""
    max_jobs = _parse_jobs(jobs)
    values = _swept_values(over)
    planned, curves = _variants(config, values, _method_names(methods or []), overrides or [])
    first = next(iter(planned.values()))
    measure = _measure(metric, first) if metric else None
    folder = out or sweep_folder(first.name, "-".join(values))
    row_of = sweep_rows(planned, folder)

    def draw(runs: Sequence[RunFiles], table: Comparison) -> list[str]:
        """Write the figure of the values of one setting that have finished; returns its name."""
        label_of = {run.path.parent: label for label, same in variants(runs).items() for run in same}
        labels = {
            method: {value: label_of[row_of[name]] for value, name in curve.items() if row_of[name] in label_of}
            for method, curve in curves.items()
        }
        finished = {method: by_value for method, by_value in labels.items() if by_value}
        if len(values) > 1 or not finished:
            return []
        svg = draw_sweep(next(iter(values)), finished, table, measure)
        write_whole(folder / SWEEP_FILE, svg.encode(), ORDINARY)
        return [SWEEP_FILE]

    _carry_out(plan_sweep(planned, seeds, folder), folder, max_jobs, mps, as_json, draw)


def _method_names(methods: Sequence[str]) -> list[str]:
    """The methods of an option, which may be repeated."""
    listed = ",".join(methods).split(",")
    return [every for name in listed for every in (METHODS if name.strip() == "all" else [name.strip()]) if every]


def _measure(metric: str, experiment: Experiment) -> tuple[str, str]:
    """The group of clients and the task that an option names; raises UserError unless it is exactly one."""
    tasks = {spec.name: spec.tasks for spec in experiment.specs}
    groups = group_names(tasks, {spec.name: spec.data for spec in experiment.specs})
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
        if key.partition(".")[0] in (*FREE, "devices"):
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
) -> tuple[dict[str, Experiment], dict[str, dict[str, str]]]:
    """The experiment for each combination of values and each method, by name, and its name by method and values.

    The experiment's own method comes first. Raises UserError if they cannot be compared.
    """
    plain = Experiment.load(config, list(overrides))
    own, planned, curves = plain.method_name, dict[str, Experiment](), dict[str, dict[str, str]]()
    for method in dict.fromkeys([own, *methods]):
        for chosen in product(*([(key, *pair) for pair in swept[key].items()] for key in swept)):
            steps = [step for step in chosen if method == own or _concerns(step[0], method, plain)]
            name = " ".join([*([method] if method != own else []), *(f"{key}={shown}" for key, shown, _ in steps)])
            if name not in planned:
                changes = [change for key, _, value in steps for change in _changes(key, value, method, plain)]
                loaded = Experiment.load(config, [*overrides, *changes])
                planned[name] = loaded if method == own else loaded.with_method(method)
            curves.setdefault(method, {})[" ".join(shown for _, shown, _ in chosen)] = name
    _check_kinds(planned)
    return planned, curves


def _check_kinds(planned: Mapping[str, Experiment]) -> None:
    """Raise UserError unless variants have the same clients, or other numbers of the same kinds of clients."""
    (first_name, first), *others = planned.items()
    for name, other in others:
        renamed = len(other.kinds) == len(first.kinds) and other.kinds != first.kinds
        if renamed or set(other.kinds.values()) != set(first.kinds.values()):
            raise UserError(f"--over {name}", f"expected the clients and tasks of {first_name}, got others")


def _concerns(key: str, method: str, experiment: Experiment) -> bool:
    """Whether a swept setting is one of another method too."""
    if not key.startswith("method."):
        return True
    other, name = experiment.with_method(method).resolved_method, key.removeprefix("method.")
    part, _, field = name.partition(".")
    parts = components_of(other)
    return name in settings_of(other) or (part in parts and field in type(parts[part]).model_fields)


def _changes(key: str, value: Any, method: str, experiment: Experiment) -> list[str]:
    """A swept value as overrides: `copies` are those of every entry of `clients`."""
    if key == "copies":
        return [f"clients.{entry}.copies={json.dumps(value)}" for entry in range(len(experiment.clients))]
    if key.startswith("method.") and method != experiment.method_name:
        key = f"methods.{method}.{key.removeprefix('method.')}"
    return [f"{key}={json.dumps(value)}"]


def _carry_out(
    planned: Sequence[ComparisonRun],
    folder: Path,
    max_jobs: int | None,
    mps: bool,
    as_json: bool,
    draw: Callable[[Sequence[RunFiles], Comparison], list[str]] = lambda *_: [],
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
        faults = run_planned(planned, max_jobs, console, mps=mps)
    finally:
        lock.release()
    runs = [RunFiles.open(run.folder) for run in complete_runs(planned)]
    table = write_comparison(runs, folder, trivial=trivial) if runs else None
    if table is not None:
        console.print(comparison_table(table))
        figures = [*([RANKS_FILE] if (folder / RANKS_FILE).exists() else []), *draw(runs, table)]
        written = ", ".join(["table.md", "table.csv", "table.tex", *figures])
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


def report(runs: list[Path], out: Path | None) -> None:
    """Write a report: one HTML file that needs no network."""
    files = [RunFiles.open(folder) for run in runs for folder in find_runs(run) or [run]]
    typer.echo(write_page(files, out or runs[0] / PAGE))


def leaderboard(folder: Path, as_json: bool, as_csv: bool) -> None:
    """Rank the methods of every experiment by Δm, from all finished runs in a folder."""
    board = ranked(folder)
    if as_json:
        print_json(board)
    elif as_csv:
        typer.echo(board.to_csv(), nl=False)
    else:
        open_console(highlight=False).print(board_table(board) if board else f"No finished runs in {folder}")
