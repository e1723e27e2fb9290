"""Images of any size: `resize: fit` scales them down for the network, and scores them at their own size."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from torch.testing import assert_close

from command import printed, refused
from fedhca2.clients.evaluation import evaluate
from fedhca2.data.batches import Batches
from fedhca2.data.transforms import fit_to_input, place_image
from fedhca2.tasks import TASKS, LabelSpace
from own_experiments import write_experiment, write_table
from tiny_encoder import TINY

INPUT = (32, 32)
SPACES = {name: LabelSpace(classes=3) for name in ("semseg", "human_parts", "sal", "normals", "edge", "depth")}
SIZES = [(75, 100), (40, 20), (32, 32), (5, 64)]
CHANNELS = {"semseg": 3, "human_parts": 7, "sal": 2, "normals": 3, "edge": 1, "depth": 1}


def a_label(task, size):
    """A left and a right half of two values."""
    halves = (torch.arange(size[1]) * 2 // size[1]).expand(1, *size)
    if task == "normals":
        return functional.normalize(torch.cat((halves.float(), halves.float(), torch.ones(1, *size))), dim=0)
    return (halves + 1).float() if task == "depth" else halves.float() if task == "edge" else halves.byte()


class Photographs:
    """Images of several sizes."""

    size, labels = INPUT, SPACES

    def load(self, index, tasks):
        image = torch.randint(255, (3, *SIZES[index]), generator=torch.Generator().manual_seed(index))
        return {"image": image.byte()} | {task: a_label(task, SIZES[index]) for task in tasks}


class Convolution(torch.nn.Module):
    """Predicts a task by one convolution."""

    def __init__(self, task):
        super().__init__()
        torch.manual_seed(0)
        self.task, self.tasks, self.layer = task, TASKS, torch.nn.Conv2d(3, CHANNELS[task], 3, padding=1)

    def forward(self, image):
        return {self.task: self.layer(image)}


def photographs(task, indices, resize):
    return Batches(Photographs(), indices, [task], batch_size=2, resize=resize).evaluation()


@pytest.mark.parametrize("task", SPACES)
def test_images_that_fit_are_scored_as_without_resizing(task):
    model = Convolution(task)
    actual, expected = (
        evaluate(model, photographs(task, [2], resize), TASKS.metrics([task], SPACES, {}), "float32")
        for resize in ("fit", None)
    )
    assert actual[task] == pytest.approx(expected[task])


@pytest.mark.parametrize("task", SPACES)
def test_predictions_are_compared_at_the_size_of_each_image(task):
    model = Convolution(task)
    sizes = [
        (tuple(prediction.shape[-2:]), tuple(label.shape[-2:]))
        for batch in photographs(task, range(4), "fit")
        for prediction, label in batch.pairs(TASKS[task], TASKS[task].predict(model(batch.image)[task]))
    ]
    assert sizes == [(size, size) for size in SIZES]


@pytest.mark.parametrize("task", ["semseg", "human_parts", "sal"])
def test_classes_and_depths_are_restored_as_they_were(task):
    label = a_label(task, (64, 64))
    small = fit_to_input({"image": torch.zeros(3, 64, 64, dtype=torch.uint8), task: label}, INPUT)[task]
    assert_close(place_image((64, 64), INPUT).restore(TASKS[task], small[None].long())[0], label.long())
    depth = torch.full((1, 64, 128), 3.0)
    small = fit_to_input({"image": torch.zeros(3, 64, 128, dtype=torch.uint8), "depth": depth}, INPUT)["depth"]
    assert_close(small, torch.full((1, 16, 32), 12.0))
    canvas = functional.pad(small, (0, 0, 8, 8))[None]
    assert_close(place_image((64, 128), INPUT).restore(TASKS["depth"], canvas)[0], depth)


def test_normals_keep_their_length_and_probabilities_stay_within_0_and_1():
    placement = place_image((75, 100), INPUT)
    normals = functional.normalize(torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    assert_close(placement.restore(TASKS["normals"], normals).norm(dim=1), torch.ones(1, 75, 100))
    low, high = placement.restore(TASKS["edge"], torch.rand(1, 1, 32, 32)).aminmax()
    assert 0 <= low < high <= 1


def test_training_without_augmentation_scales_down_too():
    batches = Batches(Photographs(), range(4), ["depth"], batch_size=2, resize="fit")
    trained_on = list(batches.training(seed=0, client="", epoch=0, augment=False))
    assert {tuple(tensor.shape[-2:]) for batch in trained_on for tensor in batch.tensors} == {INPUT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs of three sizes with masks and depths, a CSV file, and an experiment."""
    root = tmp_path_factory.mktemp("photographs")
    dice = np.random.default_rng(0)
    rows = []
    for number, (height, width) in enumerate([(45, 60), (64, 48), (20, 30)] * 2):
        Image.fromarray(dice.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(root / f"{number}.jpg")
        Image.fromarray(dice.integers(0, 2, (height, width), dtype=np.uint8)).save(root / f"{number}.png")
        np.save(root / f"{number}.npy", dice.uniform(1, 5, (height, width)).astype(np.float32))
        names = {"image": f"{number}.jpg", "mask": f"{number}.png", "metres": f"{number}.npy"}
        rows.append({**names, "split": "train" if number < 3 else "val"})
    write_table(root / "labels.csv", rows)
    columns = {"columns": {"semseg": "mask", "depth": "metres"}, "classes": {"semseg": ["shelf", "rest"]}}
    write_experiment(
        root,
        model={"encoder": {"name": TINY}, "decoder_width": 8},
        training={"batch_size": 1},
        data={"photos": {"kind": "csv", "root": str(root), "size": [32, 32], **columns}},
        clients=[{"data": "photos", "tasks": ["semseg", "depth"]}],
    )
    return root


def test_photographs_of_any_size_are_evaluated_if_the_config_says_so(folder, tmp_path):
    line = refused("run", folder / "ours.yaml", "--out", tmp_path / "out")
    assert all(words in line for words in ("data.photos: val[0] (3.jpg): 'image'", "got 45×60; with `resize: fit`"))
    printed("run", folder / "ours.yaml", "--out", tmp_path / "out", "--set", "data.photos.resize=fit")
    clients = json.loads((tmp_path / "out" / "result.json").read_text())["clients"]
    assert clients["photos"]["depth"]["rmse"] > 0
    with np.load(tmp_path / "out" / "samples" / "photos.npz") as samples:
        assert samples["after.depth"].shape == (1, 1, 45, 60)
    printed("evaluate", tmp_path / "out")
    again = json.loads((tmp_path / "out" / "evaluation-val.json").read_text())["clients"]
    assert again["photos"]["depth"]["rmse"] == pytest.approx(clients["photos"]["depth"]["rmse"])
