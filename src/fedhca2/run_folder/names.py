"""What a run's folder holds, by name, and where it is by default."""

from datetime import datetime
from pathlib import Path

CONFIG = "config.yaml"  # makes a folder a run's
RESULT = "result.json"  # says that the run has come to its end
EVENTS = "metrics.jsonl"
PARTITION = "partition.json"
FLOWER = "flower.json"  # of a run over Flower: what sites keep their state by
EVALUATION = "evaluation.json"
BASELINE_FILES = BASELINE, BASELINE_METRICS = "baseline.json", "baseline-metrics.json"  # of a baseline from elsewhere
BASELINE_FOLDER = "baseline"  # of a run within the run
CHECKPOINTS, MODELS, SAMPLES = "checkpoints", "models", "samples"
LOCK = ".lock"


def default_folder(name: str) -> Path:
    """Where a new run of the experiment of this name is written."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def comparison_folder(name: str) -> Path:
    """Where the runs of a comparison are written."""
    return Path("runs") / f"compare-{name}"
