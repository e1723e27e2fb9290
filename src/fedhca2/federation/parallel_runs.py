"""Parallel runs of a comparison, each in a process of its own with its share of the cores.

`python -m` this module is such a process. It gets its order on standard input, and ends with the process that gave it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep

from fedhca2.cores import stay_on, usable_cores
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.comparison_runs import ComparisonRun, ComparisonStopped, join_baselines
from fedhca2.federation.in_process import choose_devices
from fedhca2.federation.run import run_or_resume
from fedhca2.federation.stopping import Interrupted, stop_between_rounds
from fedhca2.imports import same_modules
from fedhca2.run_folder.records import ServerRecord, Watcher

MPS = "nvidia-cuda-mps-control"
TIMEOUT_S = 30  # for a program of NVIDIA to answer, start or stop


class ParallelWatcher:
    """Follows parallel runs. Every method does nothing here."""

    def began(self, how: str) -> None:
        """How the runs share the GPU."""

    def ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        """A run has finished, or failed for this reason."""

    def polled(self, running: Sequence["RunProcess"], waiting: int) -> None:
        """The current state, a few times a second."""


def run_in_parallel(
    runs: Sequence[ComparisonRun], jobs: int | None, watcher: ParallelWatcher, *, mps: bool = False
) -> dict[Path, str]:
    """Run what is not finished; returns the faults of failed runs, by folder. If a run fails, the others continue.

    :param jobs: how many at a time, at most; None: as many as there are GPUs, or cores without one.
    :param mps: let runs share GPUs with NVIDIA's MPS.
    """
    with ExitStack() as stack:
        join_baselines(runs)
        devices, environment = runs[0].experiment.devices, dict[str, str]()
        names = gpu_names() if choose_devices(devices)[0].type == "cuda" else []
        if names and mps:
            environment, how = stack.enter_context(shared_gpus(names))
            watcher.began(how)
        gpus = [] if devices else names  # among which runs are spread
        waiting, running = [run for run in runs if not run.finished], list[RunProcess]()
        free = core_shares(usable_cores(), max(1, min(jobs or len(gpus or usable_cores()), len(waiting))))
        faults, stopped = dict[Path, str](), False
        stopping = stack.enter_context(stop_between_rounds())
        try:
            while waiting or running:
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    free.append(one.cores)
                    if one.run.finished or not stopped:
                        faults |= {one.run.folder: one.fault} if one.fault else {}
                        join_baselines(runs)
                        watcher.ended(one.run, one.seconds, one.fault)
                while free and waiting and not stopping.signal:
                    used = [one.gpu for one in running]
                    own = {"CUDA_VISIBLE_DEVICES": min(gpus, key=used.count)} if len(gpus) > 1 else {}
                    running.append(start(waiting.pop(0), free.pop(0), {**environment, **own}))
                if stopping.signal and not stopped:
                    stopped = True
                    waiting.clear()
                    for one in running:
                        one.process.terminate()  # which ends it after its round
                watcher.polled(running, len(waiting))
                sleep(0.2)
        finally:
            for one in running:
                one.process.kill()
                one.process.wait()
    if stopping.signal:
        raise ComparisonStopped(stopping.signal)
    return faults


def core_shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Divide the cores among `count` processes as evenly as possible; with more processes than cores, some share one.

    >>> core_shares([0, 1, 2, 3, 4], 2), core_shares([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    if count > len(cores):
        return [[cores[number % len(cores)]] for number in range(count)]
    edges = [number * len(cores) // count for number in range(count + 1)]
    return [cores[first:last] for first, last in pairwise(edges)]


@dataclass
class RunProcess:
    """A run with an active process, on these cores and maybe on a GPU of its own."""

    run: ComparisonRun
    process: "subprocess.Popen[str]"
    began: float
    cores: Sequence[int]
    gpu: str = ""

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
        why = f"killed by {signal.Signals(-code).name}" if code < 0 else self.last_line.removeprefix("error: ")
        return why or f"exit code {code}"


def start(run: ComparisonRun, cores: Sequence[int], environment: Mapping[str, str]) -> RunProcess:
    """Start a run's process on these cores."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    with log_file(run).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedhca2.federation.parallel_runs"],
            env={**same_modules(), **environment, "OMP_NUM_THREADS": str(len(cores))},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C only reaches this process, which asks the others to stop
        )
    stay_on(cores, process.pid)  # at once, before torch counts them
    assert process.stdin is not None
    order = {"experiment": run.experiment.to_dict(), "folder": str(run.folder), "command": sys.argv}
    try:
        process.stdin.write(json.dumps(order) + "\n")  # left open: the process ends when this one does
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has already ended, and its log says why
    return RunProcess(run, process, monotonic(), cores, environment.get("CUDA_VISIBLE_DEVICES", ""))


