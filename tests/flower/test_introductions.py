"""Sites that introduce themselves: late, lost on the way, with other settings, or with a key that is not theirs."""

from dataclasses import replace
from time import monotonic

import pytest
from federations import Federation, PowerCutError, Watching, altered, cut_off, perform, small_experiment
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.records import STAGE, header_of
from fedhca2.federation.flower.wait import TooFewClientsError, Wait
from fedhca2.federation.sum_server import Sum
from fedhca2.params import Slot

pytestmark = pytest.mark.slow
HOME = 3  # the number of its node
MANY = {"samples": 10**9}
ENCODER = Slot("encoder")


@pytest.fixture
def hasty(lost_after):
    """Takes every question without an answer for lost at once."""
    lost_after(0.0)


class Clock:
    """The time since a message was sent, as the test says."""

    def __init__(self, patch):
        self.now, began = 0.0, round(monotonic())  # whole seconds, whose differences are exact
        patch.setattr("fedhca2.federation.flower.wait.monotonic", lambda: began + self.now)

    def questions(self, grid, fleet, seconds, first=0):
        """When `home` was asked to introduce itself, if the server looks every 20 seconds and takes what is there."""
        times = []
        for self.now in range(first, seconds, 20):
            before = questions(grid)
            fleet.registry.check_nodes(now=True)
            meet(fleet)
            times += [self.now] * (questions(grid) - before)
        return times


def meet(fleet, times=1):
    for _ in range(times):
        fleet.registry.poll(Wait(60))


def questions(grid, node=HOME):
    """How often a node was asked to introduce itself."""
    queries = [message for message in grid.down if message.metadata.message_type == "query"]
    return sum(query.metadata.dst_node_id == node and "experiment" in header_of(query.content) for query in queries)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("second_is_lost", [True, False])
def test_a_site_that_answers_two_questions_joins_once(second_is_lost, federation, lost_after, caplog):
    caplog.set_level("INFO", "fedhca2.server")
    grid, _, fleet = federation()
    grid.deaf = {"home"}
    fleet.registry.check_nodes(now=True)
    fleet.registry.check_nodes(now=True)
    assert questions(grid) == 2
    if second_is_lost:
        grid.sent.popitem()
    grid.deaf = set()
    lost_after(60.0)
    meet(fleet, 3)
    assert sum("home has joined" in message for message in caplog.messages) == 1


@pytest.mark.usefixtures("hasty", "watchful")
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("tasks", ("depth",), "tasks: expected depth, normals for 'home'"),
        ("client", "house", "client: expected home, got 'house'"),
        ("encoders", ("another",), "got 'tiny'"),
    ],
)
def test_a_site_that_does_not_fit_is_refused_once_and_logs_why(key, value, reason, federation, caplog):
    grid, sites, fleet = federation(min_clients=2)
    sites["home"].config = sites["home"].config.model_copy(update={key: value})
    fleet.gather()
    meet(fleet, 5)
    assert sum(message.metadata.dst_node_id == HOME for message in grid.down) == 2
    assert [questions(grid, node) for node in (1, 2)] == [1, 1]  # the others answer at once
    assert "home" not in fleet.registry.profiles
    assert f"({key} in site.yaml)" in fleet.registry.refused["home"]
    grid.deliver()
    assert any(reason in record.message for record in caplog.records if record.name == "fedhca2.site")


def test_a_local_federation_whose_sites_refuse_ends_with_the_reason(federation):
    _, sites, fleet = federation(await_refused=False)
    for name in ("outdoor-normals", "home"):
        sites[name].config = sites[name].config.model_copy(update={"encoders": ("another",)})
    reason = r"failed: this site does not allow it \(encoders in site.yaml\); its log says more"
    with pytest.raises(TooFewClientsError, match=f"^expected 3 clients, got 1 .*; outdoor-normals, home: {reason}$"):
        fleet.gather()


def test_of_two_sites_with_one_data_set_and_other_names_of_classes_one_is_refused(tmp_path):
    """Their heads have equal shapes and mean different classes."""
    experiment = small_experiment(clients=[{"data": "outdoor", "tasks": ["semseg"], "copies": 2}])
    found = Federation(experiment, tmp_path)
    sites, fleet = found.sites, found.fleet(min_clients=1)
    unnamed = {name: replace(profile, classes={}) for name, profile in fleet.registry.expected.items()}
    fleet.registry.expected = unnamed  # as of an experiment that only has their number
    first, second = sites
    describe = sites[second].describe
    sites[second].describe = lambda invitation: replace(describe(invitation), classes={"semseg": "others"})
    fleet.gather()
    assert [*fleet.registry.profiles] == [first]
    assert f"classes of {second}, semseg" in fleet.registry.refused[second]


def test_a_site_that_comes_back_with_other_images_is_refused(federation):
    grid, _, fleet = federation()
    fleet.gather()
    before = fleet.profiles["home"].samples
    grid.replace("home", lambda app: altered(MANY, app, "query"))
    grid.restart("home")
    fleet.registry.check_nodes(now=True)
    meet(fleet)
    assert "as before in this run, got 1000000000" in fleet.registry.refused["node 3"]
    assert fleet.profiles["home"].samples == before


def test_a_site_with_other_images_is_refused_in_a_resumed_run(experiment, tmp_path):
    found = cut_off(experiment, tmp_path)
    found.grid.replace("home", lambda app: altered(MANY, app, "query"))
    assert "as before in this run, got 1000000000" in found.resume(min_clients=2).missing["home"]


