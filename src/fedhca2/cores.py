"""The processor cores that this process may use, on every operating system."""

import os
from collections.abc import Iterable


def usable_cores() -> list[int]:
    """Return the numbers of the usable cores, or all of them if the system cannot tell which ones a process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def stay_on(cores: Iterable[int]) -> None:
    """Restrict this process to these cores, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
