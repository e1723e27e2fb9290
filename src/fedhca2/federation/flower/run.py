"""One run over a network, from an experiment to its folder at the coordinator."""

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any

import torch
from flwr.serverapp.grid import Grid
from torch import Tensor

from fedhca2.experiment import ConfigError, Experiment, Shard
from fedhca2.federation.checkpoints import Checkpoints
from fedhca2.federation.flower.fleet import FlowerFleet
from fedhca2.federation.flower.records import DTYPES
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.result import Result, Scores, finished_scores, overall_gain, read_baseline, versions
from fedhca2.federation.rounds import Progress, run_rounds
from fedhca2.federation.run import RunWatcher
from fedhca2.federation.run_folder import RunFolder
from fedhca2.federation.server import Server, ServerRecord
from fedhca2.federation.stopping import Interrupted, stop_between_rounds
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
    with closing(RunFolder(out, experiment)) as folder:
        folder.save_json(NOTE, {"run": token_hex(8), "engine": engine, "flower_run": grid.run.run_id})
        if known is not None:
            folder.save_json("baseline.json", known)
        return _run(grid, experiment, folder, watcher, terms, known)


def resume(grid: Grid, out: Path, watcher: RunWatcher, terms: Terms) -> Result:
    """Go on with a run from its last checkpoint; the sites go on from their own state."""
    if not (out / NOTE).is_file():
        raise ConfigError([f"{out}: should be the folder of a run over Flower, found no {NOTE} in it"])
    if (out / "result.json").exists():
        raise ConfigError([f"{out}: has come to its end"])
    experiment = Experiment.load(out / "config.yaml")
    known = json.loads((out / "baseline.json").read_text("utf-8")) if (out / "baseline.json").exists() else None
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
                fleet = FlowerFleet(grid, local, terms, f"{name}baseline")
                known = _train(fleet, aside, watcher, None, folder.path).clients
    return _train(FlowerFleet(grid, experiment, terms, name), folder, watcher, known, folder.path)


def _train(fleet: FlowerFleet, folder: RunFolder, watcher: RunWatcher, baseline: Scores | None, run: Path) -> Result:
    """Every round that is still to come; `run` is what to resume if it is interrupted."""
    began = perf_counter()
    experiment = fleet.experiment
    checkpoints = Checkpoints(folder.path / "checkpoints", experiment.checkpoints.keep)
    checkpoint = checkpoints.latest()
    progress, seconds = (checkpoint.progress, checkpoint.notes["seconds"]) if checkpoint else (None, 0.0)
    folder.rewind(checkpoint.notes if checkpoint else {"events": 0, "bytes_up": 0, "bytes_down": 0})
    fleet.gather()
    watcher.started(experiment, _shards(fleet))
    server = Server(experiment.resolved_method, (), experiment.guard)
    server.profiles = fleet.known  # sites may join later
    tell = _Tell(fleet, folder, watcher, set(checkpoint.clients) if checkpoint else set())

    def choose(names: Iterable[str], round: int) -> list[str]:
        return experiment.participation.choose(names, round, experiment.seed)

    with stop_between_rounds() as stopping:

        def passed(progress: Progress) -> None:
            # After every round: a site has the reply of its last round only, so the server must not fall behind.
            checkpoints.save(progress, fleet, {**folder.position(), "seconds": seconds + perf_counter() - began})
            if stopping.signal:
                raise Interrupted(stopping.signal, run, progress.state.round)

        scores = run_rounds(
            server,
            fleet,
            experiment.rounds,
            experiment.evaluate_every,
            tell,
            choose=choose,
            progress=progress,
            passed=passed,
        )
    if fleet.absent:
        folder.log("absent", round=experiment.rounds, clients=fleet.absent)
    result = Result(
        name=experiment.name,
        method=experiment.method_name,
        rounds=experiment.rounds,
        seed=experiment.seed,
        clients=scores,
        baseline=baseline,
        delta_m=_gain(scores, baseline),
        seconds=seconds + perf_counter() - began,
        bytes={"up": folder.bytes_up, "down": folder.bytes_down},
        versions=versions(),
        device="sites over Flower",
    )
    folder.finish(result.to_dict())
    checkpoints.prune(1)
    return result


def _gain(scores: Scores, baseline: Scores | None) -> float | None:
    """Δm over the clients that were there to be evaluated both times."""
    both = scores.keys() & (baseline or {}).keys()
    if not baseline or not both:
        return None
    return overall_gain({name: scores[name] for name in both}, {name: baseline[name] for name in both})


def _shards(fleet: FlowerFleet) -> dict[str, Shard]:
    """As many images as the sites say that they have; which they are is theirs to know."""
    samples = {name: profile.samples for name, profile in fleet.profiles.items()}
    return {spec.name: Shard(list(range(samples.get(spec.name, 0))), []) for spec in fleet.experiment.specs}


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
            self.folder.introduced([self.fleet.known[reply.client]])
        self.folder.replied(_order_as_sent(order, self.fleet.terms), _reply_as_sent(reply, self.fleet.terms))
        self.watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        away = {**self.fleet.refused, **self.fleet.absent}
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
