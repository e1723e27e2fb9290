"""`fedhca2 new` writes a project that runs as it is."""

import re

import pytest
import yaml

import fedhca2
from command import printed, refused
from fedhca2.configs import built_in_names
from fedhca2.experiment import Experiment


@pytest.fixture(params=["images", "table"])
def kind(request):
    return request.param


@pytest.fixture
def project(kind, tmp_path, monkeypatch):
    printed("new", tmp_path / "mine", *["--table"] * (kind == "table"))
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_new_project_is_named_in_its_files_has_no_faults_and_stays_as_it_is(project):
    assert (project / "README.md").read_text("utf-8").startswith("# mine\n")
    assert "No problems found" in printed("data", "check", "experiment.yaml")
    (project / "experiment.yaml").write_text("mine")
    assert "new or empty folder" in refused("new", project)
    assert (project / "experiment.yaml").read_text() == "mine"


def test_an_experiment_has_the_name_of_its_folder_as_far_as_experiments_may_have_it(tmp_path):
    for folder, name in (("mine 2", "mine-2"), ("données", "donn-es"), ("1.5", "1.5")):
        printed("new", tmp_path / folder)
        assert Experiment.load(tmp_path / folder / "experiment.yaml").name == name


@pytest.mark.slow
def test_all_commands_of_its_readme_run(project, kind):
    small = ["rounds=1", *(["data.east.count=16", "data.west.count=16"] if kind == "images" else [])]
    readme = (project / "README.md").read_text("utf-8")
    for line in re.findall(r"^    fedhca2 (.*?)(?: +#.*)?$", readme, re.M):
        settings = [word for one in small for word in ("--set", one)] if line.startswith(("run", "compare")) else []
        printed(*line.split(), *settings)
    assert {"fedavg", "fedper"} <= {record["method"] for record in fedhca2.leaderboard("runs")}
    if kind == "table":
        exec(re.search(r"```python\n(.*?)```", readme, re.S)[1])


def test_a_preset_gives_its_training_and_nothing_else(tmp_path):
    data = {"mine": {"kind": "scenes", "domain": "indoor", "size": [32, 32], "train": 4, "val": 1}}
    own = {"extends": "small", "data": data, "clients": [{"data": "mine", "tasks": ["depth"]}]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(own))
    experiment, demo = Experiment.load(tmp_path / "mine.yaml"), Experiment.load("demo")
    assert (list(experiment.data), experiment.name) == (["mine"], "mine")
    assert (experiment.training, experiment.model) == (demo.training, demo.model)
    assert "presets/small" not in built_in_names()
