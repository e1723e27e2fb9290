"""The engine and the fleet for clients at sites behind a Flower grid, and the record of registrations."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar, TypeVar

import httpx
import torch
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.grid import Grid
from torch import Tensor

from fedhca2.aggregation import MappedRow
from fedhca2.clients import BatchWatch
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.flower import records
from fedhca2.federation.flower.answers import Allowance, SiteAnswer
from fedhca2.federation.flower.deploy.consent import Invitation
from fedhca2.federation.flower.deploy.secagg_server import SecureSum, read_keys
from fedhca2.federation.flower.deploy.superlink import fingerprint
from fedhca2.federation.flower.site_registry import Request, SiteRegistry
from fedhca2.federation.flower.wait import NetworkSettings, TooFewClientsError, Wait, by_reason
from fedhca2.federation.gate import MAX_NAME, plain
from fedhca2.federation.run import reopen
from fedhca2.federation.server import check_method
from fedhca2.federation.sum_server import Sum, Summed, visible_profile
from fedhca2.messages import Order, Profile, Reply
from fedhca2.run_folder.event_log import EVICTED, REGISTERED
from fedhca2.run_folder.folder import FLOWER
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.writer import RunFolder

Collect = Callable[[Experiment, str, RunFolder], None]  # copies what sites know of the named run to its folder
ListNodes = Callable[[], Iterable[NodeInfo]]  # lists registrations and evictions
GRACE_S = 10.0  # for further clients to introduce themselves when there are already enough
T = TypeVar("T")


def check_spread(experiment: Experiment) -> None:
    """Raise UserError if the clients of an experiment cannot be on several machines."""
    if experiment.resolved_method.local.in_one_place:
        name = experiment.method_name
        raise UserError("method", f"expected one whose clients keep their data apart, got {name!r}; run it in-process")


def check_resumable(out: Path) -> None:
    """Raise UserError if this is not a resumable run over Flower; called before anything is stopped or started."""
    read_note(out)
    with reopen(out, settings_stay=FlowerEngine.settings_stay):
        pass


def read_note(out: Path) -> dict[str, Any]:
    """Read the note of a run over Flower: `run`, `engine`, and Flower's own number in `flower_run`."""
    note = RunFiles(out).flower_note
    if note is None:
        raise UserError(out, f"expected the folder of a run over Flower, got none: it has no {FLOWER}")
    return note


@dataclass(frozen=True)
class FlowerEngine:
    """A grid, and how to handle the sites behind it. They continue from their own states."""

    file_names: ClassVar[Sequence[str]] = (FLOWER,)
    settings_stay: ClassVar[bool] = True

    grid: Grid
    terms: NetworkSettings
    name: str = "flower"  # the engine's name in the run's folder
    collect: Collect | None = None  # none: models and images stay at the sites, which outlast the run
    list_nodes: ListNodes = tuple  # a simulation has no registrations

    def open(self, experiment: Experiment, folder: RunFolder) -> "FlowerFleet":
        """Open the sites of a run under the name under which they keep their states; a new run gets a name."""
        check_spread(experiment)
        resumed = RunFiles(folder.path).begun
        note = read_note(folder.path) if resumed else {"run": token_hex(8), "engine": self.name}
        files = {FLOWER: {**note, "flower_run": self.grid.run.run_id}}
        return FlowerFleet(self, experiment, str(note["run"]), folder, files)


