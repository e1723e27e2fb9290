"""The engine for clients at sites behind a Flower grid, and its record of registrations."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar

import httpx
import torch
from flwr.serverapp.grid import Grid
from torch import Tensor

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.blind import BlindServer
from fedhca2.federation.flower.deploy.control import Registration
from fedhca2.federation.flower.fleet import FlowerFleet
from fedhca2.federation.flower.network_settings import NetworkSettings
from fedhca2.federation.flower.records import DTYPES
from fedhca2.federation.foreign_text import NAME, plain
from fedhca2.federation.limits import Reach
from fedhca2.federation.rounds import Outcome
from fedhca2.federation.run import reopened
from fedhca2.federation.server import Server
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.event_log import EVICTED, REGISTERED
from fedhca2.run_folder.names import FLOWER
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress, ServerRecord, Watcher
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

    def prepare(self, experiment: Experiment, out: Path, *, resumed: bool) -> "FlowerFleets":
        """Give the run a name, under which sites keep their states, or find its existing name."""
        note = read_note(out) if resumed else {"run": token_hex(8), "engine": self.name}
        return FlowerFleets(self, str(note["run"]), {FLOWER: {**note, "flower_run": self.grid.run.run_id}})


@dataclass(frozen=True)
class FlowerFleets:
    """A run under the name that the sites know."""

    engine: FlowerEngine
    run: str
    files: Mapping[str, Any]

    def open(self, experiment: Experiment, folder: RunFolder, *, baseline: bool) -> "FlowerRun":
        """Open the sites of the run, or under another name those of its baseline."""
        return FlowerRun(self.engine, experiment, f"{self.run}baseline" if baseline else self.run, folder)


class FlowerRun(FlowerFleet):
    """The sites of one run."""

    device = "sites over Flower"
    checkpoint_first = False  # sites keep their own noise keys
    checkpoint_every = 1  # a site only has the reply of its last round, so the server must not fall behind

    def __init__(self, engine: FlowerEngine, experiment: Experiment, run: str, folder: RunFolder) -> None:
        super().__init__(engine.grid, experiment, engine.terms, run, folder.path)
        self._engine, self._run_folder = engine, folder
        self.progress: Progress | None = folder.checkpoint.progress if folder.checkpoint else None
        if folder.checkpoint:
            self.registry.claims |= {each["client"]: each["samples"] for each in RunFiles(folder.path).of("profile")}
        self.skipped: Mapping[str, list[str]] = {}
        self.stops_at_once = engine.collect is leave_everything  # sites that are not this command's outlast it

    @contextmanager
    def begin(self, watcher: Watcher) -> Iterator[Watcher]:
        """Wait for the sites, and record registrations from now on."""
        folder = self._run_folder
        with Admissions(self._engine.look, folder) as admissions:
            self.gather()
            watcher.started(self.experiment, _shards(self))
            yield _Tell(self, folder, watcher, admissions, set(folder.checkpoint.clients if folder.checkpoint else ()))

    def server(self) -> Server:
        """The server for the present sites and those that join later."""
        experiment, expected, present = self.experiment, self.registry.expected.values(), self.registry.known
        if experiment.secure_aggregation:
            return BlindServer(experiment, expected, self, present)
        method, reach = experiment.resolved_method, Reach.of(experiment)
        server = Server(method, expected, experiment.guard, reach, present, experiment.task_set)
        server.check_method()
        return server

    def finish(self, outcome: Outcome) -> Outcome:
        """Copy the models here, with predictions of sample images, if the sites are on this machine."""
        self._engine.collect(self.experiment, self.invitation.run, self._run_folder)
        return replace(outcome, missing={**self.absent, **outcome.missing})


def _shards(fleet: FlowerFleet) -> dict[str, Shard]:
    """As many images as the sites report; only they know which ones."""
    samples = {name: profile.samples for name, profile in fleet.profiles.items()}
    return {spec.name: Shard(range(samples.get(spec.name, 0)), []) for spec in fleet.experiment.specs}


@dataclass
class _Tell(Watcher):
    """Notifies the folder and the watcher, with the actual bytes sent and with the absent clients."""

    fleet: FlowerFleet
    folder: RunFolder
    watcher: Watcher
    admissions: "Admissions"
    introduced: set[str]

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        self.watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        if reply.client not in self.introduced:
            self.introduced.add(reply.client)
            self.folder.events.introduced([self.fleet.registry.known[reply.client]])
        as_sent = _order_as_sent(order, self.fleet.terms), _reply_as_sent(reply, self.fleet.terms)
        self.folder.events.replied(*as_sent, beside=self.fleet.beside.pop(reply.client, (0, 0)))
        self.watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        self.admissions.write()
        away = {**self.fleet.registry.refused, **self.fleet.absent, **record.dropped}
        record = replace(record, refused={**record.refused, **away})
        self.folder.events.aggregated(round, record, seconds)
        self.watcher.aggregated(round, record, seconds)


def _row_as_sent(row: Tensor, terms: NetworkSettings) -> Tensor:
    """A placeholder with the size that the row had on the wire."""
    return torch.empty(row.shape, dtype=DTYPES[terms.wire], device="meta")


def _order_as_sent(order: Order, terms: NetworkSettings) -> Order:
    deliveries = {
        slot: replace(
            delivery,
            addends=tuple(replace(addend, row=_row_as_sent(addend.row, terms)) for addend in delivery.addends),
        )
        for slot, delivery in order.deliveries.items()
    }
    return replace(order, deliveries=deliveries)


def _reply_as_sent(reply: Reply, terms: NetworkSettings) -> Reply:
    return replace(reply, rows={slot: _row_as_sent(row, terms) for slot, row in reply.rows.items()})


class Admissions:
    """Records every registration and eviction that the SuperLink knows of, however it was done.

    New ones are recorded from the start of a run to its end, however it ends. The SuperLink keeps evictions with their
    times, so none is missed between two checks.
    """

    def __init__(self, look: Look, folder: RunFolder) -> None:
        self._look, self._folder = look, folder
        before = RunFiles(folder.path)
        self._written = {_mark(event) for kind in (REGISTERED, EVICTED) for event in before.of(kind)}

    def __enter__(self) -> "Admissions":
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
