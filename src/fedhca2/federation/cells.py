"""Methods × seeds on one experiment, each cell a run of its own that is never run twice."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedhca2.config import suggest
from fedhca2.experiment import ConfigError, Experiment
from fedhca2.federation.run import RunWatcher, resume, run
from fedhca2.methods import METHODS

LOCAL = "local"


@dataclass(frozen=True)
class Cell:
    """One method with one seed, and the folder of its run."""

    experiment: Experiment
    folder: Path
    baseline: Path | None

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.folder / "result.json").is_file()


def plan_cells(experiment: Experiment, methods: Sequence[str], seeds: int, out: Path) -> list[Cell]:
    """All cells, those of Local first: every other one is compared with Local at the same seed.

    Within a seed all methods have the same data, shards, initial values, shuffling and evaluation.
    """
    unknown = [name for name in methods if name not in METHODS and ":" not in name]
    if unknown:
        raise ConfigError([f"--methods: {name!r} is not a method. {suggest(name, METHODS)}" for name in unknown])
    cells = []
    for method in dict.fromkeys([LOCAL, *methods]):
        own = method == experiment.method_name
        for seed in range(experiment.seed, experiment.seed + seeds):
            chosen = experiment if own else experiment.with_method(method)
            chosen = chosen.parse({**chosen.to_dict(), "seed": seed, "baseline": False})
            baseline = None if method == LOCAL else cell_folder(out, LOCAL, seed)
            cells.append(Cell(chosen, cell_folder(out, method, seed), baseline))
    for cell in cells:
        _check_known(cell)
    return cells


def cell_folder(out: Path, method: str, seed: int) -> Path:
    """Where a cell's run lies.

    >>> cell_folder(Path("out"), "my/file.py:MINE", 1).as_posix()
    'out/my-file.py-MINE/seed-1'
    """
    return out / re.sub(r"[^A-Za-z0-9_.-]+", "-", method) / f"seed-{seed}"


def run_cells(cells: Sequence[Cell], watcher: RunWatcher) -> Iterator[Cell]:
    """Run what is not finished, going on where a run was interrupted; gives each cell when it is done."""
    for cell in cells:
        if not cell.finished:
            if (cell.folder / "config.yaml").is_file():
                resume(cell.folder, watcher)
            else:
                run(cell.experiment, cell.folder, watcher, cell.baseline)
        yield cell


def _check_known(cell: Cell) -> None:
    """A folder that holds a run already should hold this one."""
    path = cell.folder / "config.yaml"
    if not path.is_file():
        return
    found, wanted = yaml.safe_load(path.read_text("utf-8")), cell.experiment.to_dict()
    other = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    if other:
        raise ConfigError(
            [f"{cell.folder}: should be a run of these settings, found one with other {', '.join(other)}"]
        )