class FlowerFleet:
    """The clients of a run, at their sites. `absent` names those that fail to answer in time, with the reason."""

    device = "sites over Flower"
    checkpoint_first = False  # sites keep their own noise keys
    checkpoint_every = 1  # a site only has the reply of its last round, so the server must not fall behind
    skipped: Mapping[str, list[str]] = {}

    def __init__(
        self, engine: FlowerEngine, experiment: Experiment, run: str, folder: RunFolder, files: Mapping[str, Any]
    ) -> None:
        self.experiment, self.terms, self.files = experiment, engine.terms, files
        self._engine, self._folder = engine, folder
        self.invitation = Invitation.for_experiment(experiment, run)
        self.registry = SiteRegistry(engine.grid, experiment, engine.terms, self.invitation)
        if folder.checkpoint:
            self.registry.claims |= {each["client"]: each["samples"] for each in RunFiles(folder.path).of("profile")}
        self.profiles: Mapping[str, Profile] = self.registry.profiles
        self.images = experiment.guard.images  # how many they may have: their own numbers are not trusted
        self.summer = self.add if experiment.secure_aggregation else None
        self.stops_at_once = engine.collect is None  # sites that are not this command's outlast it
        self.quorum = engine.terms.min_clients or len(experiment.specs)
        self.absent: Mapping[str, str] = {}
        self.keys: dict[str, tuple[str, str]] = {}  # sent with the clients' last replies, for a sum
        self._unanswered: dict[tuple[str, int], Request[Reply]] = {}  # by client and round
        self._sum_bytes = {"up": Counter[str](), "down": Counter[str]()}  # of the last sum, by client
        self._admissions: Admissions | None = None

    @property
    def expected(self) -> Mapping[str, Profile]:
        """All clients of the experiment."""
        return self.registry.expected

    @property
    def shards(self) -> dict[str, Shard]:
        """As many images as the sites report; only they know which ones."""
        samples = {name: profile.samples for name, profile in self.profiles.items()}
        return {spec.name: Shard(range(samples.get(spec.name, 0)), []) for spec in self.experiment.specs}

    def baseline(self, experiment: Experiment, folder: RunFolder) -> "FlowerFleet":
        """The same sites, which keep the states of the baseline under another name."""
        return FlowerFleet(self._engine, experiment, f"{self.invitation.run}baseline", folder, {})

    def gather(self) -> None:
        """Wait for as many clients as a round needs, and briefly for the others; record registrations from now on."""
        self._admissions = Admissions(self._engine.list_nodes, self._folder)
        wait = Wait(self.terms.deadline)
        while len(self.registry.profiles) < self.quorum:
            if wait.is_over or (not self.terms.await_refused and self.registry.all_have_answered):
                raise TooFewClientsError(self._too_few(len(self.registry.profiles), "have introduced themselves", wait))
            self.registry.poll(wait)
            wait.tell(self.registry.missing())
        grace = Wait(GRACE_S)
        while not grace.is_over and self.registry.expects_introductions:
            self.registry.poll(grace)
        if self.summer is None:
            check_method(self.experiment.resolved_method, self.profiles, self.expected)

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Give every client its order, and collect the replies that arrive before the deadline."""
        headers = {client: {**self.invitation.header_for(client), "wire": self.terms.wire} for client in orders}
        contents = records.encode_orders(orders, self.terms.wire, headers)
        requests = {}
        for client, order in orders.items():  # whose reply has as many values as the requested parts
            layouts = visible_profile(self.profiles[client], self.experiment).layouts
            values = sum(layout.numel for slot, layout in layouts.items() if slot.part in order.upload)
            allowance = Allowance(values, self.terms.wire)
            requests[client] = Request(contents[client], allowance, partial(self._read_reply, client))
        late = None if any(order.finish for order in orders.values()) else self.experiment.participation.late
        if late:  # who got its order in an earlier round and has not answered is still expected to
            earlier = {client: self._unanswered.get((client, order.round)) for client, order in orders.items()}
            requests |= {client: request for client, request in earlier.items() if request}
        needed = min((self.terms.min_clients or 1) if late else self.quorum, len(orders))
        wait, enough = Wait(self.terms.deadline), Wait(late.seconds) if late and late.seconds else None
        replies, away = self.registry.deliver(requests, needed, wait, enough=enough, forget=late is None)
        self._unanswered = {(client, orders[client].round): requests[client] for client in away} if late else {}
        self.absent = {**self.registry.refused, **self.registry.missing(), **away}
        if len(replies) < needed:
            raise TooFewClientsError(self._too_few(len(replies), "have answered", wait))
        if self._admissions:
            self._admissions.write()
        return replies

    def warm_up(self) -> None:
        """Sites get ready by themselves."""

    def traffic(self, order: Order, reply: Reply) -> tuple[int, int]:
        """The bytes up and down of an order, its reply, and the messages of secure aggregation."""
        width = records.DTYPES[self.terms.wire].itemsize
        received = [each.row for delivery in order.deliveries.values() for each in delivery.addends]
        up, down = (counts.pop(reply.client, 0) for counts in self._sum_bytes.values())
        up += reply.nbytes + sum(row.numel() * width - row.nbytes for row in reply.rows.values())
        down += order.nbytes + sum(row.numel() * width - row.nbytes for row in received)
        return up, down

    def add(self, round: int, sums: Sequence[Sum]) -> Summed:
        """Let clients add up the rows of their last replies; see `secagg_server`."""
        for counts in self._sum_bytes.values():
            counts.clear()
        settings = self.experiment.secure_aggregation
        if settings is None:
            raise ValueError("secure_aggregation: expected settings, since clients add up rows, got none")
        return SecureSum(settings, partial(self._ask, round, settings.seconds), self.keys, sums).add()

    def save(self, folder: Path) -> Mapping[str, str]:
        """List who has taken part; sites keep their clients' states themselves."""
        return dict.fromkeys(self.profiles, "at its site")

    def finish(self) -> None:
        """Copy the models here, with predictions of sample images, if the sites are on this machine."""
        if self._engine.collect:
            self._engine.collect(self.experiment, self.invitation.run, self._folder)

    def close(self) -> None:
        """Record the last registrations. Sites continue."""
        if self._admissions:
            with suppress(UserError, httpx.HTTPError):  # the SuperLink itself may have ended the run
                self._admissions.write()
        self._admissions = None

    def _ask(
        self,
        round: int,
        seconds: float,
        stage: str,
        requests: Mapping[str, Mapping[str, Any]],
        read: Callable[[SiteAnswer], T],
        least: int,
        values: Mapping[str, int],
    ) -> tuple[dict[str, T], dict[str, str]]:
        """One stage of secure aggregation."""
        out = {}
        for client, request in requests.items():
            header = {**self.invitation.header_for(client), records.STAGE: stage, "round": round, "request": request}
            allowance = Allowance(values.get(client, 0), records.MASKED)
            out[client] = Request(records.pack(header), allowance, partial(self._read_stage, client, read))
            self._sum_bytes["down"][client] += len(json.dumps(request))
        return self.registry.deliver(out, least, Wait(seconds), invite=False)  # a site that builds a client is late

    def _too_few(self, count: int, what: str, wait: Wait) -> str:
        reasons = by_reason({**self.registry.refused, **self.absent})
        time = f" in {self.terms.deadline:g} s" if wait.is_over else ""
        return f"expected {self.quorum} clients, got {count} that {what}{time}{reasons and '; '}{reasons}"

    def _read_reply(self, client: str, answer: SiteAnswer) -> Reply:
        if self.experiment.secure_aggregation and answer.header.get("keys"):
            self.keys[client] = read_keys(answer)
        profile = visible_profile(self.profiles[client], self.experiment)
        reply = records.decode_reply(answer.header, answer.rows, profile)
        return spool(reply, self._folder.path, records.DTYPES[self.terms.wire]) if self.terms.spool else reply

    def _read_stage(self, client: str, read: Callable[[SiteAnswer], T], answer: SiteAnswer) -> T:
        rows = 0 if answer.rows is None else answer.rows.nbytes
        self._sum_bytes["up"][client] += len(json.dumps(answer.header)) + rows
        return read(answer)


