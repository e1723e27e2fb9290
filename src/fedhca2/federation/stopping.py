"""Handling Ctrl-C and SIGTERM: finish the round and its checkpoint first."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType


class Interrupted(Exception):  # noqa: N818
    """A run stopped on request, after a checkpoint."""

    def __init__(self, signal: int, run: Path, round: int) -> None:
        super().__init__(f"stopped after round {round}; resume with: fedhca2 resume {shlex.quote(str(run))}")
        self.signal, self.run, self.round = signal, run, round


class Stopping:
    """The signal that asked to stop, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; a second one ends the process at once."""
        if self.signal is not None:
            if sys.__stdout__ is not None and sys.__stdout__.isatty():
                os.write(sys.__stdout__.fileno(), b"\x1b[?25h")  # shows the cursor, which progress bars hide
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal = number
        with suppress(OSError):  # nobody may be reading it any more
            # directly, since `print` fails if the signal comes while it writes
            os.write(2, b"stopping after this round is saved; a second signal stops at once\n")


@contextmanager
def stop_between_rounds(*, at_once: bool = False) -> Iterator[Stopping]:
    """Delay signals until the end of a round (in the main thread, the only one that gets them), unless `at_once`."""
    stopping = Stopping()
    if at_once or current_thread() is not main_thread():
        yield stopping
        return
    before = {number: signal.signal(number, stopping) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
