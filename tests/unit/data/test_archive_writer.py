from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from fedhca2.data.archives import Nyud, PascalContext, training_edges
from fedhca2.data.rendered import ScenesData, scene_numbers, write_scenes
from fedhca2.data.scenes.rendering import render
from fedhca2.tasks import TASKS

SIZE, SEED, TRAIN, VAL = (48, 64), 3, 6, 2


@pytest.fixture(scope="module")
def outdoor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outdoor")
    write_scenes("pascal_context", root, TRAIN, VAL, SIZE, SEED)
    return root


@pytest.fixture(scope="module")
def indoor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("indoor")
    write_scenes("nyud", root, TRAIN, VAL, SIZE, SEED)
    return root


def rendered(domain: str, split: str) -> dict[str, torch.Tensor]:
    return render(domain, scene_numbers(split, TRAIN if split == "train" else VAL), size=SIZE, seed=SEED)


def read_back(data: PascalContext | Nyud, task: str) -> torch.Tensor:
    return torch.stack([data.load(index, [task] if task != "image" else [])[task] for index in range(len(data))])


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("name", ["image", "semseg", "normals", "edge", "depth"])
def test_indoor_scenes_are_read_back_exactly(indoor, split, name):
    assert torch.equal(read_back(Nyud(indoor, split), name), rendered("indoor", split)[name])


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("name", ["semseg", "sal", "normals"])
def test_outdoor_scenes_are_read_back_exactly(outdoor, split, name):
    assert torch.equal(read_back(PascalContext(outdoor, split), name), rendered("outdoor", split)[name])


@pytest.mark.parametrize("split", ["train", "val"])
def test_parts_are_read_back_with_scenes_without_people_unknown(outdoor, split):
    expected = TASKS["human_parts"].ignored(rendered("outdoor", split)["human_parts"])
    assert torch.equal(read_back(PascalContext(outdoor, split), "human_parts"), expected)


def test_outdoor_validation_edges_are_read_back_exactly(outdoor):
    assert torch.equal(read_back(PascalContext(outdoor, "val"), "edge"), rendered("outdoor", "val")["edge"])


def test_outdoor_training_edges_are_those_of_the_rendered_context(outdoor):
    context = rendered("outdoor", "train")["context"][:, 0].numpy()
    expected = torch.stack([torch.from_numpy(training_edges(label_map)) for label_map in context]).float()[:, None]
    assert torch.equal(read_back(PascalContext(outdoor, "train"), "edge"), expected)


def test_outdoor_images_are_read_back_but_for_jpeg(outdoor):
    found = read_back(PascalContext(outdoor, "train"), "image").float()
    assert (found - rendered("outdoor", "train")["image"].float()).abs().mean() < 8


def test_images_with_people_are_those_of_the_rendered_data_set(outdoor):
    scenes = ScenesData(domain="outdoor", size=(64, 64), train=TRAIN, val=VAL, seed=SEED).open("train")
    assert list(PascalContext(outdoor, "train").usable(["human_parts"])) == list(scenes.usable(["human_parts"]))


def test_segmentation_has_a_palette(outdoor):
    path = next((outdoor / "semseg" / "VOC12").iterdir())
    with Image.open(path) as image:
        assert image.mode == "P"


def test_every_outdoor_scene_has_normals_outside_the_sky(outdoor):
    scene = rendered("outdoor", "train")
    found = read_back(PascalContext(outdoor, "train"), "normals")
    assert_close((found != 0).any(dim=1), (scene["normals"] != 0).any(dim=1))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="expected a new or empty folder"):
        write_scenes("nyud", tmp_path, 1, 1, SIZE, SEED)


def test_progress_is_told(tmp_path):
    heard: list[tuple[int, int]] = []
    write_scenes("nyud", tmp_path / "new", 2, 1, (16, 16), SEED, lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]
