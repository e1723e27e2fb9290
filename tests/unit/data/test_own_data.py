"""Data sets of a user's own, by import path."""

import pytest
import torch
import yaml
from PIL import Image

from command import printed, refused
from fedhca2.experiment import Experiment
from own_experiments import dealt, fault, opened, run, write_experiment
from tiny_encoder import TINY

SHELVES = """
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

class Shelves:
    labels = {"semseg": ("nothing", "bottle", "box"), "depth": None}
    size = (32, 32)

    def __init__(self, split, root: Path, count: int = 8, note: Path | None = None):
        self.count = count
        self.given = {"split": split, "root": root, "note": note}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = np.random.default_rng(index).integers(0, 256, (32, 24, 3), dtype=np.uint8)
        return CHANGE({"image": image, "semseg": image[..., 0] // 86, "depth": image.mean(axis=2) / 25}, index)

def CHANGE(sample, index):
    return sample

def damaged():
    file = BytesIO()
    Image.effect_noise((24, 32), 50).save(file, "png")
    return Image.open(BytesIO(file.getvalue()[:300]))

NoSplit = type("NoSplit", (), {})
NoLength = type("NoLength", (), {"__init__": lambda self, split: None})
BadParameter = type("BadParameter", (Shelves,), {"__init__": lambda self, split, labels: None})
OneNumber = type("OneNumber", (Shelves,), {"size": 32})
Many = type("Many", (Shelves,), {"labels": {"semseg": 300}})
Unnamed = type("Unnamed", (Shelves,), {"labels": {"semseg": None}})

class Labelled(Shelves):
    labels = {"brand": ("tea", "milk"), "tilt": None, "both": 2}

    def __getitem__(self, index):
        image = super().__getitem__(index)["image"]
        return CHANGE({"image": image, "brand": index % 2, "tilt": 0.5, "both": [1, 2]}, index)

class Lacking(Shelves):
    def __init__(self, split, root: Path, lacking: str):
        super().__init__(split, root)
        self.lacking = lacking

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample if self.given["split"] != self.lacking else {**sample, "depth": None}

def shelves(split, root: Path):
    return Shelves(split, root, count=5)

nothing = lambda split, root: 3
def broken(split, root):
    raise KeyError("shelf 3")
"""


def folder_with(tmp_path, change="return sample"):
    (tmp_path / "my_data.py").write_text(SHELVES.replace("return sample", change), "utf-8")
    (tmp_path / "images").mkdir(exist_ok=True)
    return tmp_path


def experiment_in(folder, kind="my_data.py:Shelves", tasks=("semseg", "depth"), **settings):
    return write_experiment(
        folder,
        model={"encoder": {"name": TINY}},
        training={"batch_size": 2},
        data={"mine": {"kind": kind, "root": "images", **settings}},
        clients=[{"data": "mine", "split": list(tasks)}],
    )


VECTORS = {"brand": "classification", "tilt": "regression", "both": "regression"}


def with_vectors(tmp_path, change="return sample"):
    path = experiment_in(folder_with(tmp_path, change), kind="my_data.py:Labelled", tasks=list(VECTORS))
    path.write_text(path.read_text() + yaml.safe_dump({"tasks": VECTORS}))
    return path


@pytest.mark.parametrize(("settings", "note"), [({}, None), ({"note": "ours.yaml"}, "ours.yaml")])
def test_relative_paths_start_at_the_folder_of_the_experiment(tmp_path, settings, note):
    settings_given = opened(experiment_in(folder_with(tmp_path), **settings)).data.given
    assert settings_given == {"split": "train", "root": tmp_path / "images", "note": note and tmp_path / note}
    (tmp_path / "elsewhere").mkdir()
    child = tmp_path / "elsewhere" / "child.yaml"
    child.write_text("extends: ../ours.yaml\nrounds: 2\n", "utf-8")
    assert opened(child).data.given["root"].samefile(tmp_path / "images")


def test_what_a_run_writes_down_can_be_read_from_anywhere(tmp_path, monkeypatch):
    written = Experiment.load(experiment_in(folder_with(tmp_path), count=6)).to_dict()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert Experiment.parse(written).to_dict() == written


