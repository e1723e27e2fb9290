"""Introductions that are lost on their way, come late, or fail: who is asked again, when, and when not."""

from dataclasses import replace
from time import monotonic

import pytest
from federations import After, flower_federation, orders_for, quiet, small_experiment

from fedhca2.federation.flower.internals import ObjectPushError
from fedhca2.federation.flower.records import STAGE, header_of
from fedhca2.federation.flower.wait import Wait
from fedhca2.federation.sum_server import Sum
from fedhca2.params import Slot

pytestmark = pytest.mark.slow
HOME = 3  # the number of its node
ENCODER = Slot("encoder")
LOST_AFTER = "fedhca2.federation.flower.site_registry.LOST_AFTER"


@pytest.fixture
def hasty(monkeypatch):
    """Takes every question without an answer for lost at once."""
    monkeypatch.setattr(LOST_AFTER, 0.0)


class Clock:
    """The time since a message was given, as the test says."""

    def __init__(self, patch):
        self.now, began = 0.0, round(monotonic())  # whole seconds, whose differences are exact
        patch.setattr("fedhca2.federation.flower.wait.monotonic", lambda: began + self.now)

    def questions(self, grid, fleet, seconds, first=0):
        """When `home` was asked to introduce itself, if the server looks every 20 seconds and takes what is there."""
        asked = []
        for self.now in range(first, seconds, 20):
            before = questions(grid)
            fleet.registry.look(now=True)
            fleet.registry.meet(Wait(60))
            asked += [self.now] * (questions(grid) - before)
        return asked


def questions(grid, node=HOME):
    """How often a node was asked to introduce itself."""
    queries = [message for message in grid.down if message.metadata.message_type == "query"]
    return sum(query.metadata.dst_node_id == node and "experiment" in header_of(query.content) for query in queries)


def told(grid):
    """How many messages `home` was sent."""
    return sum(message.metadata.dst_node_id == HOME for message in grid.down)


def lose_last(grid):
    """Lose the last message that was sent."""
    grid.sent.popitem()


def joined(caplog):
    return [record.message for record in caplog.records if "home has joined" in record.message]


