"""Who was let in and put out, in the run's record: every key that the SuperLink was told of, in whatever way."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import httpx

from fedhca2.errors import UserError
from fedhca2.federation.flower.control import Registration
from fedhca2.federation.gate import NAME, plain
from fedhca2.run_folder.event_log import EVICTED, REGISTERED
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.writer import RunFolder

Look = Callable[[], Iterable[Registration]]


def nobody() -> tuple[()]:
    """In a simulation there are no keys."""
    return ()


class Admissions:
    """Writes down what is new from the beginning of a run to its end, however it ends.

    The SuperLink keeps who was evicted, and when, so nothing is missed between two looks.
    """

    def __init__(self, look: Look, folder: RunFolder) -> None:
        self._look, self._folder = look, folder
        before = map(json.loads, RunFiles(folder.path).events_file.read_text("utf-8").splitlines())
        self._written = {_mark(event) for event in before if event["event"] in (REGISTERED, EVICTED)}

    def __enter__(self) -> "Admissions":
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(UserError, httpx.HTTPError):  # the SuperLink may be what ended it
            self.write()

    def write(self) -> None:
        """Look, and write down what is new."""
        for event in _events(self._look()):
            if _mark(event) not in self._written:
                self._written.add(_mark(event))
                self._folder.events.log(**event)


def _events(registrations: Iterable[Registration]) -> Iterator[dict[str, Any]]:
    for one in registrations:
        who = {"client": plain(one.name, NAME), "key": one.fingerprint, "node": str(one.node)}  # of 64 bits
        yield {"event": REGISTERED, "time": one.registered, **who}
        if one.evicted:
            yield {"event": EVICTED, "time": one.evicted, **who}


def _mark(event: dict[str, Any]) -> tuple[str, str, str]:
    return event["event"], event["time"], event["node"]