def test_a_function_can_make_the_data_set(tmp_path):
    experiment = Experiment.load(experiment_in(folder_with(tmp_path), kind="my_data.py:shelves", size=[32, 32]))
    assert (len(experiment.open("mine", "val")), list(experiment.labels["mine"])) == (5, ["semseg", "depth"])


def test_a_sample_is_an_image_and_labels_as_tensors(tmp_path):
    sample = opened(experiment_in(folder_with(tmp_path))).load(0, ["depth", "semseg"])
    assert {name: (value.dtype, tuple(value.shape)) for name, value in sample.items()} == {
        "image": (torch.uint8, (3, 32, 24)),
        "depth": (torch.float32, (1, 32, 24)),
        "semseg": (torch.uint8, (1, 32, 24)),
    }


FORMS = ("Image.fromarray(image)", "image.astype(np.float32) / 255", "image.astype(np.uint16)")


@pytest.mark.parametrize("form", [*FORMS, "torch.from_numpy(image).permute(2, 0, 1)"])
def test_an_image_may_have_any_usual_form(tmp_path, form):
    change = f"import torch; image = sample['image']; return {{**sample, 'image': {form}}}"
    expected = opened(experiment_in(folder_with(tmp_path))).load(1, [])["image"]
    (tmp_path / "other").mkdir()
    other = opened(experiment_in(folder_with(tmp_path / "other", change)))
    assert torch.equal(other.load(1, [])["image"], expected)


def test_a_cached_sample_is_read_once(tmp_path):
    data = opened(experiment_in(folder_with(tmp_path), cache=True))
    first = data.load(0, ["semseg"])
    data.data = None
    assert torch.equal(data.load(0, ["semseg"])["semseg"], first["semseg"])


BAD = {  # what is wrong with a sample, and the message
    "sample['semseg'] = sample['semseg'][:9]": "'semseg': expected 1×32×24 like its image, got 1×9×24",
    "sample['semseg'] = sample['semseg'] + 1": "'semseg': expected values from 0 to 2, or 255",
    "sample['semseg'] = sample['semseg'] / 2": "'semseg': expected the whole numbers",
    "sample['depth'][0] = np.inf": "'depth': expected finite values, got infinity",
    "sample['image'] = sample['image'] / np.nan": "'image': expected finite values, got NaN",
    "sample['image'] = sample['image'] / 2": "'image': expected floats from 0 to 1, or bytes",
    "sample['image'] = np.zeros((9, 9, 4))": "'image': expected 1 or 3 channels, got 4×9×9",
    "sample['image'] = 'a.png'": "'image': expected an array of numbers",
    "sample['image'] = damaged()": "'image': expected something readable, got OSError",
    "sample['image'] = Image.new('1', (8000, 8000))": "'image': expected at most 40000000 pixels, got 8000×8000",
    "del sample['image']": "'image', got semseg, depth",
    "sample = tuple(sample.values())": "{'image': …, task: …}, got tuple",
    "sample = sample['picture']": "KeyError: 'picture' (my_data.py, line 24)",
}


@pytest.mark.parametrize(("change", "message"), BAD.items())
def test_a_bad_sample_is_named_before_training(tmp_path, change, message):
    said = fault(experiment_in(folder_with(tmp_path, f"{change}; return sample")))
    assert (said.startswith("data.mine: train["), message in said) == (True, True), said


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no_such_file.py:Shelves", "no_such_file.py cannot be imported: No such file or directory"),
        ("my_data.py:Shelvs", "Shelvs: expected a class or function of a data set"),
        ("my_data.py:NoSplit", "with a parameter `split`"),
        ("my_data.py:OneNumber", "`size`: expected height and width"),
        ("my_data.py:Unnamed", "data.mine: semseg: expected the names of its classes"),
        ("my_data.py:Many", "data.mine: semseg: expected at most 255 classes"),
        ("my_data.py:NoLength", "NoLength: expected __len__"),
        ("my_data.py:BadParameter", "BadParameter: expected other names of parameters, got 'labels'"),
        ("my_data.py:nothing", "nothing: expected __len__"),
        ("my_data.py:broken", "broken: expected to open its train split, got KeyError: 'shelf 3'"),
        ("nyuud", "data.mine: kind: expected a known kind or path/to/file.py:NAME"),
    ],
)
def test_a_data_set_that_cannot_be_opened_is_one_line(tmp_path, kind, message):
    settings = {"size": [32, 32]} if kind in ("my_data.py:nothing", "my_data.py:broken") else {}
    path = experiment_in(folder_with(tmp_path), kind=kind, tasks=["semseg"], **settings)
    said = fault(path)
    assert (message in said, "Did you mean" in said) == (True, kind in ("my_data.py:Shelvs", "nyuud")), said
    assert run("data", "check", path).exit_code in (1, 2)  # a check passes nothing that a run refuses