@pytest.mark.usefixtures("watchful")
def test_a_site_whose_introduction_is_lost_on_its_way_joins_all_the_same(experiment, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(LOST_AFTER, 0.3)
    grid, _, fleet = flower_federation(experiment, tmp_path, deadline=20)
    grid.deaf = {"home"}

    def lose():
        grid.lose("home")
        grid.deaf = set()

    After(grid, 2, lose)
    fleet.gather()
    assert "home" in fleet.profiles
    assert "node 3 (home) has not introduced itself for" in caplog.text


@pytest.mark.usefixtures("watchful")
def test_a_site_whose_introduction_is_lost_in_a_round_takes_part_in_the_next(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(LOST_AFTER, 0.01)
    monkeypatch.setattr("fedhca2.federation.flower.site_registry.TIMES_AS_LONG", 0)  # however slow the machine is
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2, deadline=20)
    late = grid.leave("home")
    fleet.gather()
    grid.apps |= late
    grid.deaf = {"home"}
    fleet.registry.look(now=True)
    lose_last(grid)
    grid.deaf, grid.silent = set(), {"outdoor-semseg"}
    After(grid, 20, grid.silent.clear)
    fleet.perform(orders_for(fleet), quiet)
    assert "home" in fleet.perform(orders_for(fleet, 1), quiet)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("second_is_lost", [True, False])
def test_a_late_answer_counts_once(second_is_lost, experiment, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "fedhca2.server")
    grid, _, fleet = flower_federation(experiment, tmp_path)
    grid.deaf = {"home"}
    fleet.registry.look(now=True)
    fleet.registry.look(now=True)
    assert questions(grid) == 2
    if second_is_lost:
        lose_last(grid)
    grid.deaf = set()
    monkeypatch.setattr(LOST_AFTER, 60.0)
    for _ in range(3):
        fleet.registry.meet(Wait(60))
    assert len(joined(caplog)) == 1


@pytest.mark.usefixtures("hasty", "watchful")
def test_a_site_that_answers_at_once_is_asked_once(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    for _ in range(5):
        fleet.registry.meet(Wait(60))
    assert [questions(grid, node) for node in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.usefixtures("hasty", "watchful")
@pytest.mark.parametrize("change", [{"tasks": ("depth",)}, {"client": "house"}, {"encoders": ("another",)}])
def test_a_site_that_does_not_fit_is_asked_and_told_once(change, experiment, tmp_path):
    grid, sites, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    sites["home"].config = sites["home"].config.model_copy(update=change)
    fleet.gather()
    for _ in range(5):
        fleet.registry.meet(Wait(60))
    assert told(grid) == 2


def test_of_two_sites_with_one_data_set_and_other_names_of_classes_one_is_refused(tmp_path):
    """Their heads have equal shapes and mean different classes."""
    experiment = small_experiment(clients=[{"data": "outdoor", "tasks": ["semseg"], "copies": 2}])
    _, sites, fleet = flower_federation(experiment, tmp_path, min_clients=1)
    unnamed = {name: replace(profile, classes={}) for name, profile in fleet.registry.expected.items()}
    fleet.registry.expected = unnamed  # as of an experiment that only has their number
    first, second = sites
    describe = sites[second].describe
    sites[second].describe = lambda invitation: replace(describe(invitation), classes={"semseg": "others"})
    fleet.gather()
    assert [*fleet.registry.known] == [first]
    assert f"classes of {second}, semseg" in fleet.registry.refused[second]


@pytest.mark.parametrize("fails", [False, True])
def test_a_site_that_fails_or_does_not_answer_is_asked_again_less_and_less_often(
    fails, experiment, tmp_path, monkeypatch
):
    def fail(message, context):
        raise RuntimeError("the package is too old")

    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    if fails:
        grid.replace("home", lambda _: fail)
    else:
        grid.deaf = {"home"}
    assert Clock(monkeypatch).questions(grid, fleet, 500) == [0, 60, 180, 420]


@pytest.mark.parametrize(("took", "again"), [(40, 180), (1000, 1860)])
def test_a_site_has_more_time_where_another_took_long_but_not_without_end(
    took, again, experiment, tmp_path, monkeypatch
):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=1)
    grid.deaf = {"home", "outdoor-semseg"}
    clock = Clock(monkeypatch)
    fleet.registry.look(now=True)
    grid.deaf = {"home"}
    clock.now = took
    fleet.registry.meet(Wait(60))
    assert clock.questions(grid, fleet, again + 20, first=took) == [again]


def test_a_site_that_restarts_is_asked_at_once(experiment, tmp_path, monkeypatch):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    grid.deaf = {"home"}
    clock = Clock(monkeypatch)
    clock.questions(grid, fleet, 200)
    grid.restart("home")
    assert clock.questions(grid, fleet, 100) == [0, 60]


def test_who_is_missing_is_offline_or_has_not_answered(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path)
    grid.leave("outdoor-semseg")
    grid.deaf = {"home"}
    fleet.registry.look(now=True)
    fleet.registry.meet(Wait(60))
    assert fleet.registry.missing() == {"outdoor-semseg": "offline", "home": "no introduction yet"}


def test_what_a_site_said_before_it_restarted_does_not_count(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path)
    grid.deaf = {"home"}
    fleet.registry.look(now=True)
    grid.lives["home"] = 1
    fleet.registry.look(now=True)
    lose_last(grid)
    grid.deaf = set()
    fleet.registry.meet(Wait(60))
    assert "home" not in fleet.registry.known


@pytest.mark.usefixtures("watchful")
def test_a_question_that_flower_does_not_accept_is_asked_again(experiment, tmp_path, monkeypatch):
    grid, _, fleet = flower_federation(experiment, tmp_path, deadline=10)
    push, expired = grid.push_messages, iter([ObjectPushError("object", 1, "session")])

    def expiring(messages):
        if error := next(expired, None):
            raise error
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", expiring)
    fleet.gather()
    assert len(fleet.profiles) == 3


@pytest.mark.usefixtures("hasty", "watchful")
def test_nobody_is_asked_while_sites_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhca2.federation.flower.fleet.GRACE_S", 0.1)
    experiment = small_experiment(method={"name": "fedper"}, rounds=1, secure_aggregation={})
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    grid.deaf = {"home"}
    fleet.gather()
    replies = fleet.perform(orders_for(fleet), quiet)
    numel = fleet.profiles["outdoor-normals"].layouts[ENCODER].numel
    grid.down = []
    fleet.add(0, [Sum({client: {ENCODER: 0.5} for client in replies}, numel)])
    assert {STAGE in header_of(message.content) for message in grid.down} == {True}
