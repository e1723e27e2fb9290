"""Tasks that an experiment declares: other names of built-in ones, and a user's own by import path."""

import json

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from fedhca2.deployment import Trained
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.models import build_model
from fedhca2.reports.page.predictions import run_galleries
from fedhca2.reports.page.tables import result_table
from fedhca2.run_folder.reader import RunFiles
from own_experiments import run, write_experiment
from small import clients, small
from small_run import run_small
from tiny_encoder import TINY

OURS = """
from fedhca2.tasks import Task, losses, metrics

HEIGHT = Task(name="height", channels=2, label_channels=None, output="vector", loss=losses.smooth_l1,
              metric=lambda space: metrics.VectorMAE(), unit="m")
NUMBER = 3
"""
VECTORS = {"things": "multilabel", "people": {"kind": "regression", "title": "How many", "unit": "people"}}
TWO = [
    {"data": "outdoor", "split": ["things", "normals"]},
    {"name": "both", "data": "outdoor", "tasks": ["people", "normals"]},
]


def fault(**changes):
    with pytest.raises(UserError) as error:
        small(**changes)
    return error.value.lines


def test_a_task_comes_from_a_file_in_the_folder_of_the_experiment(tmp_path):
    (tmp_path / "ours.py").write_text(OURS, "utf-8")
    values = {"tasks": {"tall": {"kind": "ours.py:HEIGHT", "weight": 3}}, "clients": TWO[:1]}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump({"extends": "scenes_labels", **values}), "utf-8")
    experiment = Experiment.load(tmp_path / "ours.yaml")
    assert experiment.to_dict()["tasks"]["tall"] == {"kind": f"{tmp_path}/ours.py:HEIGHT", "weight": 3.0}
    tall = experiment.task_set["tall"]
    assert (tall.name, tall.weight, tall.unit) == ("tall", 3, "m")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"x": "regresion"}, "tasks: x: kind: expected a known task"),
        ({"x": "no_file.py:X"}, "tasks: x: "),
        ({"depth": "regression"}, "tasks: expected a new name, got 'depth'"),
        ({"a.b": "regression"}, "tasks: expected letters, digits and '_'"),
        ({"keys": "regression"}, "tasks: expected letters, digits and '_', and no name that Python or torch uses"),
        ({"image": "regression"}, "tasks: expected letters"),
        ({"x": {"kind": "regression", "wight": 1}}, "tasks.x.wight: unknown key. Did you mean 'weight'?"),
        ({"x": {"kind": "regression", "weight": -1}}, "tasks.x.weight: expected at least 0"),
        ({"x": 3}, "tasks.x: expected a mapping of keys to values, got 3"),
    ],
)
def test_a_mistake_is_one_line(tasks, message):
    lines = fault(tasks=tasks)
    assert (len(lines), lines[0].startswith(message), "\n" in lines[0]) == (1, True, False), lines


def test_something_else_than_a_task_or_a_label_without_one_is_named(tmp_path):
    (tmp_path / "ours.py").write_text(OURS, "utf-8")
    assert "NUMBER: expected a Task, got int. (HEIGHT)" in fault(tasks={"x": f"{tmp_path}/ours.py:NUMBER"})[0]
    hint = "in `tasks`, for example as `people: regression`, got no declaration"
    assert fault(clients=[{"data": "outdoor", "tasks": ["people"]}]) == [f"clients[0].tasks: expected 'people' {hint}"]


def test_a_declared_vector_has_its_own_name_and_the_decoder_that_a_map_has():
    experiment = small(tasks=VECTORS, clients=TWO)
    model = build_model(
        experiment.model, {"semseg": 21, "things": 21}, (32, 32), seed=0, client="a", tasks=experiment.task_set
    )
    tasks = experiment.task_set
    assert (tasks["people"].title, tasks["things"].title, tasks["people"].unit) == ("How many", "Things", "people")
    shapes = [[tuple(p.shape) for p in decoder.parameters()] for decoder in model.decoders.values()]
    assert shapes[0] == shapes[1]
    outputs = model(torch.zeros(2, 3, 32, 32))
    assert {task: tuple(output.shape) for task, output in outputs.items()} == {
        "semseg": (2, 21, 32, 32),
        "things": (2, 21),
    }


