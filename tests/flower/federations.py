"""Small federations for the tests: three sites, one with several tasks."""

import json
from pathlib import Path

import pytest
import torch
from in_process_grid import InProcessGrid

from fedhca2.clients import DeviceSlot
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.site_config import SiteConfig, SiteSums
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.fleet import FlowerEngine, FlowerFleet
from fedhca2.federation.flower.records import header_of, pack
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.guard import Guard
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.run import resume, run
from fedhca2.federation.server import Server
from fedhca2.messages import Order
from fedhca2.run_folder.records import Watcher
from fedhca2.run_folder.writer import RunFolder
from tiny_encoder import TINY

CPU = torch.device("cpu")
TERMS = {"poll": 0.001, "deadline": 60}
# For processes, which do not know the tests' own encoder, and where numbers of bytes matter.
SWIN = {"encoder": {"name": "swin_micro", "drop_path": 0.2}, "decoder_width": 8}


def small_experiment(**changes) -> Experiment:
    values = {
        "name": "small",
        "rounds": 2,
        "method": {"name": "fedhca2"},
        "model": {"encoder": {"name": TINY, "drop_path": 0.2}, "decoder_width": 8},
        "training": {"batch_size": 2, "learning_rate": 1e-3, "schedule": {"warmup_epochs": 0}},
        "data": {
            "outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 4, "val": 1},
            "indoor": {"kind": "scenes", "domain": "indoor", "size": [32, 32], "train": 2, "val": 1},
        },
        "clients": [
            {"data": "outdoor", "split": ["semseg", "normals"]},
            {"name": "home", "data": "indoor", "tasks": ["depth", "normals"]},
        ],
    }
    return Experiment.parse(values | changes)


PROCESSES = {
    "road": {"data": "outdoor", "tasks": ["semseg"]},
    "home": {"data": "indoor", "tasks": ["depth", "normals"]},
    "shop": {"data": "indoor_too", "tasks": ["normals"]},
    "thrifty": {"data": "outdoor_too", "tasks": ["semseg"]},
}


def processes_of(*names, epochs=1, **changes) -> Experiment:
    """An experiment for sites that are processes.

    Every client has its own data set, so that its images do not depend on who else takes part.
    """
    clients = [{"name": name, "epochs": epochs, **PROCESSES[name]} for name in names]
    scenes, data = {"kind": "scenes", "size": [32, 32], "train": 2, "val": 1}, {}
    for client in clients:
        own = {"kind": "lists", "lists": {client["name"]: [0, 1]}}
        data[client["data"]] = {**scenes, "domain": client["data"].removesuffix("_too"), "partition": own}
    return small_experiment(model=SWIN, data=data, clients=clients, **changes)


def site_configs(experiment: Experiment, folder: Path) -> dict[str, SiteConfig]:
    """Sites with the images that the experiment's partition gives their clients, which also share heads."""
    shards = assign_shards(experiment, open_data(experiment))
    return {
        spec.name: SiteConfig(
            client=spec.name,
            tasks=spec.tasks,
            state=folder,
            data={"partition": {"kind": "lists", "lists": {spec.name: list(shards[spec.name].dealt)}}},
            share=("encoder", "decoder", "head"),
            encoders=(spec.model.encoder.name,),
            sums=SiteSums(rows=2),
            device="cpu",
        )
        for spec in experiment.specs
    }


def in_memory(experiment, without=""):
    """Models and scores of the same experiment in one process, perhaps without a client."""
    data = open_data(experiment)
    plans = plan_clients(experiment, data, assign_shards(experiment, data), DeviceSlot(CPU))
    clients = [plan.build() for plan in plans if plan.profile.client != without]
    fleet = InProcess(clients)
    server = Server(experiment.resolved_method, fleet.profiles.values())
    guard = Guard(server, tasks=experiment.task_set)
    outcome = run_rounds(server, fleet, experiment.rounds, 0, Watcher(), guard=guard)
    return {client.name: client.personal.model.state_dict() for client in clients}, outcome.scores


