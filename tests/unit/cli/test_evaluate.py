"""`fedhca2 evaluate` on a finished run."""

import json
import shutil
from statistics import mean

import pytest
import yaml

from command import invoke, printed, refused
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


def test_the_scores_are_those_of_the_run(run):
    result = json.loads((run / "result.json").read_text())
    found = evaluation(run)
    keys = ("clients", "baseline", "delta_m", "delta_m_by_client")
    assert {key: found[key] for key in keys} == {key: result[key] for key in keys}


def test_delta_m_is_of_the_means_of_clients_of_a_kind(run):
    result = json.loads((run / "result.json").read_text())

    def column(client, task, metric):
        """Scores of the clients whose names start with this, in the run and alone."""
        return [
            [scores[name][task][metric] for name in scores if name.startswith(client)]
            for scores in (result["clients"], result["baseline"])
        ]

    normals = column("outdoor-normals", "normals", "mean_error")
    others = [column("outdoor-edge", "edge", "ods_f"), column("home", "depth", "rmse")]
    rest = [sign * (ours[0] / alone[0] - 1) for sign, (ours, alone) in zip((1, -1), others, strict=True)]
    by_client = [1 - ours / alone for ours, alone in zip(*normals, strict=True)]
    assert result["delta_m"] == pytest.approx(100 * mean([1 - mean(normals[0]) / mean(normals[1]), *rest]))
    assert result["delta_m_by_client"] == pytest.approx(100 * mean([*by_client, *rest]))


def test_every_client_is_named_while_it_works(run):
    assert "evaluating home\n" in invoke("evaluate", run).stderr


def test_training_images_give_other_scores(run):
    assert evaluation(run, "--split", "train", name="evaluation-train")["clients"] != evaluation(run)["clients"]


def test_one_client_can_be_evaluated_alone(run):
    assert set(evaluation(run, "--client", "home", name="evaluation-val-home")["clients"]) == {"home"}


def test_edges_are_judged_at_the_thresholds_that_are_asked_for(run):
    found = evaluation(run, "--thresholds", 3, "--client", "outdoor-edge", name="evaluation-val-outdoor-edge")
    assert found["clients"]["outdoor-edge"]["edge"]["threshold"] in (0.25, 0.5, 0.75)


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