def command(*words):
    done = run(*words)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with vectors and maps, and with its baseline."""
    folder = tmp_path_factory.mktemp("vectors")
    path = write_experiment(
        folder,
        method="fedhca2",
        baseline=True,
        tasks=VECTORS,
        clients=TWO,
        model={"encoder": {"name": TINY}, "decoder_width": 8},
        training={"batch_size": 2, "schedule": {"warmup_epochs": 0}},
        data={"outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 8, "val": 6}},
    )
    command("run", path, "--out", folder / "run")
    return folder / "run"


@pytest.mark.slow
def test_vectors_count_in_delta_m_and_tables_are_evaluated_again_and_are_on_the_page(finished):
    command("report", finished)
    assert "How many" in (finished / "report.html").read_text("utf-8")
    in_words = {gallery.title: bool(gallery.rows[0][1][-1].lines) for gallery in run_galleries(RunFiles(finished))}
    maps = {"outdoor-normals": False, "both, Surface normals": False}
    assert in_words == {"outdoor-things": True, "both, How many": True, **maps}
    result = RunFiles(finished).outcome
    assert (list(result.clients["both"]), result.delta_m is not None) == (["people", "normals"], True)
    assert "RMSE ↓" in "\n".join(cell.text for row in result_table(RunFiles(finished)).rows for cell in row)
    command("evaluate", finished)
    evaluated = json.loads(next(finished.glob("evaluation*.json")).read_text())["clients"]
    assert evaluated == json.loads((finished / "result.json").read_text())["clients"]


@pytest.mark.slow
def test_a_vector_is_predicted_painted_and_exported(finished, tmp_path):
    Image.new("RGB", (40, 24)).save(tmp_path / "grey.png")
    command("predict", finished, tmp_path / "grey.png", "--client", "both", "-o", tmp_path / "out", "--raw")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    people = {"grey.people.png", "grey.people.npy"}
    assert names == people | {"grey.normals.png", "grey.normals.overlay.png", "grey.normals.npy"}
    assert np.load(tmp_path / "out" / "grey.people.npy").shape == (1,)
    command("export", finished, "--client", "both", "--format", "torch-export", "-o", tmp_path)
    exported = torch.export.load(tmp_path / "both.pt2").module()
    people, normals = exported(torch.zeros(1, 3, 32, 32))
    assert (people.shape, normals.shape) == ((1, 1), (1, 3, 32, 32))
    assert "| people | 1 | the values themselves |" in (tmp_path / "both.md").read_text("utf-8")
    assert Trained.open(finished, "both").spaces["people"].names == ("people",)


DOTS = """
import numpy as np


class Dots:
    labels = {"keypoints": ("red", "green"), "classification": ("night", "day")}
    size = (32, 32)

    def __init__(self, split):
        self.split = split

    def __len__(self):
        return 64 if self.split == "train" else 32

    def __getitem__(self, index):
        places = np.random.default_rng([index, self.split == "val"]).integers(4, 28, (2, 2))
        rows, columns = np.mgrid[:32, :32]
        heat = [np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 8) for y, x in places]
        sky = 0 * rows + index % 2
        return {"image": np.stack([*heat, sky], 2), "keypoints": np.stack(heat, 2), "classification": index % 2}
"""


@pytest.mark.slow
def test_key_points_and_classes_of_images_are_learned(tmp_path):
    """A red and a green dot before a dark or a blue sky: where they are, and what time it is."""
    (tmp_path / "dots.py").write_text(DOTS, "utf-8")
    changes = {
        "model": {"encoder": {"name": TINY}, "decoder_width": 16},
        "training": {"batch_size": 4, "learning_rate": 0.01, "augment": False, "schedule": {"warmup_epochs": 0}},
        "data": {"dots": {"kind": f"{tmp_path}/dots.py:Dots"}},
        "clients": [{"data": "dots", "split": ["keypoints", "classification"]}],
    }
    result = run_small(small(rounds=10, method="local", **changes), tmp_path / "run").clients
    assert result["dots-keypoints"]["keypoints"]["pck"] > 60
    assert result["dots-classification"]["classification"]["accuracy"] > 80


LIGHT = """
import numpy as np


