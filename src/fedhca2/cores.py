"""The processor cores that this process may use, on every operating system."""

import os
from collections.abc import Iterable


def usable_cores() -> list[int]:
    """Their numbers. Where the system does not say which ones a process may use, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def stay_on(cores: Iterable[int]) -> None:
    """Use no other cores from now on, where the system can be asked for that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
