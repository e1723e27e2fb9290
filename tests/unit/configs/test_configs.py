"""Every built-in experiment: at full size on the meta device, and one short round of a small version."""

import json
from functools import cache
from itertools import combinations, product

import pytest
import torch

from fedhca2.clients import DeviceSlot
from fedhca2.configs import built_in_names
from fedhca2.data import ScenesData
from fedhca2.experiment import Experiment, OpenData, assign_shards
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.server import Server
from fedhca2.messages import Order
from fedhca2.models import ModelConfig, MultiTaskModel
from fedhca2.params import Slot
from fedhca2.tasks import TASKS
from in_the_small import SCENES, in_the_small
from small import SMALL, clients, small

NAMES = [name for name in built_in_names() if not name.startswith(("earth", "molecules"))]  # whose data is in an extra


@cache
def parameters(model: str, channels: tuple[tuple[str, int], ...], size: tuple[int, int]) -> dict[Slot, int]:
    """The numbers of parameters of a model with all tasks of a data set, by slot."""
    with torch.device("meta"):
        built = MultiTaskModel(ModelConfig.model_validate_json(model), dict(channels), size)
    return {slot: sum(tensor.numel() for tensor in tensors.values()) for slot, tensors in built.slots().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_client_can_be_built_at_its_real_size(name):
    experiment = Experiment.load(name, ["model.encoder.weights=none"])
    sizes = []
    for spec in experiment.specs:
        data = experiment.data[spec.data]
        channels = tuple(
            (task, TASKS[task].channels_for(space)) for task, space in data.labels.items() if task in TASKS
        )
        slots = parameters(spec.model.model_dump_json(), channels, data.size)
        sizes.append(sum(size for slot, size in slots.items() if slot.task in ("", *spec.tasks)))
    papers = name.startswith(("fedhca2/", "matfl/")) or name == "scenes_full"
    assert all((size > 10_000_000) == papers for size in sizes)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("fedhca2/", "matfl/"))])
def test_the_papers_swin_has_stochastic_depth_and_their_resnet_none(name):
    encoder = Experiment.load(name, ["model.encoder.weights=none"]).model.encoder
    assert encoder.drop_path == (0.1 if encoder.name.startswith("swin_") else 0.0)


@cache
def scenes(domain, tasks):
    config = ScenesData(domain=domain, **SCENES)
    return OpenData(config.open("train", tasks), config.open("val", tasks))


ROUNDS = {}  # by what they train


def two_copies(entry):
    """A line of an experiment's clients, with at most two of a kind."""
    return {**entry, "copies": min(entry.get("copies", 1), 2)}


def shared_round(experiment):
    """Run such a round once for all experiments that differ only in names and numbers."""
    values = {key: value for key, value in experiment.to_dict().items() if key not in ("name", "title", "belongs_to")}
    key = str(json.loads(json.dumps(values), parse_float=lambda _: None, parse_int=lambda _: None))
    if key not in ROUNDS:
        ROUNDS[key] = short_round(experiment)
    return ROUNDS[key]


def short_round(experiment):
    """Run a round of a small version of an experiment; return its clients, what they sent and got, and the record."""
    data = {key: scenes(config.domain, experiment.task_set) for key, config in experiment.data.items()}
    shards = {key: first(shard) for key, shard in assign_shards(experiment, data).items()}
    clients = [plan.build() for plan in plan_clients(experiment, data, shards, DeviceSlot(torch.device("cpu")))]
    server = Server(experiment.resolved_method, [client.profile for client in clients])
    uploads = {client.name: server.uploads(client.name, 0) for client in clients}
    replies = [client.perform(Order(0, {}, upload=uploads[client.name])) for client in clients]
    _, deliveries, record = server.step(server.start(), replies)
    for client in clients:
        client.perform(Order(1, deliveries[client.name], finish=True, train=False))
    return clients, uploads, deliveries, record


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_short_round_trains_every_client(name):
    clients, uploads, deliveries, record = shared_round(in_the_small(name, two_copies))
    finite = [p.isfinite().all() for client in clients for p in client.personal.model.parameters()]
    assert (all(finite), record.refused) == (True, {})
    for client in clients:
        sent = {slot for slot in client.layouts if slot.part in uploads[client.name]}
        assert set(deliveries[client.name]) == sent


@pytest.mark.slow
def test_the_clusters_of_mat_fl_share_encoders_with_their_running_statistics():
    clients, _, _, record = shared_round(in_the_small("matfl/table1/five-clusters", two_copies))
    (blend,) = record.aggregations[0].mixing.blends
    cluster = dict(zip(record.aggregations[0].members, blend.gets, strict=True))
    rows = {client.name: client.rows([Slot("encoder"), Slot("encoder_norms")]) for client in clients}
    for one, other in combinations(clients, 2):
        pairs = zip(rows[one.name].values(), rows[other.name].values(), strict=True)
        together = cluster[one.name] == cluster[other.name]
        assert [torch.equal(*pair) for pair in pairs] == [together, together]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("matfl/")])
def test_experiments_of_mat_fl_train_as_its_released_code(name):
    experiment = Experiment.load(name)
    optimizer = {"kind": "adam", "amsgrad": True, "reset": "every_round"}
    assert experiment.training.optimizer.model_dump(exclude_defaults=True) == optimizer
    assert (experiment.training.loss_weights, experiment.training.weight_decay) == (False, 1e-4)
    assert experiment.metrics == {"sal": "miou_of_images"}
    assert ("encoder_norms" in experiment.resolved_method.uploads(0)) == (name != "matfl/figure2")  # which has no mean


def first(shard):
    """Only a client's first two training images: no less fill a batch of every experiment."""
    return type(shard)(shard.train[:2], shard.val, shard.dealt)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "batch_norm"),
    [*product(["resnet18"], ["local", "average", "recalibrate"]), ("convnext_atto", "average"), ("swin_mini", "local")],
)  # of these only ResNet has BatchNorm
def test_encoders_of_every_family_take_part_in_a_round(encoder, batch_norm):
    method = {"name": "fedhca2", "batch_norm": batch_norm}
    data = {key: {**value, "train": 4, "val": 1} for key, value in SMALL["data"].items()}
    experiment = small(model={"encoder": {"name": encoder, "drop_path": 0.1}}, method=method, data=data)
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
