"""The Local scores that a run is compared with, from another run or from its own baseline, and what may differ."""

from collections.abc import Set
from pathlib import Path
from typing import Any

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.run_folder.folder import BASELINE, BASELINE_METRICS
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Scores

# Settings in which a run and its baseline may differ. Local sends nothing, so guard and privacy do not affect it.
FREE = {"name", "title", "label", "belongs_to", "method", "methods", "baseline", "evaluate_every", "diagnostics"}
FREE |= {"checkpoints", "guard", "privacy", "devices"}


def read_baseline(run: Path, experiment: Experiment) -> Scores:
    """Read the Local scores of a finished run with the same data, clients, seed and rounds."""
    try:
        files = RunFiles.open(run)
        result, other = files.outcome, other_settings(files, experiment, FREE)
    except (OSError, UserError) as error:
        raise UserError(f"--baseline {run}", f"not a finished run: {error}") from None
    if other:
        fault = f"expected the same settings as this run, got different {', '.join(other)}"
        raise UserError(f"--baseline {run}", fault)
    scores = result.clients if result.method == "local" else result.baseline
    if scores is None:
        raise UserError(f"--baseline {run}", f"expected a run of 'local', got {result.method!r} without a baseline")
    return scores


def other_settings(files: RunFiles, experiment: Experiment, free: Set[str]) -> list[str]:
    """The settings, apart from the free ones, in which a run differs from this experiment."""
    recorded, current = files.config, experiment.to_dict()
    return [key for key in sorted({*recorded, *current} - free) if recorded.get(key) != current.get(key)]


def check_same(files: RunFiles, experiment: Experiment) -> None:
    """Raise UserError unless the run in a folder is of this experiment."""
    if other := other_settings(files, experiment, {"devices", "methods"}):
        raise UserError(files.path, f"expected a run with these settings, got different {', '.join(other)}")


def baseline_files(run: Path, scores: Scores) -> dict[str, Any]:
    """What a run stores of a baseline from another run: its scores, and all scores and losses for the curves."""
    files = RunFiles(run)
    source = files.of if files.method == "local" else files.baseline_events
    return {BASELINE: scores, BASELINE_METRICS: [*source("metric"), *source("loss")]}


def finished_scores(run: Path, experiment: Experiment) -> Scores | None:
    """The scores of a finished run of exactly this experiment, or None."""
    files = RunFiles(run)
    if not files.begun or files.result is None or files.config_text != experiment.to_yaml():
        return None
    return files.result.clients
