"""The runs of a comparison: methods × seeds of one experiment. Finished runs are not repeated."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.run import run_or_resume
from fedhca2.federation.stopping import Interrupted
from fedhca2.imports import allow_code
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher
from fedhca2.run_folder.writer import FREE, check_same, join_baseline

LOCAL = "local"


@dataclass(frozen=True)
class ComparisonRun:
    """One method with one seed, and the folder of its run."""

    experiment: Experiment
    folder: Path
    baseline: Path | None

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return RunFiles(self.folder).finished

    @property
    def row(self) -> Path:
        """The folder of its row in the table: the runs of all seeds."""
        return self.folder.parent

    @property
    def name(self) -> str:
        """The run's name in output."""
        return f"{self.row.name}, seed {self.experiment.seed}"


class ComparisonStopped(Interrupted):
    """A comparison stopped on request, after the active runs saved their checkpoints."""

    def __init__(self, signal: int) -> None:
        Exception.__init__(self, "stopped with every run saved; repeat the command to continue")
        self.signal = signal


def plan_runs(experiment: Experiment, methods: Sequence[str], seeds: int, out: Path) -> list[ComparisonRun]:
    """All runs, Local first: every other run is compared with Local at the same seed, once both have finished.

    With the same seed, all methods have the same data, shards, initial values, shuffling and evaluation. Only parts
    that a method freezes (FedBABU's decoders and heads) start differently: the same for all clients of a task.
    """
    one = experiment.resolve()
    names = dict.fromkeys([LOCAL, *methods])
    return plan_sweep(
        {name: one if name == one.method_name else one.with_method(name) for name in names}, seeds, out, "--methods"
    )


def plan_sweep(
    variants: Mapping[str, Experiment], seeds: int, out: Path, option: str = "--over"
) -> list[ComparisonRun]:
    """All runs of variants of an experiment by name, each with the Local run of its settings and seed.

    Variants that differ only in settings that do not concern Local share one. `option` is where their names come from.
    """
    if RunFiles(out).begun:
        raise UserError(out, "expected a new folder or that of a comparison, got a run in it")
    first = next(iter(variants.values())).resolve()
    rows = row_folders(variants, out)
    runs = dict[Path, ComparisonRun]()
    for name, seed in [(name, each.seed + i) for name, each in variants.items() for i in range(seeds)]:
        experiment = variants[name].resolve(first).replace(seed=seed, baseline=False)
        folder, baseline = (row / f"seed-{seed}" for row in rows[name])
        if folder != baseline:
            if experiment.method_name != LOCAL:
                runs.setdefault(baseline, ComparisonRun(experiment.with_method(LOCAL), baseline, None))
            if folder in runs:
                raise UserError(option, f"expected names that differ in letters or digits, got {name!r} twice")
        compared = None if experiment.method_name == LOCAL else baseline
        runs.setdefault(folder, ComparisonRun(experiment, folder, compared))
    for run in runs.values():
        allow_code(run.experiment.own_code)  # which the user has just named
        if (files := RunFiles(run.folder)).begun:
            check_same(files, run.experiment)
    return sorted(runs.values(), key=lambda run: run.baseline is not None)


def row_folders(variants: Mapping[str, Experiment], out: Path) -> dict[str, tuple[Path, Path]]:
    """The folder of every variant's row, and of the Local row that it is compared with; Local's own is that row."""
    settings = {name: variant.to_dict() for name, variant in variants.items()}
    local = {name: repr({key: each[key] for key in each if key not in FREE}) for name, each in settings.items()}
    first_names = {key: name for name, key in reversed(local.items())}
    shared = any(variant.method_name != LOCAL for variant in variants.values())
    rows = {}
    for name, variant in variants.items():
        alone = LOCAL if len(first_names) == 1 else f"{LOCAL} {first_names[local[name]]}"
        own = alone if shared and variant.method_name == LOCAL else name
        rows[name] = run_folder_of(out, own, 0).parent, run_folder_of(out, alone, 0).parent
    return rows


def run_folder_of(out: Path, method: str, seed: int) -> Path:
    """The folder of a run.

    >>> run_folder_of(Path("out"), "my/file.py:MINE", 1).as_posix()
    'out/my-file.py-MINE/seed-1'
    """
    return out / re.sub(r"[^A-Za-z0-9_.-]+", "-", method) / f"seed-{seed}"


def run_all(runs: Sequence[ComparisonRun], watcher: Watcher) -> Iterator[ComparisonRun]:
    """Run what is not finished, or continue it, one after the other; yields each run when it is done."""
    for run in runs:
        try:
            if not run.finished:
                run_or_resume(run.experiment, run.folder, watcher=watcher)
        except Interrupted as interrupted:
            raise ComparisonStopped(interrupted.signal) from None
        join_baselines(runs)
        yield run


def join_baselines(runs: Sequence[ComparisonRun]) -> None:
    """Compare every finished run with Local, if that has finished too: no training depends on it."""
    for run in runs:
        done = run.baseline and run.finished and RunFiles(run.baseline).finished
        if run.baseline and done and RunFiles(run.folder).outcome.baseline is None:
            join_baseline(run.folder, run.baseline)


def complete_runs(runs: Sequence[ComparisonRun]) -> list[ComparisonRun]:
    """The runs of rows that have finished with every seed, so that their means are comparable."""
    unfinished = {run.row for run in runs if not run.finished}
    return [run for run in runs if run.row not in unfinished]


def find_runs(out: Path) -> list[Path]:
    """The folders of a comparison's runs, Local first; empty if the folder holds no comparison."""
    folders = sorted(path for path in out.glob("*/seed-*") if RunFiles(path).begun)
    return sorted(folders, key=lambda folder: folder.parent.name != LOCAL)