def log_file(run: ComparisonRun) -> Path:
    """The log of a run's process: a line per round, and errors."""
    return run.folder.with_name(f"{run.folder.name}.log")


def main() -> int:
    """Carry out the run described in the first line of input; when the input ends, stop after a checkpoint."""
    order = json.loads(sys.stdin.readline())
    sys.argv = order["command"]  # what the user typed, for the run's result
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        run_or_resume(Experiment.parse(order["experiment"]), Path(order["folder"]), watcher=_Lines())
    except Interrupted as interrupted:
        return 128 + interrupted.signal
    except (UserError, OSError) as error:
        print(f"error: {'; '.join(str(error).splitlines())}", flush=True)
        return 2
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


class _Lines(Watcher):
    """Prints a line per round."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        self.rounds = experiment.rounds
        print(f"round 0 of {self.rounds}", flush=True)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        print(f"round {round + 1} of {self.rounds}, {seconds:.1f} s", flush=True)


def gpu_names(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The UUID of each GPU that this process may use, in CUDA's order.

    It is empty if there is no nvidia-smi, or if it fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index,uuid", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    requested = [row[0] for row in rows] if visible is None else [name.strip() for name in visible.split(",")]
    names = []
    for name in requested:  # an index, or the beginning of a UUID
        row = next((row for row in rows if name and (row[0] == name or row[1].startswith(name))), None)
        if row is None:
            break  # as CUDA does, which ignores what follows an unknown name
        names.append(row[1])
    return names


@contextmanager
def shared_gpus(names: Sequence[str], usual: Path = Path("/tmp/nvidia-mps")) -> Iterator[tuple[dict[str, str], str]]:
    """Run MPS's daemon for GPUs with these UUIDs; yields the variables for its clients, and how GPUs are shared.

    The daemon is stopped at the end, also if this process is killed. A daemon that is already running is used and never
    stopped. Without the program, processes take turns.

    :param usual: where CUDA looks for a daemon if its variables are not set.
    """
    pipe, log = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
    program = shutil.which(MPS)
    if {pipe, log} & set(os.environ) or _is_alive(usual / f"{MPS}.pid"):
        yield {}, "with the MPS daemon that is already running"
        return
    if program is None:
        yield {}, f"without MPS ({MPS} is not installed): runs take turns"
        return
    # Only this user can read the folder, and the daemon may still write to it when it quits.
    with TemporaryDirectory(prefix="fedhca2-mps-", ignore_cleanup_errors=True) as folder:
        own = {pipe: f"{folder}/pipe", log: f"{folder}/log"}
        for each in own.values():
            Path(each).mkdir()
        own["CUDA_VISIBLE_DEVICES"] = ",".join(names)  # the daemon renumbers its GPUs, but a UUID stays the same
        daemon = {**os.environ, **own}
        nowhere = subprocess.DEVNULL  # a daemon would keep pipes open
        began = partial(subprocess.call, [program, "-d"], env=daemon, timeout=TIMEOUT_S, stdout=nowhere, stderr=nowhere)
        if fault := _fault(began):
            yield {}, f"without MPS (its daemon did not start: {fault}): runs take turns"
            return
        # Its input ends with this process, however that ends; Ctrl-C does not reach it in a session of its own.
        stop_at_end = 'cat; echo quit | "$0" && rm -rf "$1"'  # once the input ends, stop it and remove its folder
        stopper = subprocess.Popen(
            ["sh", "-c", stop_at_end, program, folder],
            env=daemon,
            stdin=subprocess.PIPE,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        try:
            yield own, "with MPS"
        finally:
            assert stopper.stdin is not None
            stopper.stdin.close()
            if fault := _fault(partial(stopper.wait, TIMEOUT_S)):
                print(f"{MPS}: could not be stopped ({fault}); its folder was {folder}", flush=True)


def _fault(call: Callable[[], int]) -> str:
    """Call a program; returns what went wrong, or an empty text."""
    try:
        code = call()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"exit code {code}" if code else ""


def _is_alive(pid_file: Path) -> bool:
    """Whether the process named in a file exists."""
    try:
        os.kill(int(pid_file.read_text("utf-8")), 0)
    except PermissionError:
        return True  # it is another user's
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
