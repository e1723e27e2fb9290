"""The runs in a folder, and the state of each."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedhca2.errors import UserError
from fedhca2.run_folder.folder import BASELINE_FOLDER, CONFIG, in_use
from fedhca2.run_folder.reader import RunFiles

State = Literal["running", "interrupted", "finished", "failed", "unreadable"]


@dataclass(frozen=True)
class ListedRun:
    """What a list says about a run; unknown values are None."""

    folder: Path
    state: State
    name: str | None = None
    method: str | None = None
    seed: int | None = None
    round: int | None = None
    rounds: int | None = None
    delta_m: float | None = None
    started: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return asdict(self) | {"folder": str(self.folder)}


def list_runs(folder: Path) -> list[ListedRun]:
    """All runs in a folder, the oldest first; raises UserError if there is no such folder."""
    if not folder.is_dir():
        raise UserError(folder, f"expected a folder of runs, got {'a file' if folder.exists() else 'nothing'}")
    return sorted(map(describe_run, _folders(folder)), key=lambda run: (run.started or "", run.folder))


def describe_run(folder: Path) -> ListedRun:
    """Describe one run; one that cannot be read is listed as such."""
    run = RunFiles(folder)
    try:
        if run.finished:
            state: State = "failed" if run.everyone_failed else "finished"
        else:
            state = "running" if in_use(folder) else "interrupted"
        result = run.recorded_result
        begun = datetime.fromtimestamp(run.config_file.stat().st_mtime, UTC).isoformat(timespec="seconds")
        return ListedRun(
            folder,
            state,
            name=run.config.get("name"),
            method=run.method,
            seed=run.config.get("seed"),
            round=max((event["round"] + 1 for event in run.of("round")), default=0),
            rounds=run.rounds,
            delta_m=result.delta_m if result else None,
            started=result.origin["started"] if result and result.origin else begun,
        )
    except (OSError, UserError):  # damaged, or not ours to read; the list goes on
        return ListedRun(folder, "unreadable")


def _folders(folder: Path) -> Iterator[Path]:
    """The folders of runs, without those of the baselines within them; what we may not read is left out."""
    for parent, below, _ in os.walk(folder):
        path = Path(parent)
        if (path / CONFIG).is_file():
            yield path
        if (path / CONFIG).is_file() or len(path.relative_to(folder).parts) == 6:
            below.clear()
        below[:] = [name for name in below if name != BASELINE_FOLDER]
