"""The names of the files in a run's folder, and the default folders."""

from datetime import datetime
from pathlib import Path

CONFIG = "config.yaml"  # marks a folder as a run's
RESULT = "result.json"  # marks the run as finished
EVENTS = "metrics.jsonl"
PARTITION = "partition.json"
TASK_FACTS = "tasks.json"  # what a run records of its users' own tasks
FLOWER = "flower.json"  # of a run over Flower: the name under which sites keep their state
TRACKING = "tracking.json"  # the run's id in trackers
PAGE = "report.html"
EVALUATION = "evaluation"
BASELINE_FILES = BASELINE, BASELINE_METRICS = "baseline.json", "baseline-metrics.json"  # of a baseline from another run
BASELINE_FOLDER = "baseline"  # of a baseline trained within the run
CHECKPOINTS, MODELS, SAMPLES, MATRICES = "checkpoints", "models", "samples", "matrices"
MATRICES_FILE = r"round-(\d{6,})-\d+\.npz"
LOCK = ".lock"


def default_folder(name: str) -> Path:
    """The default folder of a new run of this experiment."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def sweep_folder(name: str, setting: str) -> Path:
    """The default folder of a sweep's runs."""
    return Path("runs") / f"sweep-{name}-{setting}"


def comparison_folder(name: str) -> Path:
    """The default folder of a comparison's runs."""
    return Path("runs") / f"compare-{name}"
