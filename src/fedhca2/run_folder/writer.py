"""Writing a run's folder, in files that any program can read, and what may differ between a run and its baseline."""

import shlex
import shutil
from collections.abc import Iterable, Mapping, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from fedhca2.clients.state_file import tensor_file
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.imports import is_import_path, remember_code
from fedhca2.run_folder import folder
from fedhca2.run_folder.event_log import START, EventLog
from fedhca2.run_folder.files import Array, to_json, write_arrays
from fedhca2.run_folder.folder import lock_folder, require_own_files
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Checkpoint, Checkpoints, Progress, SaveClients
from fedhca2.run_folder.result import Scores, both_gains
from fedhca2.run_folder.schema import facts_of
from fedhca2.whole_files import ORDINARY, is_leftover, private_folder, write_whole

# Settings in which a run and its baseline may differ. Local sends nothing, so guard and privacy do not affect it.
FREE = {"name", "title", "label", "belongs_to", "method", "methods", "baseline", "evaluate_every", "diagnostics"}
FREE |= {"checkpoints", "guard", "privacy", "devices"}


class RunFolder:
    """The only writer of a run's files.

    Its steps: `new` or `open` reads the folder and changes nothing; `rewind` takes the folder back to the point at
    which the run continues; `commit` saves a finished round; `finish` marks the run as finished. Every check comes
    before `rewind`, so a refused run leaves its folder unchanged.
    """

    def __init__(self, path: Path, early: Iterable[str], lock: FileLock | None, checkpoint: Checkpoint | None) -> None:
        self.path, self.checkpoint = path, checkpoint
        self._early, self._lock = early, lock
        self._position = checkpoint.notes if checkpoint else START
        self._checkpoints = Checkpoints(path / folder.CHECKPOINTS)
        self._log: EventLog | None = None
        self._config: Mapping[str, Any] = {}
        self._keep = 1

    @classmethod
    def new(cls, path: Path, early: Iterable[str] = ()) -> "RunFolder":
        """The folder of a new run, which should be new or empty.

        It may contain `early` files, which are written before the config, of a run that was killed at that point.
        """
        check_fresh(path, early)
        return cls(path, early, None, None)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open and lock the folder of an existing run; raises UserError if the run cannot continue from it."""
        require_own_files(path)
        lock = lock_folder(path)
        with ExitStack() as stack:
            stack.callback(lock.release)
            run = cls(path, (), lock, Checkpoints(path / folder.CHECKPOINTS).latest())
            events, least = path / folder.EVENTS, run._position["events"]
            if (size := events.stat().st_size if events.exists() else 0) < least:
                raise UserError(events, f"expected at least {least} bytes, got {size}")
            stack.pop_all()  # stays locked
        return run

    def rewind(self, experiment: Experiment, other_files: Mapping[str, Any] | None = None) -> None:
        """Drop what came after the last checkpoint and continue with these settings. From here on files change.

        `other_files` are plain data by file name. Rewinding a second time does nothing.
        """
        if self._log is not None:
            return
        begun = self._lock is not None
        if not begun:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
            check_fresh(self.path, self._early)
        remember_code(experiment.own_code)
        for left in [path for path in self.path.rglob(".*.new") if path.is_file()]:  # by a killed process
            left.unlink(missing_ok=True)
        shutil.rmtree(self.path / folder.CHECKPOINTS / ".rows", ignore_errors=True)  # of versions up to 0.3
        self._config, self._keep = experiment.to_dict(), experiment.checkpoints.keep
        (self.path / folder.RESULT).unlink(missing_ok=True)  # first, because it marks the run as finished
        config = {folder.CONFIG: experiment.to_yaml()}
        others = {name: _as_json(values) for name, values in (other_files or {}).items()}
        # A config marks a folder as a run's, so it is written last. If one exists already, the other files follow from
        # it.
        for name, text in (config | others if begun else others | config).items():
            self._write(name, text)
        tasks = experiment.task_set
        own = {name: facts_of(tasks[name]) for name, task in experiment.tasks.items() if is_import_path(task.kind)}
        if own:
            self._write(folder.TASK_FACTS, _as_json(own))
        done = self.checkpoint.progress.state.round if self.checkpoint else 0
        self._log = EventLog(self.path, self._position, done)

    @property
    def events(self) -> EventLog:
        """The log of events, in a folder that was rewound."""
        assert self._log is not None
        return self._log

    @property
    def states(self) -> Path:
        """A folder for the states of clients that wait for their turn. Only checkpoints outlast a run."""
        return self.path / folder.CHECKPOINTS / ".states"

    def commit(self, progress: Progress, save_clients: SaveClients, notes: Mapping[str, Any]) -> None:
        """Save the state of the run after a round, with notes; earlier checkpoints are removed only after that."""
        self._checkpoints.save(progress, save_clients, self._config, {**self.events.position(), **notes})
        self._checkpoints.prune(self._keep)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result as the last file: it marks the run as finished."""
        self.events.position()
        self._write(folder.RESULT, _as_json(result))
        self._checkpoints.prune(1)

    def close(self) -> None:
        """Release the folder."""
        if self._log is not None:
            self._log.close()
            shutil.rmtree(self.states, ignore_errors=True)  # once more: a full disk may have prevented it
        if self._lock is not None:
            self._lock.release()

    def _write(self, name: str, text: str) -> None:
        """Write a file that everyone may read, unless it already has this content."""
        path, content = self.path / name, text.encode()
        if not path.is_file() or path.read_bytes() != content:
            write_whole(path, content, ORDINARY)

    def save_partition(self, partition: Mapping[str, Any]) -> None:
        """Save which images each client has, if that is only known at the end."""
        self._write(folder.PARTITION, _as_json(partition))

    def save_model(self, client: str, model: torch.nn.Module) -> None:
        """Save a client's trained model."""
        path = RunFiles(self.path).model_file(client)
        private_folder(path.parent)
        write_whole(path, tensor_file(model.state_dict()))

    def save_samples(self, client: str, arrays: Mapping[str, Array]) -> None:
        """Save a few of a client's images with labels and predictions."""
        path = RunFiles(self.path).samples_file(client)
        private_folder(path.parent)
        write_arrays(path, arrays)


