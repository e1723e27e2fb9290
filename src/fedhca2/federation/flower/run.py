"""One run over a network, from an experiment to its folder at the coordinator."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from flwr.serverapp.grid import Grid
from torch import Tensor

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.blind import BlindServer
from fedhca2.federation.course import Course
from fedhca2.federation.flower.admissions import Admissions, Look, nobody
from fedhca2.federation.flower.fleet import FlowerFleet
from fedhca2.federation.flower.records import DTYPES
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.membership import differences
from fedhca2.federation.moves import Reach
from fedhca2.federation.run import RunWatcher
from fedhca2.federation.server import Server
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.baseline import baseline_files, finished_scores, read_baseline
from fedhca2.run_folder.names import BASELINE_FILES, BASELINE_FOLDER, CONFIG, FLOWER, RESULT
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import ServerRecord
from fedhca2.run_folder.result import (
    Result,
    Scores,
)
from fedhca2.run_folder.writer import RunFolder

Collect = Callable[[str, Path], None]  # brings the models of a run of this name into its folder


def leave_models(run: str, folder: Path) -> None:
    """Models stay at their sites."""


def run(
    grid: Grid,
    experiment: Experiment,
    out: Path,
    watcher: RunWatcher,
    terms: Terms,
    baseline: Path | None = None,
    engine: str = "flower",
    collect: Collect = leave_models,
    look: Look = nobody,
) -> Result:
    """Train with the sites that this grid reaches, and write the run's folder."""
    early = (FLOWER, *BASELINE_FILES) if baseline else (FLOWER,)
    with closing(RunFolder.new(out, early)) as folder:
        known = read_baseline(baseline, experiment) if baseline else None
        name = token_hex(8)
        beside: dict[str, Any] = {FLOWER: {"run": name, "engine": engine, "flower_run": grid.run.run_id}}
        if baseline and known is not None:
            beside |= baseline_files(baseline, known)
        return _run(_Network(grid, terms, watcher, collect, look, name), experiment, folder, beside, known)


def resume(
    grid: Grid, out: Path, watcher: RunWatcher, terms: Terms, collect: Collect = leave_models, look: Look = nobody
) -> Result:
    """Go on with a run from its last checkpoint; the sites go on from their own state."""
    with closing(reopen(out)) as folder:
        experiment, note = Experiment.load(out / CONFIG), read_note(out)
        beside = {FLOWER: {**note, "flower_run": grid.run.run_id}}
        network = _Network(grid, terms, watcher, collect, look, str(note["run"]))
        return _run(network, experiment, folder, beside, RunFiles(out).kept_baseline)


def reopen(out: Path) -> RunFolder:
    """The folder of a run over Flower that can be resumed as it is; UserError if it cannot."""
    if not (out / FLOWER).is_file() or not (out / CONFIG).is_file():
        raise UserError([f"{out}: should be the folder of a run over Flower, found no {FLOWER} or {CONFIG} in it"])
    folder = RunFolder.open(out)
    try:
        if (out / RESULT).exists():
            raise UserError([f"{out}: has come to its end"])
        written, checkpoint = Experiment.load(out / CONFIG).to_dict(), folder.checkpoint
        began = checkpoint.experiment.to_dict() if checkpoint else written
        if lines := [line for key in began for line in differences(key, began[key], written[key])]:
            raise UserError(f"{out / CONFIG}: {line}" for line in lines)
    except UserError:
        folder.close()
        raise
    return folder


def read_note(out: Path) -> dict[str, Any]:
    """What the folder of a run over Flower says of it: `run`, `engine`, and Flower's own number in `flower_run`."""
    note = RunFiles(out).flower_note
    assert note is not None
    return note


@dataclass(frozen=True)
class _Network:
    """What a run over Flower has beside its experiment and its folder."""

    grid: Grid
    terms: Terms
    watcher: RunWatcher
    collect: Collect
    look: Look  # at who was let in
    run: str  # its name, by which sites keep their state