MISSING = {  # what a sample may have instead of a label
    "nothing under its name": "del sample['semseg'], sample['depth']",
    "none": "sample.update(semseg=None, depth=None)",
    "one NaN": "sample.update(semseg=np.nan, depth=float('nan'))",
    "a map of NaN": "sample.update(semseg=np.full((32, 24), np.nan), depth=np.full((32, 24), np.nan))",
    "all masked": "sample.update({k: np.ma.masked_all_like(sample[k]) for k in ('semseg', 'depth')})",
}


@pytest.mark.parametrize("change", MISSING.values(), ids=MISSING)
def test_the_maps_of_a_sample_may_be_missing(tmp_path, change):
    sample = opened(experiment_in(folder_with(tmp_path, f"{change}; return sample"))).load(0, ["semseg", "depth"])
    assert all((sample[task] == 255).all() and sample[task].shape == (1, 32, 24) for task in ("semseg", "depth"))
    assert sample["semseg"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("change", "task", "dtype", "label"),
    [
        ("sample['semseg'] = sample['semseg'] >= 0", "semseg", torch.uint8, torch.ones(32, 24)),
        ("sample['depth'] = np.full((32, 24), 300, np.uint16)", "depth", torch.float32, torch.full((32, 24), 300.0)),
        ("import torch; sample['depth'] = torch.full((32, 24), 7)", "depth", torch.float32, torch.full((32, 24), 7.0)),
        (
            "sample['depth'] = np.ma.array(np.ones((32, 24)), mask=np.eye(32, 24))",
            "depth",
            torch.float32,
            1 + 254 * torch.eye(32, 24),
        ),
    ],
)
def test_a_label_may_have_any_type_of_number_and_masked_pixels(tmp_path, change, task, dtype, label):
    read = opened(experiment_in(folder_with(tmp_path, f"{change}; return sample"))).load(0, [task])[task]
    assert (read.dtype, torch.equal(read[0].float(), label)) == (dtype, True)


@pytest.mark.parametrize("change", ["sample.pop(task, 0)", "sample[task] = None", "sample[task] = np.nan"])
@pytest.mark.parametrize("task", ["brand", "tilt", "both"])
def test_the_vectors_of_a_sample_may_be_missing(tmp_path, task, change):
    label = opened(with_vectors(tmp_path, f"task = {task!r}; {change}; return sample")).load(0, [task])[task]
    assert label.isnan().all()
    assert len(label) == (2 if task == "both" else 1)  # without names, a regression is one number


@pytest.mark.parametrize(("split", "kind"), [("train", "training"), ("val", "validation")])
@pytest.mark.parametrize("skip_broken", [False, True])
def test_a_task_without_any_label_is_named_before_training(tmp_path, split, kind, skip_broken):
    path = experiment_in(folder_with(tmp_path), kind="my_data.py:Lacking", lacking=split)
    path.write_text(path.read_text() + yaml.safe_dump({"skip_broken": skip_broken}))
    message = fault(path)
    assert message.startswith("data.mine: expected a label of 'depth'")
    assert all(word in message for word in (kind, "'mine-depth'"))


