"""Runs side by side, each in a process of its own with its share of the cores."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

from fedhca2.cores import usable_cores
from fedhca2.federation.comparison_runs import ComparisonRun, ComparisonStopped
from fedhca2.federation.stopping import stop_between_rounds
from fedhca2.run_folder.reader import RunFiles

PAUSE = 0.2  # seconds between two looks at the processes
PROGRAM = "fedhca2.federation.comparison_process"


@dataclass(frozen=True)
class RunProcess:
    """A run whose process is running, on these cores."""

    run: ComparisonRun
    cores: Sequence[int]
    process: "subprocess.Popen[str]"
    began: float

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return monotonic() - self.began

    @property
    def last_line(self) -> str:
        """What its process said last: how far it has come, or what is wrong."""
        lines = log_file(self.run).read_text("utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @property
    def fault(self) -> str:
        """Why its process ended before the run did; nothing if all is well."""
        code = self.process.returncode
        if self.run.finished:
            return ""
        told = f"killed by {signal.Signals(-code).name}" if code < 0 else self.last_line.removeprefix("error: ")
        return told or f"exit code {code}"


class ParallelWatcher(Protocol):
    """Whoever wants to know how runs go."""

    def ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        """A run is finished, or has a fault."""

    def looked(self, running: Sequence[RunProcess], waiting: int) -> None:
        """How it stands, a few times a second."""


def run_in_parallel(runs: Sequence[ComparisonRun], count: int, watcher: ParallelWatcher) -> dict[Path, str]:
    """Run what is not finished, `count` runs at a time; returns what is wrong with those that failed, by folder.

    A run waits for the Local run that it is compared with. When one fails the others go on all the same.
    """
    state = _ParallelRuns(runs, count, watcher)
    with stop_between_rounds() as stopping:
        try:
            while state.waiting or state.running:
                state.end()
                if not stopping.signal:
                    state.start()
                elif not state.stopped:
                    state.stop()
                watcher.looked(state.running, len(state.waiting))
                sleep(PAUSE)
        finally:
            for one in state.running:
                one.process.kill()
    if stopping.signal:
        raise ComparisonStopped(stopping.signal)
    return state.faults


class _ParallelRuns:
    """Which runs wait, run and have failed."""

    def __init__(self, runs: Sequence[ComparisonRun], count: int, watcher: ParallelWatcher) -> None:
        self.waiting = [run for run in runs if not run.finished]
        self.watcher = watcher
        self.free = core_shares(usable_cores(), count)
        self.running: list[RunProcess] = []
        self.faults: dict[Path, str] = {}
        self.stopped = False

    def end(self) -> None:
        """Take note of processes that have ended, and of runs that wait for one that failed."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            self.free.append(one.cores)
            if one.run.finished or not self.stopped:
                self._ended(one.run, one.seconds, one.fault)
        for run in [run for run in self.waiting if run.baseline in self.faults]:
            self.waiting.remove(run)
            self._ended(run, 0.0, f"the Local run in {run.baseline} failed")

    def start(self) -> None:
        """Start runs that are ready while there are cores for them."""
        for run in [run for run in self.waiting if _is_ready(run)][: len(self.free)]:
            self.waiting.remove(run)
            self.running.append(start(run, self.free.pop(0)))

    def stop(self) -> None:
        """Ask every process to end its round, and start no more."""
        self.waiting.clear()
        self.stopped = True
        for one in self.running:
            one.process.terminate()

    def _ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        if fault:
            self.faults[run.folder] = fault
        self.watcher.ended(run, seconds, fault)


def _is_ready(run: ComparisonRun) -> bool:
    return run.baseline is None or RunFiles(run.baseline).finished


def log_file(run: ComparisonRun) -> Path:
    """What a run's process says: a line per round, and errors."""
    return run.folder.with_name(f"{run.folder.name}.log")


def start(run: ComparisonRun, cores: Sequence[int]) -> RunProcess:
    """Start a run's process on these cores."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    with log_file(run).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM],
            env={**os.environ, "OMP_NUM_THREADS": str(len(cores))},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which asks the others to end
        )
    assert process.stdin is not None
    order = {
        "experiment": run.experiment.to_dict(),
        "folder": str(run.folder),
        "baseline": str(run.baseline) if run.baseline else None,
        "cores": list(cores),
    }
    try:
        process.stdin.write(json.dumps(order) + "\n")  # and left open: the process ends when this one does
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it ended already, and its log says why
    return RunProcess(run, cores, process, monotonic())


def core_shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Cores for so many processes, as evenly as can be; with more processes than cores some share one.

    >>> core_shares([0, 1, 2, 3, 4], 2), core_shares([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    if count > len(cores):
        return [[cores[number % len(cores)]] for number in range(count)]
    edges = [number * len(cores) // count for number in range(count + 1)]
    return [cores[first:last] for first, last in pairwise(edges)]
