"""Sites that introduce themselves: late, with other settings, or with a key that is not theirs."""

from dataclasses import replace

import pytest
from federations import PowerCutError, Watching, altered, flower_federation, orders_for, quiet, small_experiment
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedhca2.federation.flower.deploy.superlink import Registration
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.fleet import FlowerEngine
from fedhca2.federation.flower.records import header_of
from fedhca2.federation.flower.wait import NetworkSettings, TooFewClientsError, Wait
from fedhca2.federation.run import resume, run
from fedhca2.run_folder.reader import RunFiles

pytestmark = pytest.mark.slow


def test_a_site_may_join_after_the_start(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    late = grid.leave("home")
    fleet.gather()
    grid.apps |= late
    fleet.registry.look(now=True)
    fleet.perform(orders_for(fleet), quiet)
    assert list(fleet.profiles) == ["outdoor-semseg", "outdoor-normals", "home"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tasks": ("depth",)}, "tasks: expected depth, normals for 'home'"),
        ({"client": "house"}, "client: expected home, got 'house'"),
    ],
)
def test_a_site_that_does_not_fit_reads_why_in_its_log(change, reason, experiment, tmp_path, caplog):
    grid, sites, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    sites["home"].config = sites["home"].config.model_copy(update=change)
    fleet.gather()
    grid.deliver()
    assert "home" not in fleet.registry.known
    assert f"({next(iter(change))} in site.yaml)" in fleet.registry.refused["home"]
    assert any(reason in record.message for record in caplog.records if record.name == "fedhca2.site")


def test_a_local_federation_ends_at_once_when_its_sites_refuse_and_says_why(experiment, tmp_path):
    _, sites, fleet = flower_federation(experiment, tmp_path, await_refused=False)
    for name in ("outdoor-normals", "home"):
        sites[name].config = sites[name].config.model_copy(update={"encoders": ("another",)})
    with pytest.raises(TooFewClientsError) as refused:
        fleet.gather()
    line = (
        "expected 3 clients, got 1 that have introduced themselves; outdoor-normals, home: failed: "
        "this site does not allow it (encoders in site.yaml); its log says more"
    )
    assert str(refused.value) == line


def test_a_site_with_another_model_is_refused_and_told_so(experiment, tmp_path, caplog):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    grid.replace("home", lambda app: altered({"layouts": {"encoder": [["weight"], [[3]]]}}, app, "query"))
    fleet.gather()
    grid.deliver()
    reason = "layouts of home: expected those of the experiment's model, got others"
    assert any(
        "the server refuses this site" in record.message and reason in record.message for record in caplog.records
    )


def test_a_site_that_comes_back_with_other_images_is_refused(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    before = fleet.profiles["home"].samples
    grid.replace("home", lambda app: altered({"samples": 10**9}, app, "query"))
    grid.restart("home")
    fleet.registry.look(now=True)
    fleet.registry.meet(Wait(60))
    assert "as before in this run, got 1000000000" in fleet.registry.refused["node 3"]
    assert fleet.profiles["home"].samples == before


def test_also_after_the_run_was_resumed(tmp_path):
    experiment, terms = small_experiment(rounds=2), NetworkSettings(poll=0.001, deadline=60, min_clients=2)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    with pytest.raises(PowerCutError):
        run(experiment, tmp_path / "run", watcher=Watching(fails_in=1), engine=FlowerEngine(grid, terms))
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    grid.replace("home", lambda app: altered({"samples": 10**9}, app, "query"))
    result = resume(tmp_path / "run", watcher=Watching(), engine=FlowerEngine(grid, terms))
    assert "as before in this run, got 1000000000" in result.missing["home"]


def test_a_site_with_the_key_of_another_is_refused(experiment, tmp_path):
    grid, sites, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    grid.replace("outdoor-normals", lambda _: make_app(sites["home"]))
    fleet.gather()
    assert "(client in site.yaml)" in fleet.registry.refused["outdoor-normals"]


def test_a_site_that_introduces_itself_with_the_key_of_another_is_refused(experiment, tmp_path):
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    grid.replace("outdoor-normals", lambda app: altered({"client": "home"}, app, "query"))
    fleet.gather()
    reason = "client of outdoor-normals: expected 'outdoor-normals', got 'home'"
    assert fleet.registry.refused == {"outdoor-normals": reason}


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize(("name", "called"), [("garden", "garden"), ("", "node 3")])
def test_a_key_of_no_client_is_told_so_once_and_not_invited(name, called, experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("fedhca2.federation.flower.site_registry.LOST_AFTER", 0.0)
    grid, _, fleet = flower_federation(experiment, tmp_path, min_clients=2)
    grid.rename("home", name)
    fleet.gather()
    for _ in range(5):
        fleet.registry.meet(Wait(60))
    assert fleet.registry.refused[called].startswith("key: expected that of a client")
    [told] = [header_of(message.content) for message in grid.down if message.metadata.dst_node_id == 3]
    assert "experiment" not in told


@pytest.mark.usefixtures("watchful")
def test_a_key_stays_unknown_when_its_node_is_away_as_the_answer_comes(experiment, tmp_path):
    """The holder of outdoor-normals' key claims to be home, and is never seen when its answer is read."""
    grid, sites, fleet = flower_federation(experiment, tmp_path)
    grid.replace("outdoor-normals", lambda _: make_app(sites["home"]))
    grid.leave("home")
    fleet.registry.look()
    grid.get_nodes = list
    fleet.registry.meet(Wait(60))
    assert "outdoor-normals" in fleet.registry.refused
    assert "home" not in fleet.registry.known


def test_a_second_key_of_the_same_name_is_refused_even_while_the_first_is_away(experiment, tmp_path):
    grid, sites, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    grid.leave("home")
    grid.apps[9] = ("home", make_app(sites["home"]))
    fleet.registry.look(now=True)
    for _ in range(2):
        fleet.registry.meet(Wait(60))
    assert fleet.registry.refused == {"node 9": "home has already joined as node 3"}


def test_without_keys_two_sites_cannot_be_the_same_client(experiment, tmp_path):
    grid, sites, fleet = flower_federation(experiment, tmp_path, named=False)
    grid.rename("home", "")
    grid.apps[9] = ("", make_app(sites["home"]))
    fleet.gather()
    assert list(fleet.registry.refused) == ["node 9"]


def test_an_eviction_that_ends_a_run_is_written(tmp_path):
    experiment, terms = small_experiment(rounds=1), NetworkSettings(poll=0.001, deadline=60)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    key = public_key_to_bytes(generate_key_pairs()[1])
    home = Registration(3, "home", key, "2026-11-16T04:00:00+00:00", "")
    found = [home]

    class Evicting(Watching):
        def aggregated(self, *_):
            found[0] = replace(home, evicted="2026-11-16T05:00:00+00:00")
            raise PowerCutError

    with pytest.raises(PowerCutError):
        run(experiment, tmp_path / "run", watcher=Evicting(), engine=FlowerEngine(grid, terms, look=lambda: found))
    events = [event["event"] for event in RunFiles(tmp_path / "run").events]
    assert (events.count("registered"), events.count("evicted")) == (1, 1)
