import runpy
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.experiment import Experiment

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "add_a_method.py"
CONFIG = {
    "rounds": 1,
    "method": {"name": "examples/add_a_method.py:FRIENDLY", "sharpness": 2},
    "model": {"encoder": {"name": "swin_micro"}, "decoder_width": 8},
    "training": {"batch_size": 2},
    "data": {"outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 4, "val": 1}},
    "clients": [{"data": "outdoor", "split": ["semseg", "sal"]}],
}


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_example_of_a_method_does_what_it_says(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "eve adds [0.0, -1.0]" in capsys.readouterr().out


def test_the_example_of_a_method_is_short():
    text = EXAMPLE.read_text("utf-8")
    method = text[text.index("class Friendly") : text.index("def main")]
    assert len([line for line in method.splitlines() if line.strip()]) < 30


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = tmp_path / "ours.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def test_a_config_names_a_method_by_its_file(config):
    assert Experiment.load(config).resolved_method.encoder.sharpness == 2


def test_a_mistake_in_the_settings_of_a_method_by_file_is_one_line(config):
    found = command("run", config, "--set", "method.sharpness=-1")
    assert found.exit_code == 2
    assert "FRIENDLY: encoder.sharpness: expected more than 0, got -1" in found.output


@pytest.mark.slow
def test_a_run_with_a_method_by_its_file_can_be_read_back(config, tmp_path):
    found = command("run", config, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    assert Experiment.load(tmp_path / "run" / "config.yaml").resolved_method == Experiment.load(config).resolved_method
