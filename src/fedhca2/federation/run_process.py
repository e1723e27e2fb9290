"""Starting a run of a comparison in a process of its own, and following it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from fedhca2.cores import stay_on
from fedhca2.federation.comparison_runs import ComparisonRun
from fedhca2.federation.memory_room import GPU_FAULT, OUT_OF_MEMORY

PROGRAM = "fedhca2.federation.comparison_process"


@dataclass
class RunProcess:
    """A run with an active process, on these cores and on the GPU with this number."""

    run: ComparisonRun
    cores: Sequence[int]
    process: "subprocess.Popen[str]"
    began: float
    place: int = 0
    shared: bool = False  # whether another run was active at the same time

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

    @property
    def out_of_memory(self) -> bool:
        """Whether its process ran out of memory."""
        return not self.run.finished and self.process.returncode == OUT_OF_MEMORY

    @property
    def failed_on_gpu(self) -> bool:
        """Whether its process ended with a fault on the GPU, after which CUDA's own threads may crash."""
        return not self.run.finished and self.process.returncode in (GPU_FAULT, -signal.SIGSEGV, -signal.SIGABRT)

    def remember_others(self) -> None:
        """Note that another run is active at the same time."""
        self.shared = True

    def move(self, cores: Sequence[int]) -> None:
        """Continue on other cores."""
        self.cores = cores
        stay_on(cores, self.process.pid)


def start(
    run: ComparisonRun, cores: Sequence[int], threads: int, environment: Mapping[str, str], free: int | None = None
) -> RunProcess:
    """Start a run's process on these cores; `free` bytes are free on its GPU if it has that to itself for a round."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    with log_file(run).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM],
            env={**os.environ, **environment, "OMP_NUM_THREADS": str(threads)},
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
        "command": sys.argv,
        "cores": list(cores),
        "memory": str(memory_file(run)),
        "free": free,
    }
    try:
        process.stdin.write(json.dumps(order) + "\n")  # left open: the process ends when this one does
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has already ended, and its log says why
    return RunProcess(run, cores, process, monotonic())


def log_file(run: ComparisonRun) -> Path:
    """The log of a run's process: a line per round, and errors."""
    return run.folder.with_name(f"{run.folder.name}.log")


def memory_file(run: ComparisonRun) -> Path:
    """What a run's process reports about the memory it takes."""
    return run.folder.with_name(f"{run.folder.name}.memory.json")
