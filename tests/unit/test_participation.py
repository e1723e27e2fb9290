import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhca2.experiment import Participation

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
