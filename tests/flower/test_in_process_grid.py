"""The federation over Flower's serialisation equals the federation in memory, bit for bit, also after a crash."""

from functools import cache

import pytest
from federations import (
    PowerCutError,
    Watching,
    assert_equal,
    flower_federation,
    in_memory,
    site_configs,
    small_experiment,
)
from in_process_grid import InProcessGrid

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.fleet import FlowerEngine
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.guard import Guard
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.run import resume, run
from fedhca2.federation.server import Server
from fedhca2.methods import METHODS
from fedhca2.run_folder.records import Watcher
from small import IN_ONE_PLACE, MECHANISMS, unifying

pytestmark = pytest.mark.slow
TERMS = NetworkSettings(poll=0.001, deadline=60)


def experiment_of(method):
    settings = unifying(every=2) if method == "fedsta" else {}  # so that heads cross too, within two rounds
    # FedHCA²'s weights are learned from the second round on; methods beside the mechanisms differ from one in weights.
    rounds = 3 if method == "fedhca2" else 2 if method in MECHANISMS else 1
    return small_experiment(method={"name": method, **settings}, rounds=rounds)


@cache
def expected(method):
    return in_memory(experiment_of(method))


def models(sites):
    return {name: site.client.personal.model.state_dict() for name, site in sites.items()}


# Those that stand for a mechanism are run below, with a crash in the middle, to the same end.
@pytest.mark.parametrize("method", ["fedhca2", *(name for name in METHODS if name not in {*MECHANISMS, *IN_ONE_PLACE})])
def test_flower_gives_the_same_models_and_scores_as_in_process(method, tmp_path):
    experiment = experiment_of(method)
    _, sites, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    server = Server(experiment.resolved_method, fleet.profiles.values())
    guard = Guard(server, tasks=experiment.task_set)
    assert run_rounds(server, fleet, experiment.rounds, 0, Watcher(), guard=guard).scores == expected(method)[1]
    assert_equal(models(sites), expected(method)[0])


def test_a_vector_per_image_gives_the_same_models_and_scores_as_in_process(tmp_path):
    vectors = {"things": "multilabel", "people": {"kind": "regression", "weight": 2.0}}
    clients = [{"data": "outdoor", "split": ["semseg", "things"]}, {"data": "outdoor", "tasks": ["people", "sal"]}]
    data = {"outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 4, "val": 4}}
    experiment = small_experiment(tasks=vectors, data=data, clients=clients)
    wanted, scores = in_memory(experiment)
    _, sites, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    server = Server(experiment.resolved_method, fleet.profiles.values())
    guard = Guard(server, tasks=experiment.task_set)
    assert run_rounds(server, fleet, experiment.rounds, 0, Watcher(), guard=guard).scores == scores
    assert_equal(models(sites), wanted)


def test_sites_that_take_their_images_in_the_order_of_a_run_get_its_models(tmp_path):
    experiment = small_experiment()
    alone = run(experiment, tmp_path / "alone", watcher=Watching())
    images = {"partition": {"kind": "lists", "file": str(tmp_path / "alone" / "partition.json")}}
    configs = site_configs(experiment, tmp_path / "sites").values()
    apps = {site.client: make_app(Site(site.model_copy(update={"data": images}))) for site in configs}
    result = run(experiment, tmp_path / "run", watcher=Watching(), engine=FlowerEngine(InProcessGrid(apps), TERMS))
    assert result.clients == alone.clients


@pytest.mark.parametrize("method", sorted({*MECHANISMS} - IN_ONE_PLACE))
def test_a_run_whose_server_and_sites_all_crash_resumes_to_the_same_models_and_scores(method, tmp_path):
    experiment = experiment_of(method)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    with pytest.raises(PowerCutError):
        run(experiment, tmp_path / "run", watcher=Watching(fails_in=1), engine=FlowerEngine(grid, TERMS))
    grid, sites, _ = flower_federation(experiment, tmp_path / "sites")
    result = resume(tmp_path / "run", watcher=Watching(), engine=FlowerEngine(grid, TERMS))
    assert result.clients == expected(method)[1]
    assert_equal(models(sites), expected(method)[0])


def test_rounds_of_steps_are_the_same_over_flower_and_after_a_crash_within_an_epoch(tmp_path):
    clients = [{"name": "road", "data": "outdoor", "tasks": ["semseg"], "steps": 2}]
    clients += [{"name": "shop", "data": "outdoor", "tasks": ["semseg", "sal"], "steps": 3}]
    data = {"outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 6, "val": 2}}
    experiment = small_experiment(clients=clients, data=data, rounds=3)
    wanted, scores = in_memory(experiment)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    with pytest.raises(PowerCutError):
        run(experiment, tmp_path / "run", watcher=Watching(fails_in=1), engine=FlowerEngine(grid, TERMS))
    grid, sites, _ = flower_federation(experiment, tmp_path / "sites")
    assert resume(tmp_path / "run", watcher=Watching(), engine=FlowerEngine(grid, TERMS)).clients == scores
    assert_equal(models(sites), wanted)


def test_what_a_site_keeps_is_its_owners_alone(tmp_path):
    experiment = small_experiment(rounds=1)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    run(experiment, tmp_path / "run", watcher=Watching(), engine=FlowerEngine(grid, TERMS))
    kept = list((tmp_path / "sites").rglob("*"))
    assert {path.name for path in kept if path.is_file()} == {
        "state.safetensors",
        "reply.safetensors",
        "model.safetensors",
    }
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in kept}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_a_run_that_dies_before_its_models_are_there_has_not_come_to_its_end(tmp_path):
    experiment = small_experiment(rounds=1, baseline=True)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    collected = []

    def fail(experiment, name, folder):
        if folder.path.name == "run":
            raise PowerCutError

    with pytest.raises(PowerCutError):
        run(experiment, tmp_path / "run", watcher=Watching(), engine=FlowerEngine(grid, TERMS, collect=fail))
    assert not (tmp_path / "run" / "result.json").exists()
    resume(
        tmp_path / "run",
        watcher=Watching(),
        engine=FlowerEngine(grid, TERMS, collect=lambda experiment, name, folder: collected.append(folder.path.name)),
    )
    assert (collected, (tmp_path / "run" / "result.json").exists()) == (["run"], True)


@pytest.mark.parametrize("change", [("rounds: 3", "rounds: 4"), ("seed: 0", "seed: 1"), ("name: small", "name: large")])
def test_a_run_over_flower_whose_config_was_edited_stays_as_it_was(tmp_path, change):
    experiment = small_experiment(rounds=3)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    with pytest.raises(PowerCutError):
        run(experiment, tmp_path / "run", watcher=Watching(fails_in=1), engine=FlowerEngine(grid, TERMS))
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(*change))
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(UserError, match="what the run started with"):
        resume(tmp_path / "run", watcher=Watching(), engine=FlowerEngine(grid, TERMS))
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
