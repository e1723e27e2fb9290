import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhca2.experiment import Participation
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.messages import Profile, Reply
from fedhca2.methods import resolve
from fedhca2.params import Layout, Slot
from small_run import Silent

NAMES = [f"c{i}" for i in range(10)]


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.3, 3), (0.01, 1)])
def test_a_fraction_of_the_clients_is_asked(fraction, count):
    assert len(Participation(fraction=fraction).choose(NAMES, 0, 0)) == count


def test_everybody_is_asked_in_time():
    plan = Participation(fraction=0.2)
    assert {name for round in range(50) for name in plan.choose(NAMES, round, 0)} == set(NAMES)


@given(order=st.permutations(NAMES), round=st.integers(0, 5))
def test_the_order_of_clients_does_not_matter(order, round):
    plan = Participation(fraction=0.5)
    assert sorted(plan.choose(order, round, 0)) == sorted(plan.choose(NAMES, round, 0))


def test_a_client_is_there_as_often_as_it_should():
    plan = Participation(availability={"c0": 0.25})
    assert sum("c0" in plan.choose(NAMES, round, 0) for round in range(2000)) == pytest.approx(500, rel=0.1)


def test_a_client_that_is_never_there_is_not_asked():
    assert Participation(availability=dict.fromkeys(NAMES, 0.0)).choose(NAMES, 0, 0) == []


ENCODER = Slot("encoder")
PROFILES = {name: Profile(name, "outdoor", ("edge",), 1, {ENCODER: Layout(("a.weight",), ((2,),))}) for name in "ab"}


class Recorder:
    """Clients that send ones, and remember their orders."""

    profiles, absent = PROFILES, {}

    def __init__(self):
        self.orders = {name: [] for name in PROFILES}

    def perform(self, orders, watch):
        for name, order in orders.items():
            self.orders[name].append(order)
        return {
            name: Reply(name, order.round, {ENCODER: torch.full((2,), 1.0 + order.round)})
            for name, order in orders.items()
        }


def with_b_away(rounds):
    """Client b takes part in the first round and in none of these."""
    fleet = Recorder()
    server = Server(resolve("fedper"), PROFILES.values())
    run_rounds(server, fleet, rounds, 0, Silent(), choose=lambda names, round: names if round == 0 else ["a"])
    return fleet.orders["b"]


def test_a_client_that_is_away_is_not_asked():
    assert [order.round for order in with_b_away(4)] == [0, 4]


def test_what_a_client_is_sent_waits_until_it_is_back():
    assert with_b_away(4)[1].deliveries[ENCODER].addends[0].row.tolist() == [1.0, 1.0]
