"""The processor cores that this process may use, on every operating system."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


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
