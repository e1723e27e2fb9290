"""The entry point of `fedhca2` and `python -m fedhca2`, which handles Ctrl-C before it imports anything slow."""

import os
import signal
from types import FrameType


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
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
