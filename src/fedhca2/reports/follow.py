"""A run's events as they are written, whether it is running or finished."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

from fedhca2.reports.run_files import Event, parse_events

PAUSE = 0.5  # seconds between two looks


class Follower:
    """Reads what was added to a run's events since the last look.

    A run that is resumed may take back events of a round it had not finished: they come again.
    """

    def __init__(self, run: Path) -> None:
        self.path, self.place, self.rest = run / "metrics.jsonl", 0, b""

    def look(self) -> list[Event]:
        """New events."""
        content = b""
        if self.path.is_file():
            if self.path.stat().st_size < self.place:
                self.place, self.rest = 0, b""
            with self.path.open("rb") as file:
                file.seek(self.place)
                content = file.read()
        self.place += len(content)
        *lines, self.rest = (self.rest + content).split(b"\n")
        return list(parse_events([line.decode() for line in lines], str(self.path)))


def follow(run: Path, *, wait: bool = True, pause: Callable[[float], None] = sleep) -> Iterator[list[Event]]:
    """New events, a list at each look, until the run is finished, or with `wait=False` until there are no more."""
    follower = Follower(run)
    while True:
        finished = (run / "result.json").is_file()  # looked up first: nothing is written after it
        yield follower.look()
        if finished or not wait:
            return
        pause(PAUSE)
