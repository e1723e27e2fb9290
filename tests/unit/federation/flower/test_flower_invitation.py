"""What a site is told, what it accepts, and what it keeps to itself."""

import re
from pathlib import Path

import pytest
import yaml

import fedhca2
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.flower.deploy.consent import Invitation
from fedhca2.federation.flower.deploy.site_config import SiteConfig


def experiment(**changes):
    values = {
        "name": "rooms",
        "data": {
            "rooms": {"kind": "nyud", "root": "/coordinator/rooms", "size": [64, 64]},
            "street": {"kind": "scenes", "domain": "outdoor"},
        },
        "clients": [
            {"name": "home", "data": "rooms", "tasks": ["depth", "normals"]},
            {"data": "street", "split": ["semseg"]},
        ],
    }
    return Experiment.parse(values | changes)


def site(**changes):
    values = {"client": "home", "tasks": ("normals", "depth"), "state": "/state", "data": {"root": "/site/rooms"}}
    return SiteConfig.model_validate(values | changes)


def invitation(**changes):
    return Invitation.for_experiment(experiment(**changes), "run1")


WEIGHTS = {"encoder": {"weights": "/coordinator/encoder.pt"}}


def test_no_path_of_the_coordinator_is_sent():
    assert "/coordinator" not in str(invitation(model=WEIGHTS).header())


def test_the_invitation_of_a_site_is_accepted_as_the_whole_one_with_its_own_folder():
    whole = invitation(metrics={"depth": "rmse"}, privacy={"clip": 1.0})
    accepted = whole.only_for("home").accept(site())
    assert accepted == whole.accept(site())
    assert accepted[0].data["rooms"].root == Path("/site/rooms")


def test_a_method_by_path_crosses_by_its_name_and_runs_from_the_sites_own_file(tmp_path):
    code = "from fedhca2.methods import METHODS\nMINE = METHODS['fedper']\n"
    folders = [tmp_path / "jane", tmp_path / "site"]
    for folder in folders:
        folder.mkdir()
        (folder / "my_method.py").write_text(code, "utf-8")
    told = invitation(method=f"{folders[0]}/my_method.py:MINE").only_for("home")
    assert told.experiment["method"]["name"] == "my_method.py:MINE"
    with pytest.raises(UserError, match=r"\(methods in site\.yaml\)"):
        told.accept(site())
    accepted, _ = told.accept(site(methods=[f"{folders[1]}/my_method.py:MINE"]))
    assert accepted.method_name == f"{folders[1]}/my_method.py:MINE"


def test_a_site_uses_its_own_weights_or_says_that_it_has_none(tmp_path):
    accepted, _ = invitation(model=WEIGHTS).accept(site(weights=tmp_path / "own.pt"))
    assert accepted.model.encoder.weights == str(tmp_path / "own.pt")
    with pytest.raises(UserError, match=r"none, scenes \(weights in site\.yaml\), got 'own'"):
        invitation(model=WEIGHTS).accept(site())


@pytest.mark.parametrize(
    ("theirs", "own", "clip", "noise"),
    [
        ({}, {"clip": 1.0, "noise": 0.5}, 1.0, 0.5),
        ({"clip": 9.0, "noise": 0.1}, {"clip": 1.0, "noise": 0.5}, 1.0, 0.5),
        ({"clip": 0.1, "noise": 3.0}, {"clip": 1.0, "noise": 0.5}, 0.1, 3.0),
        ({"clip": 0.1, "noise": 3.0}, {}, 0.1, 3.0),
    ],
)
def test_of_the_bounds_of_site_and_server_the_stricter_ones_hold(theirs, own, clip, noise):
    accepted, _ = invitation(privacy=theirs, guard={"reach": 0}).accept(site(privacy=own))
    assert (accepted.privacy.clip, accepted.privacy.noise) == (clip, noise)


def test_more_noise_than_the_servers_guard_lets_through_needs_a_smaller_clip():
    quiet = invitation(privacy={"clip": 1.0, "noise": 0.1})
    with pytest.raises(UserError, match=r"privacy\.noise: expected guard\.noise of 0\.5 or more .* got 0\.1"):
        quiet.accept(site(privacy={"clip": 1.0, "noise": 0.5}))
    accepted, _ = quiet.accept(site(privacy={"clip": 0.1, "noise": 0.5}))
    assert accepted.privacy.noise == 0.5


def test_a_site_with_noise_of_its_own_takes_part_and_measures_no_losses():
    diagnosed = invitation(diagnostics={"every": 1}, guard={"noise": 1.0})
    accepted, _ = diagnosed.accept(site(privacy={"clip": 1.0, "noise": 1.0}))
    assert accepted.diagnostics is None


@pytest.mark.parametrize("run", ["../x", "a/b", "", "a" * 65])
def test_the_name_of_a_run_is_no_path(run):
    with pytest.raises(UserError, match="letters and digits"):
        Invitation.read({"run": run, "experiment": {}})


def test_nothing_else_imports_flower():
    package = Path(fedhca2.__file__).parent
    imports = re.compile(r"^\s*(from|import) flwr\b", re.MULTILINE)
    found = [path for path in package.rglob("*.py") if imports.search(path.read_text())]
    assert found
    homes = (package / "federation" / "flower", package / "flower")
    assert all(any(path.is_relative_to(home) for home in homes) for path in found)


def site_file(folder, **values):
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump({"client": "home", "tasks": ["depth"], "state": "state"} | values), "utf-8")
    return file


def test_paths_in_a_site_file_are_relative_to_it(tmp_path):
    (tmp_path / "own.py").touch()
    data = {"kind": "nyud", "root": "rooms"}
    found = SiteConfig.load(site_file(tmp_path, data=data, turns="t", weights="own.pt", methods=["own.py:X"]))
    assert (found.state, found.data["root"]) == (tmp_path / "state", str(tmp_path / "rooms"))
    assert (found.turns, found.weights) == (tmp_path / "t", tmp_path / "own.pt")
    assert found.methods == (f"{tmp_path}/own.py:X",)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"turns": "site.yaml"}, "turns: expected a folder, got File exists"),
        ({"task": ["depth"]}, r"site\.yaml: task: unknown key\. Did you mean 'tasks'\?"),
        ({"scores": "sometimes"}, r"scores\.send: expected 'all', 'final' or 'none', got 'sometimes'"),
    ],
)
def test_a_wrong_site_file_says_where(tmp_path, values, fault):
    with pytest.raises(UserError, match=fault):
        SiteConfig.load(site_file(tmp_path, **values))
