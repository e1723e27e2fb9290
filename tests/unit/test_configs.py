"""Every embedded experiment: at its real size without memory, and one short round of it in the small."""

from copy import deepcopy
from functools import cache

import pytest
import torch

from fedhca2.clients import Workplace
from fedhca2.configs import embedded_experiments
from fedhca2.data import ScenesData
from fedhca2.experiment import Experiment, OpenData, assign_shards, build, build_clients
from fedhca2.experiment.sources import read_config
from fedhca2.federation.server import Server
from fedhca2.messages import Order
from fedhca2.models import ModelConfig, MultiTaskModel, build_model
from fedhca2.tasks import TASKS
from small import clients, small

NAMES = [listing.name for listing in embedded_experiments()]
DOMAINS = {"pascal_context": "outdoor", "nyud": "indoor"}
TINY = {"fcn": {"name": "swin_micro"}, "deeplab": {"name": "test_resnet", "output_stride": 8}}


@cache
def parameters(model: ModelConfig, channels: tuple[tuple[str, int], ...], size: tuple[int, int]) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in MultiTaskModel(model, dict(channels), size).parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_client_can_be_built_at_its_real_size(name):
    experiment = Experiment.load(name, ["model.encoder.weights=none"])
    sizes = []
    for spec in experiment.specs:
        data = experiment.data[spec.data]
        channels = tuple((task, TASKS[task].channels_for(data.labels[task])) for task in spec.tasks)
        sizes.append(parameters(experiment.model, channels, data.size))
    papers = name.startswith(("fedhca2/", "matfl/")) or name == "scenes_full"
    assert all((size > 10_000_000) == papers for size in sizes)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("fedhca2/", "matfl/"))])
def test_the_papers_swin_has_stochastic_depth_and_their_resnet_none(name):
    encoder = Experiment.load(name, ["model.encoder.weights=none"]).model.encoder
    assert encoder.drop_path == (0.1 if encoder.name.startswith("swin_") else 0.0)


def in_the_small(name):
    """The experiment with a tiny encoder, few small scenes of the same tasks, and one epoch of one round."""
    values = read_config(name)
    model = values.get("model", {})
    drop_path = model.get("encoder", {}).get("drop_path", 0.0)
    encoder = {**TINY[model.get("decoder", "fcn")], "drop_path": drop_path}
    values["model"] = {**model, "encoder": encoder, "decoder_width": 8}
    values["training"] = {**values.get("training", {}), "batch_size": 1, "workers": 0}
    values["data"] = {key: as_scenes(data) for key, data in values["data"].items()}
    values["clients"] = [{**client, "epochs": 1} for client in values["clients"]]
    return Experiment.parse({**values, "rounds": 1})


def as_scenes(data):
    domain = DOMAINS.get(data["kind"]) or data["domain"]
    rest = {"partition": data["partition"]} if "partition" in data else {}
    return {"kind": "scenes", "domain": domain, "size": [32, 32], "train": 40, "val": 1} | rest


@cache
def scenes(domain):
    config = ScenesData(domain=domain, size=(32, 32), train=40, val=1)
    return OpenData(config.open("train"), config.open("val"))


@cache
def built(config, channels, size):
    return build_model(config, dict(channels), size, seed=0, client="a")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_short_round_trains_every_client(name, monkeypatch):
    def once(config, channels, size, **_):
        return deepcopy(built(config, tuple(channels.items()), size))

    monkeypatch.setattr(build, "build_model", once)
    experiment = in_the_small(name)
    data = {key: scenes(config.domain) for key, config in experiment.data.items()}
    shards = {key: first(shard) for key, shard in assign_shards(experiment, data).items()}
    clients = build_clients(experiment, data, shards, Workplace(torch.device("cpu")))
    server = Server(experiment.resolved_method, [client.profile for client in clients])
    uploads = experiment.resolved_method.uploads(0)
    replies = [client.perform(Order(0, {}, upload=uploads)) for client in clients]
    _, deliveries, record = server.step(server.start(), replies)
    for client in clients:
        client.perform(Order(1, deliveries[client.name], finish=True, train=False))
    finite = [p.isfinite().all() for client in clients for p in client.personal.model.parameters()]
    assert (all(finite), record.refused) == (True, {})


def first(shard):
    """A client's first training image alone."""
    return type(shard)(shard.train[:1], shard.val, shard.dealt)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["resnet18", "convnext_atto", "swin_mini"])
@pytest.mark.parametrize("batch_norm", ["local", "average", "recalibrate"])
def test_encoders_of_every_family_take_part_in_a_round(encoder, batch_norm):
    method = {"name": "fedhca2", "batch_norm": batch_norm}
    experiment = small(model={"encoder": {"name": encoder, "drop_path": 0.1}}, method=method)
    members = clients(experiment)
    server = Server(experiment.resolved_method, [client.profile for client in members.values()])
    replies = [
        client.perform(Order(0, {}, upload=experiment.resolved_method.uploads(0))) for client in members.values()
    ]
    _, deliveries, record = server.step(server.start(), replies)
    home = members["home"]
    home.perform(Order(1, deliveries["home"], finish=True, train=False))
    finite = all(value.isfinite().all() for value in home.personal.model.state_dict().values())
    assert (finite, record.refused) == (True, {})
