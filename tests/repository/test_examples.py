"""The files in examples/ do what they say, by themselves and in runs."""

import runpy
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from command import printed, refused
from fedhca2.experiment import Experiment
from small import BRIEF
from warm import output_of

ROOT = Path(__file__).parents[2]
CONFIG = {
    "rounds": 1,
    "method": {"name": "examples/add_a_method.py:FRIENDLY", "sharpness": 2},
    "model": {"encoder": {"name": "swin_micro"}, "decoder_width": 8},
    "training": {"batch_size": 2},
    "data": {"outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 4, "val": 1}},
    "clients": [{"data": "outdoor", "split": ["semseg", "sal"]}],
}


OTHERS = ("combine_updates.py:EQUAL_SAY", "keep_rows.py:SLOW")
EXAMPLES = {
    "add_a_method.py": "eve adds [0.0, -1.0]",
    "add_a_local_term.py": "subtracts [1.0, -1.0] times",
    "combine_updates.py": "all add [2.0, 0.0]\n",
    "keep_rows.py": "all get [0.75, 1.5]\n",
}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = tmp_path / "ours.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def test_a_config_names_a_method_by_its_file(config):
    assert Experiment.load(config).resolved_method.encoder.sharpness == 2


def test_a_mistake_in_the_settings_of_a_method_by_file_is_one_line(config):
    assert "FRIENDLY: encoder.sharpness: expected more than 0" in refused("run", config, "--set", "method.sharpness=-1")


@pytest.mark.slow
def test_a_run_with_a_method_by_its_file_can_be_read_back(config, tmp_path):
    printed("run", config, "--out", tmp_path / "run")
    assert Experiment.load(tmp_path / "run" / "config.yaml").resolved_method == Experiment.load(config).resolved_method


@pytest.mark.slow
def test_a_run_with_a_control_variate_by_its_file_differs_from_one_without(config, tmp_path):
    loads = []
    for share in (0.5, 0.0):
        method = {"name": "examples/add_a_local_term.py:CORRECTED", "share": share}
        out, settings = tmp_path / str(share), {**CONFIG, "rounds": 3, "method": method}
        config.write_text(yaml.safe_dump(settings))
        printed("run", config, "--out", out)
        loads.append(load_file(next((out / "models").iterdir())))
    one, other = loads
    assert any(not one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_is_short_and_does_what_it_says(file, capsys):
    path = ROOT / "examples" / file
    runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert EXAMPLES[file] in shown
    assert file.startswith("add_") or (shown == EXAMPLES[file] and len(path.read_text("utf-8").splitlines()) <= 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_run_with_the_other_examples_continues(name, config, tmp_path):
    printed("run", config, "--out", tmp_path / "run", "--set", f"method=examples/{name}", "--set", "rounds=2")
    printed("resume", tmp_path / "run", "--set", "rounds=3")


@pytest.mark.slow
def test_the_quickstart_says_what_each_client_gained(tmp_path):
    assert "outdoor-semseg" in output_of(ROOT / "examples" / "quickstart.py", *BRIEF, cwd=tmp_path)
    assert list(tmp_path.glob("runs/demo-*/report.html"))