def check_fresh(path: Path, early: Iterable[str] = ()) -> None:
    """Raise UserError if there are files other than those of a run killed before it wrote its config.

    :param early: names of the files that such a run may have written.
    """
    if not path.exists():
        return
    require_own_files(path)
    whole = {folder.LOCK, *early}
    if any(each.name not in whole and not is_leftover(each, {*whole, folder.CONFIG}) for each in path.iterdir()):
        command = shlex.join(["fedhca2", "resume", str(path)])
        hint = f"; `{command}` continues its run" if RunFiles(path).begun else ""
        raise UserError(path, f"expected a new or empty folder, got files in it{hint}")


def _as_json(values: Any) -> str:
    return to_json(values, indent=2, ensure_ascii=False) + "\n"


def write_evaluation(run: Path, images: str, client: str | None, values: Mapping[str, Any]) -> Path:
    """Save the scores of a run's models that were evaluated again on these images, of all clients or of one."""
    path = run / "-".join([folder.EVALUATION, images, *([client] if client else [])])
    path = path.with_name(f"{path.name}.json")
    write_whole(path, _as_json(values).encode(), ORDINARY)
    return path


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
    return {folder.BASELINE: scores, folder.BASELINE_METRICS: [*source("metric"), *source("loss")]}


def join_baseline(run: Path, baseline: Path) -> None:
    """Compare a finished run with a finished Local run: store its scores, and the gain over them in the result."""
    require_own_files(run)
    files = RunFiles.open(run)
    experiment, result = files.experiment(), files.outcome
    scores = read_baseline(baseline, experiment)
    written = baseline_files(baseline, scores)
    gains = both_gains(result.clients, scores, experiment.task_set, experiment.kinds)
    written[folder.RESULT] = result.model_dump(exclude_unset=True) | {"baseline": scores, **gains}
    lock = lock_folder(run)
    try:
        for name, values in written.items():
            write_whole(run / name, _as_json(values).encode(), ORDINARY)
    finally:
        lock.release()
