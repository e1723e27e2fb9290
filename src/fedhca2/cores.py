"""The processor cores and the memory that this process may use, on every operating system."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout


def usable_cores() -> list[int]:
    """Return the numbers of the usable cores, or all of them if the system cannot tell which ones a process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def stay_on(cores: Iterable[int], process: int = 0) -> None:
    """Restrict this process, or another with all its threads, to these cores, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        return
    threads = [int(thread.name) for thread in Path(f"/proc/{process}/task").glob("*")] if process else [0]
    for thread in threads:
        with suppress(ProcessLookupError):  # it has already ended
            os.sched_setaffinity(thread, cores)


@contextmanager
def one_per_core(folder: Path) -> Iterator[None]:
    """Limit the processes that are in this block, with the same folder, to the number of cores; others wait.

    A process that dies leaves the block.
    """
    locks = [FileLock(folder / f"core-{core}", blocking=False) for core in usable_cores()]
    while not any(map(_acquire, locks)):
        time.sleep(0.2)
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


def _acquire(lock: BaseFileLock) -> bool:
    """Take a lock, unless another process has it; returns whether that worked."""
    with suppress(Timeout):
        lock.acquire()
    return lock.is_locked


def host_free(system: Path = Path("/")) -> int:
    """The free bytes of the machine, or of the container if that has less; unlimited if the system does not tell."""
    memory = _read_table(system / "proc/meminfo")
    free = memory["MemAvailable:"] * 1024 if memory else sys.maxsize
    group = system / "sys/fs/cgroup"
    limit = (group / "memory.max").read_text("utf-8").strip() if (group / "memory.max").is_file() else "max"
    if limit == "max":
        return free
    parts = _read_table(group / "memory.stat")  # files are cached there until somebody needs the memory
    used = int((group / "memory.current").read_text("utf-8")) - parts["active_file"] - parts["inactive_file"]
    return min(free, int(limit) - used)


def _read_table(path: Path) -> dict[str, int]:
    """Lines of a name and a number; empty without the file."""
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return {line.split()[0]: int(line.split()[1]) for line in lines}
