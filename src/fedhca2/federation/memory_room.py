"""Memory for parallel runs: what a run takes, and which runs may start."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedhca2.whole_files import ORDINARY, write_whole

# The exit codes of a run that may succeed when it is alone: others took the memory, or one of them failed on the GPU,
# which under MPS ends all that share it.
OUT_OF_MEMORY, GPU_FAULT = 3, 4
GIB = 1 << 30
CONTEXT = GIB  # what a process takes on a GPU besides its tensors: 0.9 GiB with MPS on an H200
SPARE = 1.1  # a run may take this times what was measured of its method,
SPARE_UNKNOWN = 1.5  # or this times the most of the other methods if its own is not known


class Memory(NamedTuple):
    """Bytes on one GPU, and of the machine itself."""

    gpu: int
    host: int


NOTHING = Memory(0, 0)


class Room(NamedTuple):
    """Bytes of one memory: free without our runs, free now, and what the active runs are expected to take."""

    before: int
    now: int
    taken: int = 0
    active: int = 0  # number of runs

    def holds(self, need: int) -> bool:
        """Whether another run fits, even when the active runs have taken all that they are expected to."""
        return need <= self.now and self.taken + need <= self.before

    def after(self, need: int) -> "Room":
        """What is left after the start of a run."""
        return self._replace(now=self.now - need, taken=self.taken + need, active=self.active + 1)


def choose_places(needs: Sequence[Memory | None], gpus: Sequence[Room], host: Room, most: int) -> list[int]:
    """Choose GPUs for the first runs of the queue that may start now, at most `most`; returns a GPU's number for each.

    A run starts on the GPU with the fewest runs if the memory that it is expected to need is free. While that is
    unknown (None), and for a run that will never fit, one run per GPU starts. No run overtakes another.

    >>> nine, gpu, host = Memory(9, 2), Room(before=20, now=20), Room(before=80, now=80)
    >>> choose_places([nine, nine, nine], [gpu], host, most=8)
    [0, 0]
    >>> choose_places([None, None, None], [gpu, gpu], host, most=8)
    [0, 1]
    """
    gpus, chosen = list(gpus), list[int]()
    for need in needs[: max(0, most)]:
        order = sorted(range(len(gpus)), key=lambda number: gpus[number].active)
        fitting = [number for number in order if need and gpus[number].holds(need.gpu) and host.holds(need.host)]
        never = need is None or need.host > host.before or all(need.gpu > gpu.before for gpu in gpus)
        idle = [number for number in order if never and not gpus[number].active]
        place = next(iter(fitting or idle), None)
        if place is None:
            break
        chosen.append(place)
        gpus[place], host = gpus[place].after(need.gpu if need else 0), host.after(need.host if need else 0)
    return chosen


class Report(NamedTuple):
    """What one run has taken so far, in bytes: tensors on its GPU, whatever else it holds there, and on the host."""

    reserved: int
    context: int | None  # unknown if it was not alone on its GPU
    host: int

    def write(self, path: Path) -> None:
        """Write it where the process that starts runs can read it."""
        write_whole(path, json.dumps(self._asdict()).encode(), ORDINARY)


def read_report(path: Path) -> Report | None:
    """Read what a run reported; None if it has not yet, or if the file is damaged: the run will write it again."""
    try:
        report = Report(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return report if all(isinstance(value, int | None) for value in report) else None


def expected(method: str, reports: Iterable[tuple[str, Report]]) -> Memory | None:
    """What a run of this method is expected to take, from reports by method; None before the first one.

    >>> local = Report(reserved=9 << 30, context=1 << 30, host=10 << 30)
    >>> [size / GIB for size in expected("local", [("local", local)])]
    [11.0, 11.0]
    >>> [size / GIB for size in expected("fedavg", [("local", local)])]
    [15.0, 15.0]
    """
    known = list(reports)
    own = [report for name, report in known if name == method]
    chosen, spare = (own, SPARE) if own else ([report for _, report in known], SPARE_UNKNOWN)
    if not chosen:
        return None
    gpu = max(report.reserved for report in chosen)
    if gpu:
        gpu += max(CONTEXT, *(report.context or 0 for _, report in known))
    return Memory(round(spare * gpu), round(spare * max(report.host for report in chosen)))


def exit_code(error: Exception) -> int | None:
    """The exit code of a run that this ends and that may succeed when it is alone; None for other errors.

    The words are those of torch, CUDA's libraries or the system.
    """
    words = {
        OUT_OF_MEMORY: ("out of memory", "ALLOC_FAILED", "allocate memory"),
        GPU_FAULT: ("CUDA error", "STATUS_EXECUTION_FAILED", "MPS server"),
    }
    return next((code for code, parts in words.items() if any(part in str(error) for part in parts)), None)
