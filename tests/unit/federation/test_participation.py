"""Who gets an order in a round; replies that miss their round join a later one with less weight; nobody waits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedhca2.aggregation import Mixing
from fedhca2.errors import UserError
from fedhca2.experiment.settings import LateReplies, Participation
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.messages import Profile, Reply
from fedhca2.methods import Blend, resolve
from fedhca2.params import ENCODER, Layout
from fedhca2.run_folder.records import Progress, Watcher, progress_as_state, progress_from_state
from small import small

NAMES = [f"c{i}" for i in range(10)]
PROFILES = {name: Profile(name, "d", ("edge",), 1, {ENCODER: Layout(("a.weight",), ((2,),))}) for name in "abc"}


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.3, 3), (0.01, 1)])
def test_a_fraction_takes_part_in_each_round_and_everybody_at_some_time(fraction, count):
    choices = [Participation(fraction=fraction).choose(NAMES, round, 0) for round in range(100)]
    assert {len(names) for names in choices} == {count}
    assert {name for names in choices for name in names} == set(NAMES)


@given(order=st.permutations(NAMES), round=st.integers(0, 5))
def test_the_order_of_clients_does_not_matter(order, round):
    plan = Participation(fraction=0.5)
    assert sorted(plan.choose(order, round, 0)) == sorted(plan.choose(NAMES, round, 0))


@pytest.mark.parametrize(("availability", "times"), [(0.25, pytest.approx(500, rel=0.1)), (0.0, 0)])
def test_a_client_takes_part_as_often_as_its_availability(availability, times):
    plan = Participation(availability={"c0": availability})
    assert sum("c0" in plan.choose(NAMES, round, 0) for round in range(2000)) == times


class Sites(Watcher):
    """Clients that send one more than the number of their order's round, in every value; with the server's records."""

    profiles, absent = PROFILES, {}

    def __init__(self):
        self.orders, self.records = [], []

    def perform(self, orders, watch):
        self.orders.append({name: order.round for name, order in orders.items()})
        self.last = orders
        return {
            name: Reply(name, order.round, {ENCODER: torch.full((2,), 1.0 + order.round)} if order.train else {})
            for name, order in orders.items()
        }

    def aggregated(self, round, record, seconds):
        self.records.append(record)


def federate(rounds=5, late=None, **options):
    sites = Sites()
    server = Server(resolve("fedper"), PROFILES.values(), late=late and LateReplies(**late))
    run_rounds(server, sites, rounds, 0, sites, **options)
    return sites


def test_deliveries_wait_until_their_client_takes_part_again():
    sites = federate(4, choose=lambda names, round: names if round == 0 else ["a"])
    assert [number for number, orders in enumerate(sites.orders) if "b" in orders] == [0, 4]
    assert sites.last["b"].deliveries[ENCODER].addends[0].row.tolist() == [1.0, 1.0]


def test_rounds_do_not_wait_for_a_slow_client():
    sites = federate(late={"delays": {"c": 2}, "weight": 0.5})
    both = [{"a": r, "b": r} for r in range(5)]
    assert sites.orders == [*both[:2], both[2] | {"c": 0}, *both[3:], {"c": 3}, dict.fromkeys("abc", 5)]
    assert {name for name, order in sites.last.items() if order.deliveries} == {"a", "b"}
    assert [dict(record.late) for record in sites.records] == [{}, {}, {"c": (2, pytest.approx(3**-0.5))}, {}, {}]
    assert all(not record.refused for record in sites.records)


@pytest.mark.parametrize(("weight", "counts"), [(1.0, 1 / 3), (0.0, 1.0)])
def test_a_late_reply_counts_less_in_the_mean(weight, counts):
    sites = federate(3, late={"delays": {"c": 2}, "weight": weight})
    [aggregation] = sites.records[2].aggregations
    expected = torch.tensor([1, 1, counts], dtype=torch.float64) / (2 + counts)
    assert_close(aggregation.mixing.blends[0].weights[0], expected)
    row = sites.last["c"].deliveries[ENCODER].addends[0].row
    assert_close(row, torch.full((2,), (3 + 3 + counts) / (2 + counts)))


def test_by_default_all_clients_answer_in_their_round():
    sites = federate()
    assert all(set(orders.values()) == {number} for number, orders in enumerate(sites.orders))
    assert not any(record.late for record in sites.records)


@pytest.mark.parametrize(
    ("base", "weights", "gets", "found"),
    [
        ("start", torch.tensor([[0.5, 0.5]]), (0, 0), torch.tensor([[0.5, 0.125]])),  # a late update is shortened
        ("nothing", torch.eye(2), (0, 1), torch.eye(2)),  # a mixture of late parameters alone is what it was
    ],
)
def test_weights_of_late_rows_are_discounted(base, weights, gets, found):
    mixing = Mixing(base, (Blend(weights, gets),)).discounted([1.0, 0.25])
    assert_close(mixing.blends[0].weights, found.double())


def test_a_checkpoint_has_the_clients_at_work():
    state = progress_as_state(Progress(at_work={"c": 3}), {})
    assert progress_from_state(state).at_work == {"c": 3}
    old = replace(state, values={key: value for key, value in state.values.items() if key != "at_work"})
    assert progress_from_state(old).at_work == {}


@pytest.mark.parametrize(
    ("settings", "location"),
    [
        ({"participation": {"late": {"delays": {"nobody": 1}}}}, "participation.late.delays"),
        ({"participation": {"late": {}}, "diagnostics": {"every": 1}}, "participation.late"),
        ({"participation": {"late": {}}, "secure_aggregation": {"sketch": 1024}}, "participation.late"),
    ],
)
def test_late_replies_with_conflicting_settings_are_refused(settings, location):
    with pytest.raises(UserError, match=location):
        small(method={"name": "fedper"}, **settings)