class Admissions:
    """Records every registration and eviction that the SuperLink knows of, however it was done.

    The SuperLink keeps evictions with their times, so none is missed between two checks.
    """

    def __init__(self, list_nodes: ListNodes, folder: RunFolder) -> None:
        self._list_nodes, self._folder = list_nodes, folder
        before = RunFiles(folder.path)
        self._written = {(kind, one["time"], one["node"]) for kind in (REGISTERED, EVICTED) for one in before.of(kind)}
        self.write()

    def write(self) -> None:
        """Check for new registrations and evictions, and record them."""
        for one in self._list_nodes():
            key, node = fingerprint(one.public_key), str(one.node_id)  # of 64 bits
            who = {"client": plain(one.name, MAX_NAME), "key": key, "node": node}
            for kind, time in ((REGISTERED, one.registered_at), (EVICTED, one.unregistered_at)):
                mark = (kind, time, node)
                if mark not in self._written and (time or kind == REGISTERED):
                    self._written.add(mark)
                    self._folder.events.log(kind, time=time, **who)


def spool(reply: Reply, folder: Path, dtype: torch.dtype) -> Reply:
    """The same reply with its rows in files in a folder; `dtype` is their type on the wire.

    The files are already unlinked, so they disappear once they are closed, even after a crash.
    """

    def in_file(row: Tensor) -> MappedRow:
        with NamedTemporaryFile(dir=folder) as file:
            file.write(row.to(dtype).contiguous().view(torch.uint8).numpy().data)
            file.flush()
            return MappedRow.open(file.name, row.numel(), dtype)

    try:
        return replace(reply, rows={slot: in_file(row) for slot, row in reply.rows.items()})
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