OTHER_MODEL, OTHER_NAME = {"layouts": {"encoder": [["weight"], [[3]]]}}, {"client": "home"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (OTHER_NAME, "client of outdoor-normals: expected 'outdoor-normals', got 'home'"),
        (OTHER_MODEL, "layouts of outdoor-normals: expected those of the experiment's model, got others"),
    ],
)
def test_a_site_that_introduces_itself_with_the_key_of_another_is_refused(change, reason, federation, caplog):
    """So is one with another model; its log says why."""
    grid, _, fleet = federation(min_clients=2)
    grid.replace("outdoor-normals", lambda app: altered(change, app, "query"))
    fleet.gather()
    assert fleet.registry.refused == {"outdoor-normals": reason}
    grid.deliver()
    assert f"the server refuses this site: {reason}" in caplog.messages


@pytest.mark.usefixtures("watchful", "hasty")
@pytest.mark.parametrize(("name", "called"), [("garden", "garden"), ("", "node 3")])
def test_a_key_of_no_client_is_refused_once_and_not_invited(name, called, federation):
    grid, _, fleet = federation(min_clients=2)
    grid.rename("home", name)
    fleet.gather()
    meet(fleet, 5)
    assert fleet.registry.refused[called].startswith("key: expected that of a client")
    [header] = [header_of(message.content) for message in grid.down if message.metadata.dst_node_id == HOME]
    assert "experiment" not in header


def test_a_second_key_of_the_same_name_is_refused_even_while_the_first_is_away(federation):
    grid, sites, fleet = federation()
    fleet.gather()
    grid.leave("home")
    grid.apps[9] = ("home", make_app(sites["home"]))
    fleet.registry.check_nodes(now=True)
    meet(fleet, 2)
    assert fleet.registry.refused == {"node 9": "home has already joined as node 3"}


def test_without_keys_two_sites_cannot_be_the_same_client(federation):
    grid, sites, fleet = federation(named=False)
    grid.rename("home", "")
    grid.apps[9] = ("", make_app(sites["home"]))
    fleet.gather()
    assert list(fleet.registry.refused) == ["node 9"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_site_without_a_good_answer_is_asked_at_growing_intervals(fails, federation, monkeypatch):
    def fail(message, context):
        raise RuntimeError("the package is too old")

    grid, _, fleet = federation(min_clients=2)
    if fails:
        grid.replace("home", lambda _: fail)
    else:
        grid.deaf = {"home"}
    assert Clock(monkeypatch).questions(grid, fleet, 500) == [0, 60, 180, 420]


@pytest.mark.parametrize(("took", "again"), [(40, 180), (1000, 1860)])
def test_a_slow_site_gives_others_more_time_up_to_a_limit(took, again, federation, monkeypatch):
    grid, _, fleet = federation(min_clients=1)
    grid.deaf = {"home", "outdoor-semseg"}
    clock = Clock(monkeypatch)
    fleet.registry.check_nodes(now=True)
    grid.deaf = {"home"}
    clock.now = took
    meet(fleet)
    assert clock.questions(grid, fleet, again + 20, first=took) == [again]


def test_a_site_that_restarts_is_asked_at_once(federation, monkeypatch):
    grid, _, fleet = federation(min_clients=2)
    grid.deaf = {"home"}
    clock = Clock(monkeypatch)
    clock.questions(grid, fleet, 200)
    grid.restart("home")
    assert clock.questions(grid, fleet, 100) == [0, 60]


def test_missing_clients_are_offline_or_have_not_introduced_themselves(federation):
    grid, _, fleet = federation()
    grid.leave("outdoor-semseg")
    grid.deaf = {"home"}
    fleet.registry.check_nodes(now=True)
    meet(fleet)
    assert fleet.registry.missing() == {"outdoor-semseg": "offline", "home": "no introduction yet"}


def test_an_introduction_from_before_a_restart_does_not_count(federation):
    grid, _, fleet = federation()
    grid.deaf = {"home"}
    fleet.registry.check_nodes(now=True)
    grid.lives["home"] = 1
    fleet.registry.check_nodes(now=True)
    grid.sent.popitem()
    grid.deaf = set()
    meet(fleet)
    assert "home" not in fleet.registry.profiles


@pytest.mark.usefixtures("hasty", "watchful")
def test_no_introductions_are_requested_while_sites_compute_sums(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhca2.federation.flower.fleet.GRACE_S", 0.1)
    experiment = small_experiment(method={"name": "fedper"}, rounds=1, secure_aggregation={})
    federation = Federation(experiment, tmp_path)
    grid, fleet = federation.grid, federation.fleet(min_clients=2)
    grid.deaf = {"home"}
    fleet.gather()
    replies = perform(fleet)
    numel = fleet.profiles["outdoor-normals"].layouts[ENCODER].numel
    grid.down = []
    fleet.add(0, [Sum({client: {ENCODER: 0.5} for client in replies}, numel)])
    assert {STAGE in header_of(message.content) for message in grid.down} == {True}


def test_an_eviction_that_ends_a_run_is_written(tmp_path):
    federation = Federation(small_experiment(rounds=1), tmp_path)
    key = public_key_to_bytes(generate_key_pairs()[1])
    home = NodeInfo(node_id=3, name="home", public_key=key, registered_at="2026-11-16T04:00:00+00:00")

    class Evicting(Watching):
        def aggregated(self, *_):
            home.unregistered_at = "2026-11-16T05:00:00+00:00"
            raise PowerCutError

    with pytest.raises(PowerCutError):
        federation.run(Evicting(), list_nodes=lambda: [home])
    events = [event["event"] for event in federation.events]
    assert (events.count("registered"), events.count("evicted")) == (1, 1)
