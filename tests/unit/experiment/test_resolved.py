"""A resolved experiment opens each data set once and shares it with its variants; reading a config opens nothing."""

import os
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, open_data
from fedhca2.federation.comparison_runs import plan_runs, plan_sweep
from fedhca2.methods import METHODS
from fedhca2.models import Encoder, EncoderConfig, pretrained
from own_experiments import run, write_experiment, write_table
from small import small
from small_run import run_small
from tiny_encoder import TINY

COUNTING = """
import numpy as np

OPENED = []


class Counting:
    size = (32, 32)

    def __init__(self, split, note: str = ""):
        OPENED.append(split)
        self.labels = {"depth": None}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"image": np.full((32, 32), index / 4), "depth": np.full((32, 32), 1.0 + index)}
"""
ONE = {"rounds": 1, "model": {"encoder": {"name": TINY}, "decoder_width": 8}}


@pytest.fixture
def counting(tmp_path):
    """An experiment whose data set counts how often it is opened, and that count."""
    (tmp_path / "counting.py").write_text(COUNTING, "utf-8")
    data = {"mine": {"kind": f"{tmp_path}/counting.py:Counting"}}
    clients = [{"data": "mine", "tasks": ["depth"], "name": name} for name in ("a", "b")]
    experiment = small(data=data, clients=clients, **ONE)
    opened = sys.modules[str((tmp_path / "counting.py").resolve())].OPENED
    return experiment, opened


def test_reading_and_writing_a_config_opens_no_data_set_and_each_run_opens_it_again(counting):
    experiment, opened = counting
    Experiment.parse(experiment.to_dict()).with_method("fedavg").blank.to_yaml()
    assert opened == []
    for _ in range(2):  # files may have changed between two runs
        open_data(experiment.resolve())
    assert sorted(opened) == ["train", "train", "val", "val"]


def test_all_runs_of_a_comparison_open_a_data_set_once(counting, tmp_path):
    experiment, opened = counting
    runs = plan_runs(experiment, list(METHODS), 5, tmp_path / "out")
    assert (len(runs) >= 5 * len(METHODS), opened) == (True, [])
    assert len({id(open_data(run.experiment)["mine"].train) for run in runs}) == 1
    assert sorted(opened) == ["train", "val"]


def test_a_sweep_opens_data_sets_of_equal_settings_once(counting, tmp_path):
    experiment, opened = counting
    settings = experiment.to_dict()
    other = {"mine": {**settings["data"]["mine"], "partition": {"kind": "draws", "share": 0.5}}}
    last = {"mine": {**settings["data"]["mine"], "note": "another"}}
    variants = {name: Experiment.parse(settings | {"data": data}) for name, data in (("b", other), ("c", last))}
    for planned in plan_sweep({"a": experiment, **variants}, 1, tmp_path / "out"):
        open_data(planned.experiment)
    assert sorted(opened) == ["train", "train", "val", "val"]


def test_a_run_with_a_baseline_opens_a_data_set_once(counting, tmp_path):
    experiment, opened = counting
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("small_run.open_data_once", open_data)
        run_small(experiment.replace(baseline=True), tmp_path / "run")
    assert sorted(opened) == ["train", "val"]


def test_a_variant_is_what_parsing_its_settings_gives_with_the_same_checks():
    experiment = small(method={"name": "fedhca2", "encoder": {"c": 0.3}}, baseline=True)
    for variant in (experiment.replace(seed=3, baseline=False), experiment.with_method("fedprox"), experiment.blank):
        assert Experiment.parse(variant.to_dict()).to_dict() == variant.to_dict()
    assert experiment.replace(rounds=7).resolved_method == small(rounds=7, method=experiment.method).resolved_method
    with pytest.raises(UserError, match="seed"):
        small().replace(seed=2**31)
    with pytest.raises(UserError, match=r"privacy\.noise"):
        small(privacy={"clip": 1.0, "noise": 1.0}).replace(method={"name": "fedavg", "batch_norm": "average"})


@pytest.fixture
def table(tmp_path):
    """A config with a folder of images and a CSV file, whose client has a task without a column."""
    for number in range(10):
        Image.new("RGB", (32, 32)).save(tmp_path / f"{number}.png")
    write_table(tmp_path / "labels.csv", [{"image": f"{i}.png", "brand": ["tea", "milk"][i % 2]} for i in range(10)])
    data = {"kind": "csv", "root": str(tmp_path), "size": [32, 32], "columns": {"classification": "brand"}}
    return write_experiment(tmp_path, data={"shop": data}, clients=[{"data": "shop", "tasks": ["regression"]}])


@pytest.mark.parametrize("words", [["run"], ["run", "--dry-run"], ["data", "check"]], ids=" ".join)
def test_a_task_without_labels_is_one_line_of_every_command_that_opens_the_data(table, words, tmp_path):
    out = ["--out", tmp_path / "out"] if words == ["run"] else []
    done = run(*words, table, *out)
    assert done.exit_code == 2, done.output
    assert "clients[0].tasks" in done.output
    assert "expected tasks of data set 'shop'" in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_weights_are_hashed_once_unless_they_change(tmp_path, monkeypatch):
    save_file(Encoder(EncoderConfig(name=TINY), (32, 32)).state_dict(), tmp_path / "weights.safetensors")
    os.utime(tmp_path / "weights.safetensors", (0, 0))  # a file that was just changed may change again
    hashed, hash_file = [], pretrained.file_digest
    monkeypatch.setattr(pretrained, "file_digest", lambda *arguments: hashed.append(arguments) or hash_file(*arguments))
    encoder = {"name": TINY, "weights": str(tmp_path / "weights.safetensors")}
    experiment = small(model={"encoder": encoder}, rounds=1, baseline=True)
    run_small(experiment, tmp_path / "run")
    plan_runs(experiment, list(METHODS), 2, tmp_path / "out")
    assert len(hashed) == 1
    path, digests = tmp_path / "changing.safetensors", set()
    for value in (0.0, 1.0):
        save_file({"x": torch.full((3,), value)}, path)
        digests.add(pretrained.digest(str(path)))
    assert len(digests) == 2
