"""Replies that miss their round join a later one, with less weight, and nobody waits for them."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from fedhca2.aggregation import Mixing
from fedhca2.errors import UserError
from fedhca2.experiment import LateReplies
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.messages import Profile, Reply
from fedhca2.methods import Blend, resolve
from fedhca2.params import Layout, Slot
from fedhca2.run_folder.checkpoints import progress_as_state, progress_from_state
from fedhca2.run_folder.records import Progress, Watcher
from small import small

ENCODER = Slot("encoder")
PROFILES = {name: Profile(name, "d", ("edge",), 1, {ENCODER: Layout(("a.weight",), ((2,),))}) for name in "abc"}


class Sites:
    """Clients that send the number of their order's round, in every value."""

    profiles, absent = PROFILES, {}

    def __init__(self):
        self.orders = []

    def perform(self, orders, watch):
        self.orders.append({name: order.round for name, order in orders.items()})
        self.last = orders
        return {
            name: Reply(name, order.round, {ENCODER: torch.full((2,), 1.0 + order.round)} if order.train else {})
            for name, order in orders.items()
        }


class Records(Watcher):
    def __init__(self):
        self.found = []

    def aggregated(self, round, record, seconds):
        self.found.append(record)


def federate(method="fedper", rounds=5, **late):
    fleet, watcher = Sites(), Records()
    server = Server(resolve(method), PROFILES.values(), late=LateReplies(**late) if late else None)
    run_rounds(server, fleet, rounds, 0, watcher)
    return fleet, watcher.found


def test_nobody_waits_for_a_slow_client_and_it_gets_no_other_order_meanwhile():
    fleet, _ = federate(delays={"c": 2})
    both = [{"a": r, "b": r} for r in range(5)]
    assert fleet.orders[:5] == [both[0], both[1], both[2] | {"c": 0}, both[3], both[4]]


def test_what_is_on_its_way_at_the_end_is_finished_before_the_last_order():
    fleet, _ = federate(delays={"c": 2})
    assert fleet.orders[5:] == [{"c": 3}, dict.fromkeys("abc", 5)]
    assert {name for name, order in fleet.last.items() if order.deliveries} == {"a", "b"}


def test_the_record_says_who_was_late_and_how_much_it_counted():
    _, records = federate(delays={"c": 2}, weight=0.5)
    assert [dict(record.late) for record in records] == [{}, {}, {"c": (2, pytest.approx(3**-0.5))}, {}, {}]
    assert all(not record.refused for record in records)


def test_a_late_reply_counts_less_in_the_mean():
    fleet, records = federate(delays={"c": 2}, weight=1.0, rounds=3)
    [aggregation] = records[2].aggregations
    expected = torch.tensor([1, 1, 1 / 3], dtype=torch.float64) / (2 + 1 / 3)
    assert_close(aggregation.mixing.blends[0].weights[0], expected)
    row = fleet.last["c"].deliveries[ENCODER].addends[0].row
    assert_close(row, torch.full((2,), float((3 + 3 + 1 / 3) / (2 + 1 / 3))))


def test_with_a_weight_of_zero_a_late_reply_counts_like_any_other():
    _, records = federate(delays={"c": 2}, weight=0.0, rounds=3)
    assert_close(records[2].aggregations[0].mixing.blends[0].weights[0], torch.full((3,), 1 / 3, dtype=torch.float64))


def test_by_default_all_clients_answer_in_their_round():
    fleet, records = federate()
    assert all(set(orders.values()) == {number} for number, orders in enumerate(fleet.orders))
    assert not any(record.late for record in records)


def test_a_late_update_is_shortened():
    mixing = Mixing("start", (Blend(torch.tensor([[0.5, 0.5]]), (0, 0)),)).discounted([1.0, 0.25])
    assert_close(mixing.blends[0].weights, torch.tensor([[0.5, 0.125]], dtype=torch.float64))


def test_a_mixture_of_late_parameters_alone_is_what_it_was():
    mixing = Mixing("nothing", (Blend(torch.eye(2), (0, 1)),)).discounted([1.0, 0.25])
    assert_close(mixing.blends[0].weights, torch.eye(2, dtype=torch.float64))


def test_who_is_at_work_is_in_a_checkpoint():
    progress = Progress(at_work={"c": 3})
    assert progress_from_state(progress_as_state(progress, {})).at_work == {"c": 3}
    state = progress_as_state(progress, {})
    old = replace(state, values={key: value for key, value in state.values.items() if key != "at_work"})
    assert progress_from_state(old).at_work == {}


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"participation": {"late": {"delays": {"nobody": 1}}}}, "participation.late.delays"),
        ({"participation": {"late": {}}, "diagnostics": {"every": 1}}, "participation.late"),
        ({"participation": {"late": {}}, "secure_aggregation": {"sketch": 1024}}, "participation.late"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, place):
    with pytest.raises(UserError, match=place):
        small(method={"name": "fedper"}, **settings)