def test_some_labels_are_enough_and_check_counts_the_missing_ones(tmp_path):
    path = experiment_in(folder_with(tmp_path, "index == 3 or sample.pop('depth'); return sample"))
    assert dealt(path)
    assert "missing in 7 images" in run("data", "check", path).output


def test_a_regression_without_names_is_one_number(tmp_path):
    sample = opened(with_vectors(tmp_path)).load(0, list(VECTORS))
    assert {task: sample[task].tolist() for task in VECTORS} == {"brand": [0], "tilt": [0.5], "both": [1, 2]}
    assert dealt(with_vectors(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sample['brand'] = [0, 1]", "'brand': expected the number of one class, got 2 numbers; of a one-hot"),
        ("sample['brand'] = [0, 1, 0]", "'brand': expected the number of one class, got 3 numbers"),
        ("sample['tilt'] = [0, 1]", "'tilt': expected 1 number, got 2 numbers"),
        ("sample['both'] = 3", "'both': expected 2 numbers, got 1 number"),
    ],
)
def test_a_vector_of_another_length_says_how_many_numbers(tmp_path, change, message):
    assert message in fault(with_vectors(tmp_path, f"{change}; return sample"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": "many"}, "data.mine.count: expected a whole number, got 'many'"),
        ({"cout": 3}, "data.mine.cout: unknown key. Did you mean 'count'?"),
        ({"root": "nowhere"}, "data.mine.root: expected a folder, got none at"),
        ({"note": "nothing.txt"}, "data.mine: nothing.txt: expected 'note' here, got nothing"),
        ({"size": [32]}, "data.mine.size[1]: missing"),
    ],
)
def test_a_mistake_in_its_settings_is_one_line(tmp_path, settings, message):
    assert message in fault(experiment_in(folder_with(tmp_path), **settings))


def test_a_fault_that_shows_up_in_training_is_one_line_or_skipped(tmp_path):
    seldom = "sample['depth'][:1] = np.inf if index == 97 else 1; return sample"
    path = experiment_in(folder_with(tmp_path, seldom), tasks=["depth"], count=98)
    done = run("run", path, "--out", tmp_path / "run")
    assert (done.exit_code, "Traceback" in done.output) == (2, False)
    assert "train[97]: 'depth': expected finite values, got infinity" in done.output
    printed("run", path, "--out", tmp_path / "other", "--set", "skip_broken=true")


def test_check_reads_the_data_sets_of_an_experiment_and_needs_no_weights(tmp_path):
    path = experiment_in(folder_with(tmp_path))
    path.write_text(path.read_text().replace(f"name: {TINY}", f"name: {TINY}\n    weights: nowhere.safetensors"))
    shown = printed("data", "check", path)
    assert ("semseg: 0 … 2" in shown, "No problems found" in shown) == (True, True)
    assert run("run", path, "--dry-run").exit_code == 2


def test_check_names_every_bad_sample_and_refuses_what_cannot_be_divided(tmp_path):
    done = run("data", "check", experiment_in(folder_with(tmp_path, "sample['depth'][0] = -1; return sample"), count=3))
    assert (done.exit_code, done.output.count("'depth': expected values from 0 to inf")) == (1, 6)
    (tmp_path / "good").mkdir()
    done = run("data", "check", experiment_in(folder_with(tmp_path / "good"), count=3))
    assert (done.exit_code, "training.batch_size" in done.output, "no faults" in done.output) == (2, True, False)


def test_info_paints_all_data_sets_of_an_experiment_or_the_one_that_is_named(tmp_path):
    path = experiment_in(folder_with(tmp_path))
    values = yaml.safe_load(path.read_text())
    values["data"]["yours"] = values["data"]["mine"]
    path.write_text(yaml.safe_dump(values))
    printed("data", "info", path, "--out", tmp_path / "all.png")
    printed("data", "info", path, "--out", tmp_path / "one.png", "--name", "yours")
    assert sorted(each.name for each in tmp_path.glob("*.png")) == ["all-mine.png", "all-yours.png", "one.png"]
    assert Image.open(tmp_path / "all-mine.png").size == (3 * 192, 16 + 6 * 144)
    assert "'yours'" in refused("data", "info", path, "--name", "your")
