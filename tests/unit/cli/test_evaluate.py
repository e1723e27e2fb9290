"""`fedhca2 evaluate` on a finished run."""

import json
import shutil
from functools import partial

import pytest
import yaml

from command import invoke, printed, refused
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import overall_gain
from small import SMALL

pytestmark = pytest.mark.slow

CLIENTS = [
    {"data": "outdoor", "split": ["normals"], "copies": 2},
    {"data": "outdoor", "split": ["edge"]},
    {"name": "home", "data": "indoor", "tasks": ["depth"]},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "small.yaml").write_text(yaml.safe_dump({**SMALL, "clients": CLIENTS, "baseline": True, "rounds": 1}))
    printed("run", folder / "small.yaml", "--out", folder / "run")
    return folder / "run"


def evaluation(run, *options, name="evaluation-val"):
    printed("evaluate", run, *options)
    return json.loads((run / f"{name}.json").read_text())


def test_the_scores_are_those_of_the_run_with_the_mean_of_each_kind_and_others_on_training_images(run):
    result = json.loads((run / "result.json").read_text())
    scored = evaluation(run)
    keys = ("clients", "baseline", "delta_m", "delta_m_by_client")
    assert {key: scored[key] for key in keys} == {key: result[key] for key in keys}
    assert evaluation(run, "--split", "train", name="evaluation-train")["clients"] != scored["clients"]
    files, scored = RunFiles.open(run), RunFiles.open(run).outcome
    gain = partial(overall_gain, scored.clients, scored.baseline, files.task_set)
    assert scored.delta_m == gain(files.kinds) != gain() == scored.delta_m_by_client


def test_one_client_is_evaluated_alone_with_another_number_of_thresholds_and_named_while_it_works(run):
    done = invoke("evaluate", run, "--thresholds", 3, "--client", "outdoor-edge")
    assert "evaluating outdoor-edge\n" in done.stderr
    scored = json.loads((run / "evaluation-val-outdoor-edge.json").read_text())["clients"]
    assert (list(scored), scored["outdoor-edge"]["edge"]["threshold"] in (0.25, 0.5, 0.75)) == (["outdoor-edge"], True)


def test_the_first_weights_need_not_be_there_any_more(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["encoder"] |= {"weights": "gone.pth", "sha256": "0"}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    assert evaluation(tmp_path / "run")["clients"] == evaluation(run)["clients"]


@pytest.mark.parametrize(("options", "line"), [(["--client", "hom"], "got 'hom'"), (["--split", "test"], "--split")])
def test_wrong_options_are_wrong_input(run, options, line):
    done = invoke("evaluate", run, *options)
    assert (done.exit_code, line in " ".join(done.output.replace("│", " ").split())) == (2, True)


def test_a_folder_that_is_no_run_and_a_broken_model_are_named(run, tmp_path):
    assert "expected a finished run" in refused("evaluate", tmp_path)
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "models" / "home.safetensors").write_bytes(b"nothing")
    output = invoke("evaluate", tmp_path / "run", "--client", "home").output
    assert "home.safetensors: expected the trained model" in output.splitlines()[-1]