def _run(
    network: _Network, experiment: Experiment, folder: RunFolder, beside: Mapping[str, Any], known: Scores | None
) -> Result:
    """The baseline, if it is trained along and not finished yet, and the run."""
    if known is None and experiment.baseline:
        local = experiment.with_method("local")
        known = finished_scores(folder.path / BASELINE_FOLDER, local)
        if known is None:
            with closing(RunFolder.at(folder.path / BASELINE_FOLDER)) as aside:
                folder.rewind(experiment, beside)
                aside.rewind(local)
                aside_network = replace(network, run=f"{network.run}baseline")
                known = _train(aside_network, Course(local, aside, folder.path), None).clients
    folder.rewind(experiment, beside)
    return _train(network, Course(experiment, folder, folder.path), known)


def _train(network: _Network, course: Course, baseline: Scores | None) -> Result:
    """Every round that is still to come, in a folder that has been rewound."""
    experiment, folder, watcher = course.experiment, course.folder, network.watcher
    fleet = FlowerFleet(network.grid, experiment, network.terms, network.run, folder.path)
    with Admissions(network.look, folder) as admissions:
        fleet.gather()
        watcher.started(experiment, _shards(fleet))
        server = (
            BlindServer(experiment, fleet)
            if experiment.secure_aggregation
            else Server(experiment.resolved_method, (), experiment.guard, Reach.of(experiment))
        )
        server.profiles = fleet.roll.known  # sites may join later
        checkpoint = course.checkpoint
        tell = _Tell(fleet, folder, watcher, admissions, set(checkpoint.clients) if checkpoint else set())
        # After every round: a site has the reply of its last round only, so the server must not fall behind.
        outcome = course.go(server, fleet, tell, checkpoint.progress if checkpoint else None, checkpoint_every=1)
    outcome = replace(outcome, missing={**fleet.absent, **outcome.missing})
    network.collect(network.run, folder.path)
    return course.conclude(outcome, baseline, "sites over Flower")


def _shards(fleet: FlowerFleet) -> dict[str, Shard]:
    """As many images as the sites say that they have; which they are is theirs to know."""
    samples = {name: profile.samples for name, profile in fleet.profiles.items()}
    return {spec.name: Shard(range(samples.get(spec.name, 0)), []) for spec in fleet.experiment.specs}


@dataclass
class _Tell:
    """Tells the folder and whoever watches, with bytes as they travelled and with the clients that were away."""

    fleet: FlowerFleet
    folder: RunFolder
    watcher: RunWatcher
    admissions: Admissions
    introduced: set[str]

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        self.watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        if reply.client not in self.introduced:
            self.introduced.add(reply.client)
            self.folder.events.introduced([self.fleet.roll.known[reply.client]])
        as_sent = _order_as_sent(order, self.fleet.terms), _reply_as_sent(reply, self.fleet.terms)
        self.folder.events.replied(*as_sent, beside=self.fleet.beside.pop(reply.client, (0, 0)))
        self.watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        self.admissions.write()
        away = {**self.fleet.roll.refused, **self.fleet.absent, **record.dropped}
        record = replace(record, refused={**record.refused, **away})
        self.folder.events.aggregated(round, record, seconds)
        self.watcher.aggregated(round, record, seconds)


def _row_as_sent(row: Tensor, terms: Terms) -> Tensor:
    """A stand-in of the size that the row had on the wire."""
    return torch.empty(row.shape, dtype=DTYPES[terms.wire], device="meta")


def _order_as_sent(order: Order, terms: Terms) -> Order:
    deliveries = {
        slot: replace(
            delivery,
            addends=tuple(replace(addend, row=_row_as_sent(addend.row, terms)) for addend in delivery.addends),
        )
        for slot, delivery in order.deliveries.items()
    }
    return replace(order, deliveries=deliveries)


def _reply_as_sent(reply: Reply, terms: Terms) -> Reply:
    return replace(reply, rows={slot: _row_as_sent(row, terms) for slot, row in reply.rows.items()})
