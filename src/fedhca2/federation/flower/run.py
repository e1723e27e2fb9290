"""One run over a network, from an experiment to its folder at the coordinator."""

import json
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from flwr.serverapp.grid import Grid
from torch import Tensor

from fedhca2.experiment import ConfigError, Experiment, Shard
from fedhca2.federation.course import Course
from fedhca2.federation.flower.fleet import FlowerFleet
from fedhca2.federation.flower.records import DTYPES
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.result import Result, Scores, baseline_files, finished_scores, kept_baseline, read_baseline
from fedhca2.federation.run import RunWatcher
from fedhca2.federation.run_folder import RunFolder
from fedhca2.federation.server import Server, ServerRecord
from fedhca2.messages import Order, Reply

NOTE = "flower.json"  # in the run's folder: what sites keep their state by


def run(
    grid: Grid,
    experiment: Experiment,
    out: Path,
    watcher: RunWatcher,
    terms: Terms,
    baseline: Path | None = None,
    engine: str = "flower",
) -> Result:
    """Train with the sites that this grid reaches, and write the run's folder. Models stay at their sites."""
    known = read_baseline(baseline, experiment) if baseline else None
    beside = {NOTE: {"run": token_hex(8), "engine": engine, "flower_run": grid.run.run_id}}
    if baseline and known is not None:
        beside |= baseline_files(baseline, known)
    with closing(RunFolder(out, experiment, beside=beside)) as folder:
        return _run(grid, experiment, folder, watcher, terms, known)


def resume(grid: Grid, out: Path, watcher: RunWatcher, terms: Terms) -> Result:
    """Go on with a run from its last checkpoint; the sites go on from their own state."""
    if not (out / NOTE).is_file():
        raise ConfigError([f"{out}: should be the folder of a run over Flower, found no {NOTE} in it"])
    if (out / "result.json").exists():
        raise ConfigError([f"{out}: has come to its end"])
    experiment = Experiment.load(out / "config.yaml")
    known = kept_baseline(out)
    with closing(RunFolder(out, experiment, resume=True)) as folder:
        folder.save_json(NOTE, {**read_note(out), "flower_run": grid.run.run_id})
        return _run(grid, experiment, folder, watcher, terms, known)


def read_note(out: Path) -> dict[str, Any]:
    """What the folder of a run over Flower says of it: `run`, `engine`, and Flower's own number in `flower_run`."""
    note: dict[str, Any] = json.loads((out / NOTE).read_text("utf-8"))
    return note


def _run(
    grid: Grid, experiment: Experiment, folder: RunFolder, watcher: RunWatcher, terms: Terms, known: Scores | None
) -> Result:
    """The baseline, if it is trained along and not finished yet, and the run."""
    name = str(read_note(folder.path)["run"])
    if known is None and experiment.baseline:
        local = experiment.with_method("local")
        known = finished_scores(folder.path / "baseline", local)
        if known is None:
            with closing(RunFolder(folder.path / "baseline", local, resume=True)) as aside:
                fleet = FlowerFleet(grid, local, terms, f"{name}baseline", aside.path)
                known = _train(fleet, aside, watcher, None, folder.path).clients
    return _train(FlowerFleet(grid, experiment, terms, name, folder.path), folder, watcher, known, folder.path)


def _train(fleet: FlowerFleet, folder: RunFolder, watcher: RunWatcher, baseline: Scores | None, run: Path) -> Result:
    """Every round that is still to come; `run` is what to resume if it is interrupted."""
    experiment = fleet.experiment
    course = Course(experiment, folder, run)
    fleet.gather()
    watcher.started(experiment, _shards(fleet))
    server = Server(experiment.resolved_method, (), experiment.guard)
    server.profiles = fleet.roll.known  # sites may join later
    checkpoint = course.checkpoint
    tell = _Tell(fleet, folder, watcher, set(checkpoint.clients) if checkpoint else set())
    # After every round: a site has the reply of its last round only, so the server must not fall behind.
    outcome = course.go(server, fleet, tell, checkpoint.progress if checkpoint else None, checkpoint_every=1)
    outcome = replace(outcome, missing={**fleet.absent, **outcome.missing})
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
    introduced: set[str]

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        self.watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        if reply.client not in self.introduced:
            self.introduced.add(reply.client)
            self.folder.introduced([self.fleet.roll.known[reply.client]])
        self.folder.replied(_order_as_sent(order, self.fleet.terms), _reply_as_sent(reply, self.fleet.terms))
        self.watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        away = {**self.fleet.roll.refused, **self.fleet.absent}
        record = replace(record, refused={**record.refused, **away})
        self.folder.aggregated(round, record, seconds)
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