class Light:
    labels = {"keep": 1, "input": 1}
    size = (32, 32)

    def __init__(self, split):
        pass

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"image": np.full((32, 32), index / 4), "keep": 1 + index, "input": -1 - index}


class Readings(Light):
    shape = (3, 8)
"""


@pytest.fixture
def light(tmp_path):
    """Settings of two tasks whose names mean something elsewhere: `keep` is the image's number, `input` minus that."""
    (tmp_path / "light.py").write_text(LIGHT, "utf-8")
    return {
        "tasks": {"keep": "regression", "input": "regression"},
        "data": {"light": {"kind": f"{tmp_path}/light.py:Light"}},
        "clients": [{"name": "both", "data": "light", "tasks": ["keep", "input"]}],
    }


@pytest.mark.parametrize("drop_path", [0.0, 0.2])
def test_labels_of_a_task_arrive_whatever_its_name(light, drop_path):
    client = clients(small(model={"encoder": {"name": "swin_micro", "drop_path": drop_path}}, **light))["both"]
    labels = [batch.labels for batch in client.batches(0)]
    assert sorted(torch.cat([each["keep"] for each in labels]).flatten().tolist()) == [1, 2, 3, 4]
    assert all(torch.equal(each["keep"], -each["input"]) for each in labels)
    losses = client.personal.train_epoch(client.batches(0), 1e-3)
    assert (losses["keep"] > 0, losses["input"] > 0, losses["keep"] == losses["input"]) == (True, True, False)


def test_an_array_and_a_task_under_one_key_are_refused(light, tmp_path):
    light["data"]["light"]["kind"] = f"{tmp_path}/light.py:Readings"
    with pytest.raises(UserError) as error:
        clients(small(**light))
    [line] = error.value.lines
    assert ("data.light" in line, "'input'" in line) == (True, True)


def test_runs_that_declare_one_name_differently_predict_each_with_its_own(tmp_path):
    """Logits of 21 classes: shares from 0 to 1 for `multilabel`, any values for `regression`."""
    runs = {}
    for kind in ("multilabel", "regression"):
        changes = {"tasks": {"things": kind}, "clients": [{"data": "outdoor", "tasks": ["things"], "name": "one"}]}
        run_small(small(rounds=1, method="local", **changes), tmp_path / kind)
        runs[kind] = Trained.open(tmp_path / kind, "one")
    image = np.zeros((3, 32, 32), np.uint8)
    with torch.no_grad():
        for trained in runs.values():
            trained.model().heads["things"][1].weight.zero_()
            trained.model().heads["things"][1].bias.fill_(3.0)
    assert runs["multilabel"].predict(image)["things"] == pytest.approx(np.full(21, 1 / (1 + np.exp(-3))), abs=1e-5)
    head = runs["regression"].model().heads["things"]  # which answers in the unit of its labels
    assert runs["regression"].predict(image)["things"] == pytest.approx((3.0 * head.deviation + head.mean).numpy())


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"x": {"kind": "nonsense"}}, "config.yaml: tasks: x: kind: expected a known task"),
        ({"x": {"weight": 1}}, "config.yaml: tasks: kind: missing"),
        ([], "config.yaml: tasks: expected keys and values, got []"),
    ],
)
def test_bad_tasks_in_the_folder_of_a_run_are_one_line(tmp_path, tasks, message):
    values = {"name": "x", "seed": 0, "rounds": 1, "method": {"name": "fedavg"}, "tasks": tasks}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values), "utf-8")
    with pytest.raises(UserError) as error:
        _ = RunFiles(tmp_path).task_set
    assert (message in error.value.lines[0], "\n" in error.value.lines[0]) == (True, False), error.value.lines
