"""The files on the pages about own data, tasks and trackers, about Python, and of the tutorial, run as they are."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from command import printed as run
from fedhca2.experiment import Experiment
from made_run import made_run
from tiny_encoder import TINY

DOCS = Path(__file__).parents[2] / "docs"
SMALL = {
    "rounds": 1,
    "model": {"encoder": {"name": TINY}, "decoder_width": 8},
    "training": {"batch_size": 2, "schedule": {"warmup_epochs": 0}},
}


def files_of(page, folder):
    """Write the files on a page, each named in its first line, into a folder."""
    text = (DOCS / page).read_text("utf-8")
    for name, content in re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", text, re.M | re.S):
        (folder / name).write_text(content, "utf-8")
    return folder


def shrink(path, **changes):
    values = yaml.safe_load(path.read_text("utf-8"))
    path.write_text(yaml.safe_dump({**values, **SMALL, **changes}), "utf-8")
    return path


@pytest.fixture
def shelves(tmp_path):
    folder = files_of("own-data.md", tmp_path)
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        (folder / "shelves" / split).mkdir(parents=True)
        for i in range(4):
            image = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / "shelves" / split / f"{i}.jpg")
            Image.fromarray(image[..., 0] // 86).save(folder / "shelves" / split / f"{i}.png")
    return shrink(folder / "shelves.yaml")


@pytest.mark.parametrize(("name", "most"), [("data", 20), ("task", 15), ("tracker", 20)])
def test_a_class_of_ones_own_is_short(tmp_path, name, most):
    text = (files_of(f"own-{name}.md", tmp_path) / f"my_{name}.py").read_text("utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= most


def test_the_tracker_on_the_page_writes_its_table(tmp_path):
    files_of("own-tracker.md", tmp_path)
    made_run(tmp_path / "run")
    run("watch", tmp_path / "run", "--track", f"{tmp_path / 'my_tracker.py'}:Table={tmp_path / 'numbers.csv'}")
    table = (tmp_path / "numbers.csv").read_text()
    assert "home/depth/rmse,3,2.0" in table.splitlines()
    assert "file,0,result.json" in table.splitlines()


def test_the_data_set_on_the_page_is_checked_and_painted(shelves, tmp_path):
    assert "semseg: 0 … 2" in run("data", "check", shelves)
    run("data", "info", shelves, "--out", tmp_path / "shelves.png")
    assert Image.open(tmp_path / "shelves.png").size[0] == 2 * 192


@pytest.mark.slow
def test_the_data_set_on_the_page_trains_and_works_from_any_folder(shelves, tmp_path, monkeypatch):
    run("run", shelves, "--out", tmp_path / "run")
    monkeypatch.chdir("/")
    assert "mIoU" in run("evaluate", tmp_path / "run")
    assert "2/2" in run("resume", tmp_path / "run", "--set", "rounds=2")


@pytest.mark.slow
def test_the_task_on_the_page_trains(tmp_path):
    path = files_of("own-task.md", tmp_path) / "counting.yaml"
    data = {"outdoor": {"train": 8, "val": 2, "size": [32, 32]}}
    shrink(path, data=data, clients=[{"data": "outdoor", "split": ["people", "things"]}], baseline=False)
    assert "MAE" in run("run", path, "--out", tmp_path / "run")


def test_the_archive_on_the_page_can_be_read(tmp_path):
    folder = files_of("own-data.md", tmp_path)
    (folder / "train.txt").write_text("first\n", "utf-8")
    for name, mode in (("images", "RGB"), ("masks", "L")):
        (folder / name).mkdir()
        Image.new(mode, (6, 4), "white").save(folder / name / "first.png")
    values = {"data": {"masks": {"kind": "my_masks.py:Masks", "root": ".", "size": [32, 32]}}}
    path = folder / "masks.yaml"
    path.write_text(yaml.safe_dump(values | {"clients": [{"data": "masks", "tasks": ["sal"]}]}), "utf-8")
    data = Experiment.load(path).data["masks"].open("train")
    assert data.load(0, ["sal"])["sal"].unique().tolist() == [1]


def test_the_map_style_data_set_on_the_page_can_be_read(tmp_path, monkeypatch):
    folder = files_of("own-data.md", tmp_path)

    def pets(root, split, target_types):
        """As torchvision's, without its download."""
        assert (split, target_types) == ("trainval", "binary-category")
        return [(Image.new("RGB", (32, 32)), index) for index in range(2)]

    monkeypatch.setattr("torchvision.datasets.OxfordIIITPet", pets)
    values = {"data": {"pets": {"kind": "my_pets.py:pets", "root": ".", "size": [32, 32]}}}
    path = folder / "pets.yaml"
    path.write_text(yaml.safe_dump(values | {"clients": [{"data": "pets", "tasks": ["classification"]}]}), "utf-8")
    data = Experiment.load(path).data["pets"].open("train")
    assert data.load(1, ["classification"])["classification"].tolist() == [1.0]


@pytest.mark.slow
def test_the_tutorial_leads_from_photographs_to_an_exported_model(tmp_path, monkeypatch):
    monkeypatch.chdir(files_of("from-zero.md", tmp_path))
    runpy.run_path("make_photos.py", run_name="__main__")
    run("run", "shops.yaml", "--out", "runs/shops", "--set", "rounds=1", "--set", "evaluate_every=1")
    assert "classification: " in run("predict", "runs/shops", "shop-b/30.jpg", "shop-b/37.jpg", "--client", "shop-b")
    assert "semseg: " in run("predict", "runs/shops", "shop-a/30.jpg", "--client", "shop-a", "--out", "masks")
    run("export", "runs/shops", "--client", "shop-a", "--out", "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"shop-a.onnx", "shop-a.md"}


@pytest.mark.slow
def test_the_page_about_python_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", (DOCS / "in-python.md").read_text("utf-8"), re.M | re.S))
    names = {"__name__": "page"}
    exec(code, names)
    assert set(names["answer"].values) == {"upright", "flat"}
    assert list(names["comparison"].entries)[-1] == "trivial"
    assert set(names["unlearned"]) <= {"direction"}
    assert {record["experiment"] for record in names["board"]} == {"stripes"}
    assert 0 <= names["again"]["accuracy"] <= 100
    assert Path("history.csv").read_text("utf-8").startswith("round,method,client,task,metric,value\n")
