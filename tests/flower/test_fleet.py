"""Sites that are late, wrong or away, over Flower's serialisation in one process."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, repeat

import pytest
import torch
from federations import After, failing, is_order, perform

from fedhca2.cores import one_per_core, usable_cores
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.internals import ObjectPushError
from fedhca2.federation.flower.wait import TooFewClientsError

pytestmark = pytest.mark.slow


@pytest.fixture
def gathered(federation):
    """A grid, its sites and the fleet that has met them."""

    def make(**terms):
        found = federation(**terms)
        found[2].gather()
        return found

    return make


@pytest.fixture
def trained(gathered):
    """A grid and its fleet, with the replies of the first round on disk, and these terms from now on."""

    def make(**terms):
        grid, _, fleet = gathered()
        perform(fleet)
        grid.down.clear()
        fleet.registry.terms = fleet.terms = fleet.terms.model_copy(update=terms)
        fleet.quorum = fleet.terms.min_clients or fleet.quorum
        return grid, fleet

    return make


def test_a_failed_order_is_sent_again(gathered):
    grid, _, fleet = gathered()
    fails = chain([True], repeat(False))
    grid.replace("home", lambda app: failing(app, lambda message: next(fails)))
    assert "home" in perform(fleet)


def test_an_absent_client_is_not_waited_for_when_enough_answer(gathered):
    grid, _, fleet = gathered(min_clients=2)
    grid.leave("home")
    fleet.registry.check_nodes(now=True)
    assert set(perform(fleet)) == {"outdoor-semseg", "outdoor-normals"}


def lose_what_was_sent(grid):
    grid.deaf = {"home"}
    After(grid, 3, lambda: (grid.lose("home"), grid.deaf.clear()))


def be_listed_and_gone(grid):
    grid.dead = {"home"}
    After(grid, 9, grid.dead.clear)


def be_away(grid):
    gone = grid.leave("home")
    After(grid, 9, lambda: grid.apps.update(gone))


def restart_unnoticed(grid):
    After(grid, 1, lambda: grid.restart("home"))


def accept_nothing_at_first(grid):
    push, expired = grid.push_messages, iter([ObjectPushError("object", 1, "session")])

    def expiring(messages):
        if error := next(expired, None):
            raise error
        return push(messages)

    grid.push_messages = expiring


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize("what", ["question", "order"])
@pytest.mark.parametrize(
    "trouble", [lose_what_was_sent, be_listed_and_gone, be_away, restart_unnoticed, accept_nothing_at_first]
)
def test_a_message_reaches_its_site_after_trouble_on_the_way(trouble, what, federation, lost_after):
    lost_after(0.3)
    grid, _, fleet = federation(deadline=20, retries=0)
    if what == "order":
        fleet.gather()
    trouble(grid)
    fleet.gather()
    assert len(perform(fleet)) == 3


def orders_given(grid, name="home"):
    """How many orders a node was sent."""
    return sum(grid.apps[sent.metadata.dst_node_id][0] == name for sent in grid.down if is_order(sent))


def test_an_answer_counts_after_the_order_was_sent_again(trained, lost_after, monkeypatch):
    grid, fleet = trained(min_clients=2, deadline=5)
    lost_after(0.1)
    grid.silent, push = {"home"}, grid.push_messages

    def lose_the_second(messages):
        pushed = push(messages)
        if orders_given(grid) == 2:
            grid.sent.popitem()
            grid.silent = set()
            lost_after(60.0)
        return pushed

    monkeypatch.setattr(grid, "push_messages", lose_the_second)
    assert "home" in perform(fleet)
    assert orders_given(grid) == 2


def test_no_order_is_sent_again_before_most_have_answered(trained, lost_after):
    grid, fleet = trained(min_clients=1, deadline=1.5)
    lost_after(0.0)
    grid.silent = {"home", "outdoor-semseg"}
    perform(fleet)
    assert orders_given(grid) == 1


def test_a_site_that_does_not_come_back_by_the_deadline_is_named(trained):
    grid, fleet = trained(deadline=1.5)
    grid.dead = {"home"}
    with pytest.raises(TooFewClientsError, match=r"got 2 that have answered in 1\.5 s; home: offline"):
        perform(fleet)


@pytest.mark.usefixtures("watchful")
def test_the_log_names_the_clients_that_a_round_waits_for(gathered, monkeypatch, caplog):
    monkeypatch.setattr("fedhca2.federation.flower.wait.TELL_AFTER", 0.01)
    grid, _, fleet = gathered(deadline=None)
    grid.dead = {"home"}
    After(grid, 30, grid.dead.clear)
    perform(fleet)
    assert "waiting for home: offline" in caplog.messages


def test_a_repeated_round_is_answered_and_not_trained_again(gathered):
    _, sites, fleet = gathered()
    first, before = perform(fleet)["home"], sites["home"].client.state()
    again, after = perform(fleet)["home"], sites["home"].client.state()
    assert again.seconds == first.seconds
    assert all(torch.equal(again.rows[slot], row) for slot, row in first.rows.items())
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())


def test_sites_of_one_machine_share_its_cores(gathered, tmp_path):
    grid, sites, fleet = gathered()
    (tmp_path / "turns").mkdir()
    taking_turns = Site(sites["home"].config.model_copy(update={"turns": tmp_path / "turns"}))
    grid.replace("home", lambda _: make_app(taking_turns))
    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as cores:
            for _ in usable_cores():
                cores.enter_context(one_per_core(tmp_path / "turns"))
            working = pool.submit(perform, fleet)
            with pytest.raises(TimeoutError):
                working.result(2)
        assert "home" in working.result(60)
