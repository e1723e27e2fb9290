"""The command's entry, also of `python -m fedhca2`: Ctrl-C is handled before anything else is imported."""

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command."""
    signal.signal(signal.SIGINT, interrupt)
    from fedhca2.cli import main as command

    command()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; during an import leave at once, since a library may swallow it or end up half loaded."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
