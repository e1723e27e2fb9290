"""Parallel runs, each in its own process with its share of the cores."""

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

PAUSE = 0.2  # seconds between checks of the processes
PROGRAM = "fedhca2.federation.comparison_process"


@dataclass(frozen=True)
class RunProcess:
    """A run with an active process, on these cores."""

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
        """The last line of its process's output: its progress, or an error."""
        lines = log_file(self.run).read_text("utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @property
    def fault(self) -> str:
        """Why its process ended before the run did; empty if it is fine."""
        code = self.process.returncode
        if self.run.finished:
            return ""
        told = f"killed by {signal.Signals(-code).name}" if code < 0 else self.last_line.removeprefix("error: ")
        return told or f"exit code {code}"


class ParallelWatcher(Protocol):
    """Follows parallel runs."""

    def ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        """A run has finished or failed."""

    def looked(self, running: Sequence[RunProcess], waiting: int) -> None:
        """The current state, a few times a second."""


def run_in_parallel(runs: Sequence[ComparisonRun], count: int, watcher: ParallelWatcher) -> dict[Path, str]:
    """Run what is not finished, `count` runs at a time; returns the faults of failed runs, by folder.

    A run waits for the Local run that it is compared with. If a run fails, the others continue.
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
    """The waiting, active and failed runs."""

    def __init__(self, runs: Sequence[ComparisonRun], count: int, watcher: ParallelWatcher) -> None:
        self.waiting = [run for run in runs if not run.finished]
        self.watcher = watcher
        self.free = core_shares(usable_cores(), count)
        self.running: list[RunProcess] = []
        self.faults: dict[Path, str] = {}
        self.stopped = False

    def end(self) -> None:
        """Handle processes that have ended, and runs that wait for a failed one."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            self.free.append(one.cores)
            if one.run.finished or not self.stopped:
                self._ended(one.run, one.seconds, one.fault)
        for run in [run for run in self.waiting if run.baseline in self.faults]:
            self.waiting.remove(run)
            self._ended(run, 0.0, f"the Local run in {run.baseline} failed")

    def start(self) -> None:
        """Start runs that are ready while there are free cores."""
        for run in [run for run in self.waiting if _is_ready(run)][: len(self.free)]:
            self.waiting.remove(run)
            self.running.append(start(run, self.free.pop(0)))

    def stop(self) -> None:
        """Ask every process to stop after its round, and start no more."""
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
    """The log of a run's process: a line per round, and errors."""
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
            start_new_session=True,  # Ctrl-C only reaches this process, which asks the others to stop
        )
    assert process.stdin is not None
    order = {
        "experiment": run.experiment.to_dict(),
        "folder": str(run.folder),
        "baseline": str(run.baseline) if run.baseline else None,
        "cores": list(cores),
    }
    try:
        process.stdin.write(json.dumps(order) + "\n")  # left open: the process ends when this one does
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has already ended, and its log says why
    return RunProcess(run, cores, process, monotonic())


def core_shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Divide the cores among `count` processes as evenly as possible; with more processes than cores, some share one.

    >>> core_shares([0, 1, 2, 3, 4], 2), core_shares([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    if count > len(cores):
        return [[cores[number % len(cores)]] for number in range(count)]
    edges = [number * len(cores) // count for number in range(count + 1)]
    return [cores[first:last] for first, last in pairwise(edges)]
