"""A run's folder: the names of its files, the default folders, and the lock of the process that works in it."""

import os
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fedhca2.errors import UserError

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


def comparison_folder(name: str, kind: str = "compare") -> Path:
    """The default folder of the runs of a comparison, or of a sweep, which is another kind."""
    return Path("runs") / f"{kind}-{name}"


def require_own_files(folder: Path) -> None:
    """Raise UserError unless a run's folder holds only files and folders: writing through a link changes another's."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                got = f"a link to {path.readlink()}" if path.is_symlink() else "something else"
                raise UserError(path, f"expected a file or a folder of the run, got {got}")


def lock_folder(folder: Path) -> FileLock:
    """Lock a folder until the lock is released; the system releases it if the process dies."""
    lock = FileLock(folder / LOCK, timeout=0.2)  # seconds: `in_use` holds a lock for a moment
    try:
        lock.acquire()
    except Timeout:
        raise UserError(folder, "in use by another fedhca2 process") from None
    return lock


def in_use(folder: Path) -> bool:
    """Whether a process works in this folder, or may: a lock that we cannot try tells nothing."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except (Timeout, OSError):
        return True
