"""A run's folder: files that any program can read."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.run_folder.checkpoints import Checkpoint, Checkpoints, KeptClients
from fedhca2.run_folder.event_log import START, EventLog
from fedhca2.run_folder.names import CHECKPOINTS, CONFIG, EVALUATION, EVENTS, LOCK, RESULT
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress
from fedhca2.run_folder.strict_json import to_json
from fedhca2.whole_files import ORDINARY, private_folder, write_whole


class RunFolder:
    """The one who writes a run's files.

    Its steps: `new` or `open` looks at what is there and changes nothing; `rewind` takes the folder to where the run
    goes on; `commit` keeps a round that is over; `finish` says that everything is there. Whatever stands in the way of
    a run is found before `rewind`, so that a run which is refused leaves its folder as it was.
    """

    def __init__(self, path: Path, early: Iterable[str], lock: FileLock | None, checkpoint: Checkpoint | None) -> None:
        self.path, self.checkpoint = path, checkpoint
        self._early, self._lock = early, lock
        self._checkpoints = Checkpoints(path / CHECKPOINTS)
        self._log: EventLog | None = None
        self._config: Mapping[str, Any] = {}
        self._keep = 1

    @classmethod
    def new(cls, path: Path, early: Iterable[str] = ()) -> "RunFolder":
        """The folder of a run that is to begin, which should be new or empty.

        It may have `early` files, those that are written before a config, of a run that was killed there.
        """
        folder = cls(path, early, None, None)
        folder._require_fresh()
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The folder of a run that was begun, for this process alone; UserError if it cannot go on from there."""
        lock = lock_folder(path)
        try:
            folder = cls(path, (), lock, Checkpoints(path / CHECKPOINTS).latest())
            folder._require_events()
        except BaseException:
            lock.release()
            raise
        return folder

    @classmethod
    def at(cls, path: Path) -> "RunFolder":
        """The folder of a run that was begun or is to begin."""
        return cls.open(path) if RunFiles(path).begun else cls.new(path)

    def rewind(self, experiment: Experiment, beside: Mapping[str, Any] | None = None) -> None:
        """Forget what came after the last checkpoint, and go on with these settings: from here on files change.

        `beside` is plain data by the name of its file. A folder that was rewound already stays as it is.
        """
        if self._log is not None:
            return
        begun = self._lock is not None
        if not begun:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
            self._require_fresh()
        self._config, self._keep = experiment.to_dict(), experiment.checkpoints.keep
        (self.path / RESULT).unlink(missing_ok=True)  # the first: it says that the run has come to its end
        config = {CONFIG: experiment.to_yaml()}
        others = {name: _as_json(values) for name, values in (beside or {}).items()}
        # A config makes a folder a run's, so it comes last; where there is one already, the others follow from it.
        for name, text in (config | others if begun else others | config).items():
            self._write(name, text)
        self._log = EventLog(self.path / EVENTS, self._position)

    @property
    def events(self) -> EventLog:
        """The record of what happens, of a folder that was rewound."""
        assert self._log is not None
        return self._log

    @property
    def _position(self) -> Mapping[str, Any]:
        return self.checkpoint.notes if self.checkpoint else START

    def commit(self, progress: Progress, clients: KeptClients, seconds: float) -> None:
        """Keep where the run stands after a round; earlier checkpoints go only after that."""
        self._checkpoints.save(progress, clients, self._config, {**self.events.position(), "seconds": seconds})
        self._checkpoints.prune(self._keep)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, last of all: a folder that has one belongs to a run that came to its end."""
        self.events.position()
        self._write(RESULT, _as_json(result))
        self._checkpoints.prune(1)

    def _require_fresh(self) -> None:
        """FileExistsError if there are files but those of a run that was killed before its config was there."""
        if not self.path.exists():
            return
        early = {*self._early, *(f".{name}.new" for name in (*self._early, CONFIG))}
        if not {entry.name for entry in self.path.iterdir()} <= {LOCK, *early}:
            raise FileExistsError(f"{self.path}: should be a new or empty folder, found files in it")

    def _require_events(self) -> None:
        path, wanted = self.path / EVENTS, self._position["events"]
        found = path.stat().st_size if path.exists() else 0
        if found < wanted:
            raise UserError([f"{path}: should have {wanted} bytes or more, found {found}"])

    def close(self) -> None:
        """Let go of the folder."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            self._lock.release()

    def _write(self, name: str, text: str) -> None:
        """Write one of the files that anybody may read, unless it is there just so."""
        path, content = self.path / name, text.encode()
        if not path.is_file() or path.read_bytes() != content:
            write_whole(path, content, ORDINARY)

    def save_model(self, client: str, model: torch.nn.Module) -> None:
        """Keep a client's trained model."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        _write_private(RunFiles(self.path).model_file(client), save(tensors))

    def save_samples(self, client: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Keep a few images of a client with labels and predictions."""
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        _write_private(RunFiles(self.path).samples_file(client), packed.getvalue())


def _as_json(values: Any) -> str:
    return to_json(values, indent=2, ensure_ascii=False) + "\n"


def lock_folder(folder: Path) -> FileLock:
    """Take a folder until the lock is released; the system lets go when a process dies."""
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError([f"{folder}: another process is working on this run"]) from None
    return lock


def write_evaluation(run: Path, values: Mapping[str, Any]) -> Path:
    """Keep what a run's models came to when they were evaluated once more."""
    path = run / EVALUATION
    write_whole(path, _as_json(values).encode(), ORDINARY)
    return path


def keep_model(run: Path, client: str, content: bytes) -> None:
    """Keep a client's trained model that comes as a file, from its site."""
    _write_private(RunFiles(run).model_file(client), content)


def _write_private(path: Path, content: bytes) -> None:
    private_folder(path.parent)
    write_whole(path, content)