class Federation:
    """The sites of an experiment in this process, the grid in front of them, and a folder for a run over them."""

    def __init__(self, experiment, folder):
        self.experiment, self.folder, self.out = experiment, folder, folder / "run"
        self.sites = {name: Site(config) for name, config in site_configs(experiment, folder / "sites").items()}
        self.grid = InProcessGrid({name: make_app(site) for name, site in self.sites.items()})

    def set_up(self, name, **changes):
        """Change a site's file."""
        self.sites[name].config = self.sites[name].config.model_copy(update=changes)

    def fleet(self, **terms):
        """A fleet in front of the sites, which has not met them, in a folder without a run."""
        return fleet_of(self.grid, self.experiment, self.folder, **terms)

    def run(self, watcher=None, **options):
        """The result of a run."""
        return run_over(self.grid, self.experiment, self.out, watcher, **options)

    def resume(self, watcher=None, **options):
        return resume(self.out, watcher=watcher or Watcher(), engine=engine_of(self.grid, **options))

    @property
    def models(self):
        return {name: site.client.personal.model.state_dict() for name, site in self.sites.items()}

    @property
    def events(self):
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]


def fleet_of(grid, experiment, folder, **terms):
    """The sites behind a grid, in a folder without a run."""
    return FlowerFleet(engine_of(grid, **terms), experiment, "run1", RunFolder(folder, (), None, None), {})


def engine_of(grid, collect=None, list_nodes=tuple, **terms):
    return FlowerEngine(grid, NetworkSettings(**TERMS | terms), collect=collect, list_nodes=list_nodes)


def run_over(grid, experiment, out, watcher=None, **options):
    """The result of a run over a grid, in a folder of its own."""
    return run(experiment, out, watcher=watcher or Watcher(), engine=engine_of(grid, **options))


def cut_off(experiment, folder, fails_in=1):
    """A federation whose server and sites all crashed in a round of their run."""
    with pytest.raises(PowerCutError):
        Federation(experiment, folder).run(Watching(fails_in))
    return Federation(experiment, folder)


def assert_as_in_one_process(federation, result, expected=None):
    """Models and scores are those of a run in one process, bit for bit."""
    models, scores = expected or in_memory(federation.experiment)
    assert result.clients == scores
    assert_equal(federation.models, models)


class PowerCutError(Exception):
    pass


class Watching(Watcher):
    """Simulates a power failure at the end of a round, before its checkpoint."""

    def __init__(self, fails_in=None):
        self.fails_in = fails_in

    def aggregated(self, round, *_):
        if round == self.fails_in:
            raise PowerCutError


def orders_for(fleet, round=0):
    upload = fleet.experiment.resolved_method.uploads(round)
    return {name: Order(round, upload=upload) for name in fleet.profiles}


def perform(fleet, round=0):
    """The replies of a round in which nothing is delivered."""
    return fleet.perform(orders_for(fleet, round), lambda *_: None)


class After:
    """Does something to a grid once it has been asked for its nodes this many times."""

    def __init__(self, grid, times, change):
        self.times, self.change, self.nodes = times, change, grid.get_nodes
        grid.get_nodes = self

    def __call__(self):
        self.times -= 1
        if self.times == 0:
            self.change()
        return self.nodes()


def altered(change, app, kind):
    """An app whose answers of one kind have a changed header.

    :param change: other values, or a function of the headers of a message and its answer that returns them.
    """

    def attempt(message, context):
        if message.metadata.message_type != kind:
            return app(message, context)
        reply = app(message, context)
        own = header_of(reply.content)
        reply.content.update(pack(own | (change(header_of(message.content), own) if callable(change) else change)))
        return reply

    return attempt


def failing(app, when, why="the disk is full"):
    """An app that fails at messages of which this is true."""

    def attempt(message, context):
        if when(message):
            raise RuntimeError(why)
        return app(message, context)

    return attempt


def is_order(message):
    return message.metadata.message_type == "train"


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def peak():
    """The peak memory of this process in MiB, since it was reset."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def assert_equal(found, expected):
    """Every client's tensors are the same, bit for bit."""
    for client, tensors in expected.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, found[client][name]), (client, name)
