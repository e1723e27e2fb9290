"""Cells side by side, each in a process of its own with its share of the cores."""

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
from fedhca2.federation.cells import Cell, ComparisonStopped
from fedhca2.federation.stopping import stop_between_rounds
from fedhca2.run_folder.reader import RunFiles

PAUSE = 0.2  # seconds between two looks at the processes
PROGRAM = "fedhca2.federation.cell_process"


@dataclass(frozen=True)
class Job:
    """A cell whose process is running, on these cores."""

    cell: Cell
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
        lines = log_file(self.cell).read_text("utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    @property
    def fault(self) -> str:
        """Why its process ended before the run did; nothing if all is well."""
        code = self.process.returncode
        if self.cell.finished:
            return ""
        told = f"killed by {signal.Signals(-code).name}" if code < 0 else self.last_line.removeprefix("error: ")
        return told or f"exit code {code}"


class JobsWatcher(Protocol):
    """Whoever wants to know how cells go."""

    def ended(self, cell: Cell, seconds: float, fault: str) -> None:
        """A cell is finished, or has a fault."""

    def looked(self, running: Sequence[Job], waiting: int) -> None:
        """How it stands, a few times a second."""


def run_jobs(cells: Sequence[Cell], count: int, watcher: JobsWatcher) -> dict[Path, str]:
    """Run what is not finished, `count` cells at a time; returns what is wrong with those that failed, by folder.

    A cell waits for the Local run that it is compared with. When one fails the others go on all the same.
    """
    jobs = _Jobs(cells, count, watcher)
    with stop_between_rounds() as stopping:
        try:
            while jobs.waiting or jobs.running:
                jobs.end()
                if not stopping.signal:
                    jobs.start()
                elif not jobs.stopped:
                    jobs.stop()
                watcher.looked(jobs.running, len(jobs.waiting))
                sleep(PAUSE)
        finally:
            for job in jobs.running:
                job.process.kill()
    if stopping.signal:
        raise ComparisonStopped(stopping.signal)
    return jobs.faults


class _Jobs:
    """Which cells wait, run and have failed."""

    def __init__(self, cells: Sequence[Cell], count: int, watcher: JobsWatcher) -> None:
        self.waiting = [cell for cell in cells if not cell.finished]
        self.watcher = watcher
        self.free = core_shares(usable_cores(), count)
        self.running: list[Job] = []
        self.faults: dict[Path, str] = {}
        self.stopped = False

    def end(self) -> None:
        """Take note of processes that have ended, and of cells that wait for one that failed."""
        for job in [job for job in self.running if job.process.poll() is not None]:
            self.running.remove(job)
            self.free.append(job.cores)
            if job.cell.finished or not self.stopped:
                self._ended(job.cell, job.seconds, job.fault)
        for cell in [cell for cell in self.waiting if cell.baseline in self.faults]:
            self.waiting.remove(cell)
            self._ended(cell, 0.0, f"the Local run in {cell.baseline} failed")

    def start(self) -> None:
        """Start cells that are ready while there are cores for them."""
        for cell in [cell for cell in self.waiting if _is_ready(cell)][: len(self.free)]:
            self.waiting.remove(cell)
            self.running.append(start(cell, self.free.pop(0)))

    def stop(self) -> None:
        """Ask every process to end its round, and start no more."""
        self.waiting.clear()
        self.stopped = True
        for job in self.running:
            job.process.terminate()

    def _ended(self, cell: Cell, seconds: float, fault: str) -> None:
        if fault:
            self.faults[cell.folder] = fault
        self.watcher.ended(cell, seconds, fault)


def _is_ready(cell: Cell) -> bool:
    return cell.baseline is None or RunFiles(cell.baseline).finished


def log_file(cell: Cell) -> Path:
    """What a cell's process says: a line per round, and errors."""
    return cell.folder.with_name(f"{cell.folder.name}.log")


def start(cell: Cell, cores: Sequence[int]) -> Job:
    """Start a cell's process on these cores."""
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    with log_file(cell).open("w", encoding="utf-8") as log:
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
        "experiment": cell.experiment.to_dict(),
        "folder": str(cell.folder),
        "baseline": str(cell.baseline) if cell.baseline else None,
        "cores": list(cores),
    }
    try:
        process.stdin.write(json.dumps(order) + "\n")  # and left open: the process ends when this one does
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it ended already, and its log says why
    return Job(cell, cores, process, monotonic())


def core_shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Cores for so many processes, as evenly as can be; with more processes than cores some share one.

    >>> core_shares([0, 1, 2, 3, 4], 2), core_shares([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    if count > len(cores):
        return [[cores[number % len(cores)]] for number in range(count)]
    edges = [number * len(cores) // count for number in range(count + 1)]
    return [cores[first:last] for first, last in pairwise(edges)]
