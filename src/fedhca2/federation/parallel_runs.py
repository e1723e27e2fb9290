"""Parallel runs, each in its own process with its share of the cores and its place on a GPU."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol

from fedhca2.cores import usable_cores
from fedhca2.federation.comparison_runs import ComparisonRun, ComparisonStopped, join_baselines
from fedhca2.federation.gpu_sharing import RunMemory, gpus_free, gpus_of, shared_gpus
from fedhca2.federation.in_process import choose_devices
from fedhca2.federation.memory_room import NOTHING, Memory, Room, choose_places
from fedhca2.federation.run_process import RunProcess, start
from fedhca2.federation.stopping import stop_between_rounds

PAUSE = 0.2  # seconds between checks of the processes
LOOK_EVERY = 2.0  # seconds between checks of the memory
RECOVERY = 30.0  # seconds after a fault on the GPU until MPS serves others again
FULL = Room(0, 0)  # it holds nothing, which is enough if runs need not wait for memory


class ParallelWatcher(Protocol):
    """Follows parallel runs."""

    def began(self, how: str) -> None:
        """How the runs share the GPU."""

    def ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        """A run has finished or failed."""

    def put_back(self, run: ComparisonRun, why: str) -> None:
        """A run ended for a reason that may lie in others, and continues alone once they have finished."""

    def looked(self, running: Sequence[RunProcess], waiting: int) -> None:
        """The current state, a few times a second."""


def run_in_parallel(runs: Sequence[ComparisonRun], most: int | None, watcher: ParallelWatcher) -> dict[Path, str]:
    """Run what is not finished, at most `most` at a time; returns the faults of failed runs, by folder.

    None: as many as there are cores. On a GPU, and always with None, a run waits until the memory that it is expected
    to need is free. If a run fails, the others continue.
    """
    with ExitStack() as stack:
        join_baselines(runs)
        environment: Mapping[str, str] = {}
        if gpus := gpus_of(runs[0].experiment):
            environment, how = stack.enter_context(shared_gpus(list(gpus_free())))
            watcher.began(how)
        elif any(device.type == "cuda" for device in choose_devices(runs[0].experiment.devices)):
            watcher.began("without MPS, and do not wait for its memory: nvidia-smi does not list it")
        state = _ParallelRuns(runs, most, gpus, environment, watcher)
        stopping = stack.enter_context(stop_between_rounds())
        try:
            while state.unfinished or state.running:
                state.end()
                if not stopping.signal:
                    state.start()
                elif not state.stopped:
                    state.stop()
                watcher.looked(state.running, state.unfinished)
                sleep(PAUSE)
        finally:
            for one in state.running:
                one.process.kill()
                one.process.wait()
    if stopping.signal:
        raise ComparisonStopped(stopping.signal)
    return state.faults


class _ParallelRuns:
    """The waiting, active and failed runs."""

    def __init__(
        self,
        runs: Sequence[ComparisonRun],
        most: int | None,
        gpus: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        watcher: ParallelWatcher,
    ) -> None:
        self.runs, self.gpus, self.environment, self.watcher = runs, gpus, environment, watcher
        self.waiting = [run for run in runs if not run.finished]
        self.alone: list[ComparisonRun] = []  # did not succeed beside others
        self.running: list[RunProcess] = []
        self.faults: dict[Path, str] = {}
        self.stopped = False
        self.cores = usable_cores()
        self.most = most or len(self.cores)
        self.memory = RunMemory(runs, gpus) if gpus or most is None else None
        self.looked = -LOOK_EVERY
        self.rests_until = 0.0  # the GPU, after a fault

    @property
    def unfinished(self) -> int:
        """The number of runs that have yet to start."""
        return len(self.waiting) + len(self.alone)

    def end(self) -> None:
        """Handle processes that have ended."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            self.looked = -LOOK_EVERY
            if one.out_of_memory and one.shared and not self.stopped:
                self.most = min(self.most, max(1, len(self.running)))
                self.alone.append(one.run)
                self.watcher.put_back(one.run, "out of memory")
            elif one.failed_on_gpu and one.shared and self.gpus and not self.stopped:
                self.rests_until = monotonic() + RECOVERY
                self.alone.append(one.run)
                self.watcher.put_back(one.run, "a fault on the GPU, maybe of another run")
            elif one.run.finished or not self.stopped:
                if one.fault:
                    self.faults[one.run.folder] = one.fault
                join_baselines(self.runs)
                self.watcher.ended(one.run, one.seconds, one.fault)

    def start(self) -> None:
        """Start the runs for which there is room, and share the cores among all that are active."""
        if monotonic() < self.rests_until:
            return
        if not self.waiting and not self.running and self.alone:
            self.waiting.append(self.alone.pop(0))
        if not self.waiting or (self.memory and monotonic() - self.looked < LOOK_EVERY):
            return
        self.looked = monotonic()
        needs: Sequence[Memory | None] = [NOTHING] * len(self.waiting)
        gpus, host = [FULL], FULL
        if self.memory:
            needs = self.memory.needs(self.waiting)
            gpus, host = self.memory.rooms([(one.run, one.place) for one in self.running])
        chosen = choose_places(needs, gpus, host, self.most - len(self.running))
        if not chosen:
            return
        shares = core_shares(self.cores, len(self.running) + len(chosen))
        for one, share in zip(self.running, shares, strict=False):
            one.move(share)
        first = needs[0] is None  # it starts alone to show what it takes, with all cores, but shares them later
        sharing = min(self.most, len(self.running) + len(self.waiting)) if first else len(shares)
        threads = max(1, len(self.cores) // sharing)
        for place, share in zip(chosen, shares[len(self.running) :], strict=True):
            own = {"CUDA_VISIBLE_DEVICES": self.gpus[place][0]} if len(self.gpus) > 1 else {}
            alone = gpus[place].now if first and self.gpus else None
            one = start(self.waiting.pop(0), share, threads, {**self.environment, **own}, alone)
            self.running.append(replace(one, place=place))
        if len(self.running) > 1:
            for one in self.running:
                one.remember_others()

    def stop(self) -> None:
        """Ask every process to stop after its round, and start no more."""
        self.waiting.clear()
        self.alone.clear()
        self.stopped = True
        for one in self.running:
            one.process.terminate()


def core_shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """Divide the cores among `count` processes as evenly as possible; with more processes than cores, some share one.

    >>> core_shares([0, 1, 2, 3, 4], 2), core_shares([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    if count > len(cores):
        return [[cores[number % len(cores)]] for number in range(count)]
    edges = [number * len(cores) // count for number in range(count + 1)]
    return [cores[first:last] for first, last in pairwise(edges)]
