"""Properties of every method in the catalogue, with real clients that train."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from math import isfinite

import pytest
import torch
from array_federation import SCENARIOS, SHARED
from real_federation import MIXED, assign_shards, clients_of, data, experiment_of, federate, federated
from torch import Tensor

from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.methods import METHODS
from fedhca2.params import PARTS
from fedhca2.run_folder.records import Watcher
from small import MECHANISMS, unifying
from tiny_encoder import TINY

ROUNDS = 2
every_method = pytest.mark.parametrize("name", MECHANISMS)


def changed(records, first, second):
    """The parts in which some slot of some client has different values at the second of these moments."""
    rows = [(getattr(record, first), getattr(record, second)) for record in records]
    return {slot.part for before, after in rows for slot in before if not torch.equal(before[slot], after[slot])}


def records_of(fleet, round):
    return [records[round] for records in fleet.records.values()]


def changed_by_server(fleet):
    return [changed(records_of(fleet, round), "before", "received") for round in (1, 2)]


def final(fleet, kind="personal"):
    return {
        (name, slot): row for name, records in fleet.records.items() for slot, row in getattr(records[-1], kind).items()
    }


def assert_identical(actual, expected):
    assert actual.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(actual[key], expected[key])] == []


@pytest.mark.slow
@every_method
def test_the_server_changes_the_shared_parts_and_no_other(name):
    keeps_its_own = METHODS[name].local.anchor == "received"  # FedAMP continues from its own model
    assert changed_by_server(federated(name)) == [set() if keeps_its_own else SHARED[name]] * ROUNDS


def test_decoders_and_heads_of_a_task_become_equal_in_unifying_rounds_alone():
    fleet = federated("fedsta", **unifying(every=2))
    assert changed_by_server(fleet) == [{"encoder"}, {"encoder", "decoder", "head"}]
    road, street = fleet.records["road"][2].received, fleet.records["street"][2].received
    assert {slot.part for slot in road if not torch.equal(road[slot], street[slot])} == {"decoder_norms"}


@every_method
def test_training_changes_all_that_is_not_frozen(name):
    trained = set(PARTS) - {"encoder_norms"} - METHODS[name].local.frozen  # the encoder has no running statistics
    actual = [changed(records_of(federated(name), round), "received", "after") for round in range(ROUNDS)]
    assert actual == [trained] * ROUNDS


def equal_slots(one, other):
    """The parts in which two clients with the same task have equal rows."""
    return {slot.part for slot in one if torch.equal(one[slot], other[slot])}


@every_method
def test_clients_of_a_task_start_with_equal_frozen_parts_and_their_own_others(name):
    records = federated(name).records
    equal = {"encoder", "decoder_norms"} | METHODS[name].local.frozen  # statistics of no image are all the same
    assert equal_slots(records["road"][0].before, records["street"][0].before) == equal


@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in MECHANISMS), ("fedhca2", {"final_epochs": 1})])
def test_only_methods_with_final_epochs_train_after_the_last_round(name, settings):
    tuned = set(PARTS) - {"encoder_norms"} if settings or METHODS[name].local.final_epochs else set()
    assert changed(records_of(federated(name, **settings), ROUNDS), "received", "after") == tuned


@pytest.mark.parametrize(
    ("name", "settings", "kind", "other"),
    [
        ("fedsta", {}, "personal", "fedper"),
        ("fedhca2", {"alpha": 0, "beta": 0, "learn": False}, "personal", "local"),
        ("fedprox", {"mu": 0}, "personal", "fedavg"),
        ("fedamp", {"lam": 0}, "personal", "local"),
        ("ditto", {"lam": 0}, "personal", "local"),
        ("ditto", {}, "after", "fedavg"),
    ],
)
def test_with_these_settings_a_model_is_that_of_another_method_to_the_last_bit(name, settings, kind, other):
    actual, expected = federated(name, **settings), federated(other)
    assert_identical(final(actual, kind), final(expected, kind))
    scores = [[record.reply.metrics for record in records_of(each, ROUNDS)] for each in (actual, expected)]
    assert (scores[0] == scores[1]) == (kind == "personal")  # scores are those of the personal model


def test_fedbn_sends_no_normalisation_layer_and_keeps_its_own():
    fleet, plain = federated("fedbn"), federated("fedavg")
    for client, records in fleet.records.items():
        layouts = fleet.clients[client].layouts
        names = [name for slot, layout in layouts.items() for name in layout.names if "norms" not in slot.part]
        assert not [name for name in names if "norm" in name]
        assert records[0].reply.nbytes < plain.records[client][0].reply.nbytes
        norms = fleet.clients[client].personal.model.stays
        assert norms
        trained = dict(fleet.clients[client].personal.model.named_parameters())
        first = dict(clients_of("fedbn")[list(fleet.records).index(client)].personal.model.named_parameters())
        assert any(not torch.equal(trained[name], first[name]) for name in norms)


@pytest.mark.slow
@every_method
def test_the_order_of_clients_does_not_matter(name):
    shards = assign_shards(experiment_of(name), data())
    assert_identical(final(federate(name, MIXED[::-1], shards=shards)), final(federated(name)))


def walk(message):
    """All tensors and numbers in a message, however deep."""
    if isinstance(message, Tensor | float):
        yield message
    elif is_dataclass(message):
        for field in fields(message):
            yield from walk(getattr(message, field.name))
    elif isinstance(message, Mapping):
        yield from walk(tuple(message.values()))
    elif isinstance(message, tuple | list):
        for item in message:
            yield from walk(item)


def size_of(message):
    """Bytes of a message: for each tensor all memory that it would carry, and 8 for each number."""
    return sum(item.untyped_storage().nbytes() if isinstance(item, Tensor) else 8 for item in walk(message))


@every_method
def test_messages_hold_exactly_the_bytes_that_they_say(name):
    records = [record for records in federated(name).records.values() for record in records]
    assert [record.order.nbytes for record in records] == [size_of(record.order) for record in records]
    assert [record.reply.nbytes for record in records] == [
        size_of(record.reply) - size_of(record.reply.seconds) for record in records
    ]


@every_method
def test_nothing_but_the_shared_parts_is_in_a_reply(name):
    """No head, no optimiser state and no data: every tensor is a row of a part that the method shares."""
    fleet = federated(name)
    for client, records in fleet.records.items():
        layouts = fleet.profiles[client].layouts
        shared = [layout.numel for slot, layout in layouts.items() if slot.part in SHARED[name]]
        for record in records[:ROUNDS]:
            tensors = [item.numel() for item in walk(record.reply) if isinstance(item, Tensor)]
            assert sorted(tensors) == sorted(shared)
    for record in records_of(fleet, 0) if name in ("fedhca2", "fedavg") else ():
        for slot, row in record.reply.rows.items():
            start = record.received[slot] if METHODS[name].encoder.sends == "updates" else torch.zeros_like(row)
            assert torch.equal(row, record.after[slot] - start)


ENCODERS = {"plain": TINY, "wide": "test_resnet", "deep": "swin_micro"}
OUTDOOR = ("semseg", "human_parts", "sal", "normals", "edge")
INDOOR = ("semseg", "depth", "normals", "edge")


class Refusals(Watcher):
    """Records what the server could not use."""

    def __init__(self):
        self.refused = {}

    def aggregated(self, round, record, seconds):
        self.refused |= record.refused


def clients_in(scenario):
    """The clients of a scenario; one with every task has all tasks that its data set has labels for."""
    sites = [(site.dataset, site.tasks, ENCODERS[site.encoder]) for site in SCENARIOS[scenario]]
    if scenario == "a client with every task":
        sites[0] = ("outdoor", OUTDOOR, TINY)
        sites.append(("indoor", INDOOR, TINY))
    return tuple((f"c{i}", *site) for i, site in enumerate(sites))


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in MECHANISMS if name != "fedhca2"]


@pytest.mark.parametrize("name", ["fedhca2", *OTHERS])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_method_runs_in(name, scenario):
    rounds, brief = 2 if name == "fedhca2" else 1, {"final_epochs": 1} if METHODS[name].local.final_epochs else {}
    method, clients = {"name": name, **brief}, clients_in(scenario)
    experiment = experiment_of(method, clients, rounds)
    # Two steps each: methods that pull do so from the second on.
    shards = {name: replace(shard, train=shard.train[:4]) for name, shard in assign_shards(experiment, data()).items()}
    fleet, watcher = InProcess(clients_of(method, clients, rounds, shards)), Refusals()
    server = Server(experiment.resolved_method, fleet.profiles.values())
    scores = run_rounds(server, fleet, rounds, 0, watcher).scores
    assert not watcher.refused
    assert {name: tuple(tasks) for name, tasks in scores.items()} == {name: tasks for name, _, tasks, _ in clients}
    values = [value for tasks in scores.values() for metrics in tasks.values() for value in metrics.values()]
    assert all(map(isfinite, values))
