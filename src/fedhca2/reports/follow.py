"""A run's events as they are written, whether it is running or finished."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

from fedhca2.reports.run_files import Event, parse_events

PAUSE = 0.5  # seconds between two looks


def follow(run: Path, *, wait: bool = True, pause: Callable[[float], None] = sleep) -> Iterator[list[Event]]:
    """New events, a list at each look, until the run is finished, or with `wait=False` until there are no more.

    A run that is resumed may take back events of a round it had not finished: they come again.
    """
    path, place, rest = run / "metrics.jsonl", 0, b""
    while True:
        finished = (run / "result.json").is_file()  # looked up first: nothing is written after it
        content = b""
        if path.is_file():
            if path.stat().st_size < place:
                place, rest = 0, b""
            with path.open("rb") as file:
                file.seek(place)
                content = file.read()
        place += len(content)
        *lines, rest = (rest + content).split(b"\n")
        yield list(parse_events([line.decode() for line in lines], str(path)))
        if finished or not wait:
            return
        pause(PAUSE)
