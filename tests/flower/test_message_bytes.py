"""The content of messages over Flower, and their size."""

import json

import pytest
import torch
from federations import SWIN, Federation, perform, small_experiment
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedhca2.federation.flower.records import OWN, encode_orders, header_of, pack, to_array, to_rows, unsalt
from fedhca2.federation.server import Server
from fedhca2.messages import Order

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def experiment():
    return small_experiment(rounds=2, model=SWIN)


def second_round(experiment, folder, **terms):
    """The grid after a round whose aggregate went out with the next orders, and those orders and replies."""
    found = Federation(experiment, folder)
    grid, fleet = found.grid, found.fleet(**terms)
    fleet.gather()
    server = Server(experiment.resolved_method, fleet.profiles.values())
    replies = perform(fleet)
    _, deliveries, _ = server.step(server.start(), replies.values())
    grid.down.clear()
    grid.up.clear()
    upload = experiment.resolved_method.uploads(1)
    orders = {name: Order(1, deliveries[name], upload=upload) for name in fleet.profiles}
    return grid, orders, fleet.perform(orders, lambda *_: None)


def array_bytes(message):
    arrays = [array for record in message.content.array_records.values() for array in record.values()]
    return sum(len(unsalt(array.data)) for array in arrays)


@pytest.fixture(scope="module")
def full(experiment, tmp_path_factory):
    """A second round with the default wire format: the grid, the orders and the replies."""
    return second_round(experiment, tmp_path_factory.mktemp("full"))


def test_a_message_holds_the_bytes_that_the_report_says(full):
    grid, orders, replies = full
    scales = sum(8 * len(a.scale) for o in orders.values() for d in o.deliveries.values() for a in d.addends)
    assert sum(map(array_bytes, grid.down)) == sum(order.nbytes for order in orders.values()) - scales
    rows = [row for reply in replies.values() for row in reply.rows.values()]
    assert sum(map(array_bytes, grid.up)) == sum(row.nbytes for row in rows)


@pytest.mark.parametrize("named", [True, False])
def test_a_site_hears_nothing_of_others_in_any_message(named, tmp_path):
    values = small_experiment(
        title="of the coordinator", participation={"availability": {"home": 1.0}}, guard={"images": {"home": 77777}}
    )
    federation = Federation(values, tmp_path)
    grid, fleet = federation.grid, federation.fleet(named=named)
    fleet.gather()
    perform(fleet)
    names = {node: name for node, (name, _) in grid.apps.items()}
    headers = dict.fromkeys(names.values(), "")
    for message in grid.down:
        headers[names[message.metadata.dst_node_id]] += json.dumps(header_of(message.content))
    others = ("outdoor-normals", "home", "indoor", "depth", "normals", "availability", "77777", "coordinator")
    assert [word for word in others if word in headers["outdoor-semseg"]] == []
    assert [word for word in ("outdoor", "semseg", "availability", "77777") if word in headers["home"]] == []


def test_heads_and_paths_are_in_no_message(full):
    grid, _, _ = full
    text = "".join(json.dumps(header_of(message.content)) for message in grid.down + grid.up)
    assert "head" not in text.replace('"head":', "")
    assert "/" not in text


def test_bfloat16_halves_the_bytes_and_keeps_eight_bits_of_every_number(experiment, full, tmp_path):
    grid, _, _ = second_round(experiment, tmp_path, wire="bfloat16")
    assert 2 * sum(map(array_bytes, grid.down)) == sum(map(array_bytes, full[0].down))
    row = torch.randn(1000)
    sent = to_rows(pack({}, {OWN: to_array([row], "bfloat16")}))[OWN]
    assert ((sent - row).abs() <= row.abs() / 2**8).all()


def test_nobody_can_know_the_name_of_an_object_before_it_is_sent(full):
    """A site that did could announce it first, and keep it from the others."""
    contents = [encode_orders(full[1], "float32", {}).values() for _ in range(2)]
    once, again = ({name for content in each for name in get_all_nested_objects(content)} for each in contents)
    assert not once & again
