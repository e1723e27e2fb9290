"""The engine for clients at sites behind a Flower grid, and its record of registrations."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar

import httpx
from flwr.serverapp.grid import Grid

from fedhca2.clients import BatchWatch
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.flower.deploy.superlink import Registration
from fedhca2.federation.flower.fleet import FlowerFleet
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.foreign_text import NAME, plain
from fedhca2.federation.run import reopened
from fedhca2.federation.server import check_method
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.event_log import EVICTED, REGISTERED
from fedhca2.run_folder.names import FLOWER
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.writer import RunFolder

Collect = Callable[[Experiment, str, RunFolder], None]  # copies what sites know of the named run to its folder
Look = Callable[[], Iterable[Registration]]  # lists registrations and evictions


def leave_everything(experiment: Experiment, run: str, folder: RunFolder) -> None:
    """Leave models and images at their sites."""


def no_registrations() -> tuple[()]:
    """List no registrations: a simulation has no keys."""
    return ()


def check_resumable(out: Path) -> None:
    """Raise UserError if this is not a resumable run over Flower; called before anything is stopped or started."""
    read_note(out)
    with reopened(out, settings_stay=FlowerEngine.settings_stay):
        pass


def read_note(out: Path) -> dict[str, Any]:
    """Read the note of a run over Flower: `run`, `engine`, and Flower's own number in `flower_run`."""
    note = RunFiles(out).flower_note
    if note is None:
        raise UserError([f"{out}: should be the folder of a run over Flower, found no {FLOWER} in it"])
    return note


@dataclass(frozen=True)
class FlowerEngine:
    """A grid, and how to handle the sites behind it. They continue from their own states."""

    file_names: ClassVar[Sequence[str]] = (FLOWER,)
    settings_stay: ClassVar[bool] = True

    grid: Grid
    terms: NetworkSettings
    name: str = "flower"  # the engine's name in the run's folder
    collect: Collect = leave_everything
    look: Look = no_registrations  # lists registrations

    def open(self, experiment: Experiment, folder: RunFolder) -> "FlowerRun":
        """Open the sites of a run under the name under which they keep their states; a new run gets a name."""
        resumed = RunFiles(folder.path).begun
        note = read_note(folder.path) if resumed else {"run": token_hex(8), "engine": self.name}
        return FlowerRun(
            self, experiment, str(note["run"]), folder, {FLOWER: {**note, "flower_run": self.grid.run.run_id}}
        )


class FlowerRun(FlowerFleet):
    """The sites of one run."""

    device = "sites over Flower"
    checkpoint_first = False  # sites keep their own noise keys
    checkpoint_every = 1  # a site only has the reply of its last round, so the server must not fall behind
    skipped: Mapping[str, list[str]] = {}

    def __init__(
        self, engine: FlowerEngine, experiment: Experiment, run: str, folder: RunFolder, files: Mapping[str, Any]
    ) -> None:
        super().__init__(engine.grid, experiment, engine.terms, run, folder.path)
        self._engine, self._run_folder, self.files = engine, folder, files
        self._admissions, self._at_end = Admissions(engine.look, folder), ExitStack()
        if folder.checkpoint:
            self.registry.claims |= {each["client"]: each["samples"] for each in RunFiles(folder.path).of("profile")}
        self.stops_at_once = engine.collect is leave_everything  # sites that are not this command's outlast it

    def baseline(self, experiment: Experiment, folder: RunFolder) -> "FlowerRun":
        """The same sites, which keep the states of the baseline under another name."""
        return FlowerRun(self._engine, experiment, f"{self.invitation.run}baseline", folder, {})

    @property
    def shards(self) -> dict[str, Shard]:
        """As many images as the sites report; only they know which ones."""
        samples = {name: profile.samples for name, profile in self.profiles.items()}
        return {spec.name: Shard(range(samples.get(spec.name, 0)), []) for spec in self.experiment.specs}

    def gather(self) -> None:
        """Wait for the sites, and record registrations from now on."""
        self._at_end.enter_context(self._admissions)
        super().gather()
        if self.adder is None:
            check_method(self.experiment.resolved_method, self.profiles, self.expected)

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Collect the replies, and record registrations."""
        replies = super().perform(orders, watch)
        self._admissions.write()
        return replies

    def finish(self) -> None:
        """Copy the models here, with predictions of sample images, if the sites are on this machine."""
        self._engine.collect(self.experiment, self.invitation.run, self._run_folder)

    def close(self) -> None:
        """Record the last registrations. Sites go on."""
        self._at_end.close()


class Admissions:
    """Records every registration and eviction that the SuperLink knows of, however it was done.

    New ones are recorded from the start of a run to its end, however it ends. The SuperLink keeps evictions with their
    times, so none is missed between two checks.
    """

    def __init__(self, look: Look, folder: RunFolder) -> None:
        self._look, self._folder, self._written = look, folder, set[tuple[str, str, str]]()

    def __enter__(self) -> "Admissions":
        before = RunFiles(self._folder.path)
        self._written = {_mark(event) for kind in (REGISTERED, EVICTED) for event in before.of(kind)}
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(UserError, httpx.HTTPError):  # the SuperLink itself may have ended the run
            self.write()

    def write(self) -> None:
        """Check for new registrations and evictions, and record them."""
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
