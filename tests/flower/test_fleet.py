"""Sites that are late, wrong, away or new, over Flower's serialisation in one process."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from federations import After, altered, flower_federation, orders_for, quiet

from fedhca2.cores import one_per_core, usable_cores
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.internals import ObjectPushError
from fedhca2.federation.flower.wait import TooFewClientsError

pytestmark = pytest.mark.slow


def failing(times, app):
    def attempt(message, context):
        nonlocal times
        if message.metadata.message_type == "train" and times > 0:
            times -= 1
            raise RuntimeError("the disk is full")
        return app(message, context)

    return attempt


def test_a_failed_order_is_given_again(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path)
    grid.replace("home", lambda app: failing(1, app))
    fleet.gather()
    assert "home" in fleet.perform(orders_for(fleet), quiet)


def test_an_order_whose_upload_expires_is_given_again(experiment, tmp_path, monkeypatch):
    grid, _, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    push, expired = grid.push_messages, iter([ObjectPushError("object", 1, "session")])

    def expiring(messages):
        if error := next(expired, None):
            raise error
        return push(messages)

    monkeypatch.setattr("fedhca2.federation.flower.site_registry.NODES_EVERY", 0.0)
    monkeypatch.setattr(grid, "push_messages", expiring)
    assert set(fleet.perform(orders_for(fleet), quiet)) == set(fleet.profiles)


def test_the_round_goes_on_without_a_client_that_fails_and_names_the_reason(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2, retries=1)
    grid.replace("home", lambda app: failing(9, app))
    fleet.gather()
    assert set(fleet.perform(orders_for(fleet), quiet)) == {"outdoor-semseg", "outdoor-normals"}
    assert list(fleet.absent) == ["home"]
    assert "the disk is full" in fleet.absent["home"]


def test_too_few_replies_end_the_run_with_the_reasons(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, retries=0)
    grid.replace("home", lambda app: failing(9, app))
    fleet.gather()
    with pytest.raises(TooFewClientsError, match=r"home: failed: .*the disk is full"):
        fleet.perform(orders_for(fleet), quiet)


def test_a_client_that_is_away_is_not_waited_for_when_there_are_enough(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    fleet.gather()
    orders = orders_for(fleet)
    grid.leave("home")
    fleet.registry.look(now=True)
    assert set(fleet.perform(orders, quiet)) == {"outdoor-semseg", "outdoor-normals"}


@pytest.mark.usefixtures("watchful")
def test_a_site_that_is_gone_but_listed_has_not_failed(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, retries=0)
    fleet.gather()
    grid.dead = {"home"}
    After(grid, 9, grid.dead.clear)
    assert len(fleet.perform(orders_for(fleet), quiet)) == 3


@pytest.mark.usefixtures("watchful")
def test_an_order_waits_for_its_site(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, retries=0)
    fleet.gather()
    orders = orders_for(fleet)
    gone = grid.leave("home")
    After(grid, 9, lambda: grid.apps.update(gone))
    assert len(fleet.perform(orders, quiet)) == 3


@pytest.mark.usefixtures("watchful")
def test_a_site_that_restarts_unnoticed_gets_its_order_again(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, retries=0, deadline=20)
    fleet.gather()
    After(grid, 1, lambda: grid.restart("home"))
    assert len(fleet.perform(orders_for(fleet), quiet)) == 3


def orders_given(grid, name):
    """How many orders a node was sent."""
    return sum(
        grid.apps[sent.metadata.dst_node_id][0] == name for sent in grid.down if sent.metadata.message_type == "train"
    )


def test_an_order_that_is_lost_on_its_way_is_given_again(experiment, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fedhca2.federation.flower.site_registry.LOST_AFTER", 0.5)
    grid, _, fleet = flower_federation(experiment, tmp_path, retries=0)
    fleet.gather()
    grid.silent = {"home"}

    def lose():
        grid.lose("home")
        grid.silent = set()

    After(grid, 3, lose)
    assert len(fleet.perform(orders_for(fleet), quiet)) == 3
    assert orders_given(grid, "home") > 1
    assert "s, and gets its order again: it may be lost" in caplog.text


def test_an_answer_counts_though_the_order_was_given_again(experiment, tmp_path, monkeypatch):
    grid, fleet = gathered_and_trained(experiment, tmp_path, min_clients=2, deadline=5)
    monkeypatch.setattr("fedhca2.federation.flower.site_registry.LOST_AFTER", 0.1)
    grid.silent, grid.down, push = {"home"}, [], grid.push_messages

    def lose_the_second(messages):
        pushed = push(messages)
        if orders_given(grid, "home") == 2:
            grid.sent.popitem()
            grid.silent = set()
            monkeypatch.setattr("fedhca2.federation.flower.site_registry.LOST_AFTER", 60.0)
        return pushed

    monkeypatch.setattr(grid, "push_messages", lose_the_second)
    assert "home" in fleet.perform(orders_for(fleet), quiet)
    assert orders_given(grid, "home") == 2


def test_a_slow_site_is_asked_again_less_and_less_often(experiment, tmp_path, monkeypatch):
    grid, fleet = gathered_and_trained(experiment, tmp_path, min_clients=2, deadline=4)
    monkeypatch.setattr("fedhca2.federation.flower.site_registry.LOST_AFTER", 0.1)
    grid.silent, grid.down = {"home"}, []
    fleet.perform(orders_for(fleet), quiet)
    assert 2 <= orders_given(grid, "home") <= 6


def test_nobody_is_asked_again_before_most_have_answered(experiment, tmp_path, monkeypatch):
    grid, fleet = gathered_and_trained(experiment, tmp_path, min_clients=1, deadline=1.5)
    monkeypatch.setattr("fedhca2.federation.flower.site_registry.LOST_AFTER", 0.0)
    grid.silent, grid.down = {"home", "outdoor-semseg"}, []
    fleet.perform(orders_for(fleet), quiet)
    assert orders_given(grid, "home") == 1


def gathered_and_trained(experiment, folder, **terms):
    """A federation with the replies of its first round on disk, and these terms from now on."""
    grid, _, fleet = flower_federation(experiment, folder)
    fleet.gather()
    fleet.perform(orders_for(fleet), quiet)
    fleet.registry.terms = fleet.terms = fleet.terms.model_copy(update=terms)
    fleet.quorum = fleet.terms.min_clients or fleet.quorum
    return grid, fleet


def test_a_site_that_does_not_come_back_by_the_deadline_is_named(experiment, tmp_path):
    grid, fleet = gathered_and_trained(experiment, tmp_path, deadline=1.5)
    grid.dead = {"home"}
    with pytest.raises(TooFewClientsError, match=r"got 2 that have answered in 1\.5 s; home: offline"):
        fleet.perform(orders_for(fleet), quiet)


@pytest.mark.usefixtures("watchful")
def test_the_log_says_whom_a_round_without_a_deadline_waits_for(experiment, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fedhca2.federation.flower.wait.TELL_AFTER", 0.01)
    grid, _, fleet = flower_federation(experiment, tmp_path, deadline=None)
    fleet.gather()
    grid.dead = {"home"}
    After(grid, 30, grid.dead.clear)
    fleet.perform(orders_for(fleet), quiet)
    assert any(record.message == "waiting for home: offline" for record in caplog.records)


def test_a_late_reply_is_no_reply(experiment, tmp_path):
    grid, fleet = gathered_and_trained(experiment, tmp_path, min_clients=2, deadline=1.5)
    grid.silent = {"home"}
    fleet.perform(orders_for(fleet), quiet)
    assert fleet.absent == {"home": "no reply in time"}


def test_a_repeated_round_is_answered_and_not_trained_again(experiment, tmp_path):
    _, sites, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    first = fleet.perform(orders_for(fleet), quiet)["home"]
    before = sites["home"].client.state()
    again = fleet.perform(orders_for(fleet), quiet)["home"]
    after = sites["home"].client.state()
    assert again.seconds == first.seconds
    assert all(torch.equal(again.rows[slot], row) for slot, row in first.rows.items())
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())


def test_a_site_that_restarts_goes_on_from_its_disk(experiment, tmp_path):
    grid, sites, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    fleet.perform(orders_for(fleet), quiet)
    grid.replace("home", lambda _: make_app(Site(sites["home"].config)))
    restarted = fleet.perform(orders_for(fleet, 1), quiet)["home"]
    _, _, fleet2 = flower_federation(experiment, tmp_path / "straight")
    fleet2.gather()
    fleet2.perform(orders_for(fleet2), quiet)
    expected = fleet2.perform(orders_for(fleet2, 1), quiet)["home"]
    assert all(torch.equal(restarted.rows[slot], row) for slot, row in expected.rows.items())


def test_a_site_that_missed_a_round_goes_on(experiment, tmp_path):
    _, _, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    assert len(fleet.perform(orders_for(fleet, 1), quiet)) == 3


def test_a_malformed_reply_is_a_failure_of_its_client_alone(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2, retries=0)

    grid.replace("home", lambda app: altered({"slots": ["encoder", "encoder"]}, app, "train"))
    fleet.gather()
    assert set(fleet.perform(orders_for(fleet), quiet)) == {"outdoor-semseg", "outdoor-normals"}


def test_sites_that_share_a_machine_work_no_more_at_a_time_than_it_has_cores(experiment, tmp_path):
    grid, sites, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    (tmp_path / "turns").mkdir()
    taking_turns = Site(sites["home"].config.model_copy(update={"turns": tmp_path / "turns"}))
    grid.replace("home", lambda _: make_app(taking_turns))
    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as cores:
            for _ in usable_cores():
                cores.enter_context(one_per_core(tmp_path / "turns"))
            working = pool.submit(fleet.perform, orders_for(fleet), quiet)
            with pytest.raises(TimeoutError):
                working.result(2)
        assert "home" in working.result(60)
