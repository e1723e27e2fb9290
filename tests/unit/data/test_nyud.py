from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch.testing import assert_close

from fedhca2.data.archives import Nyud, NyudData
from fedhca2.data.files import BrokenFileError, MissingFileError

SIZE = (4, 6)
ID = "0001"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("images", "segmentation", "normals", "edge", "depth", "gt_sets"):
        (tmp_path / folder).mkdir()
    for split in ("train", "val"):
        (tmp_path / "gt_sets" / f"{split}.txt").write_text(f"{ID}\n")
    Image.new("RGB", SIZE[::-1], (1, 2, 3)).save(tmp_path / "images" / f"{ID}.png")
    Image.new("RGB", SIZE[::-1], (255, 102, 0)).save(tmp_path / "normals" / f"{ID}.png")
    write_values(tmp_path, "segmentation", 1)
    write_values(tmp_path, "edge", 51)
    np.save(tmp_path / "depth" / f"{ID}.npy", np.full(SIZE, 2.5, np.float16))
    return tmp_path


def write_values(root: Path, folder: str, value: int) -> None:
    Image.fromarray(np.full(SIZE, value, np.uint8)).save(root / folder / f"{ID}.png")


def load(root: Path, task: str, split: str = "train") -> torch.Tensor:
    return Nyud(root, split).load(0, [task])[task]


def test_an_image_is_read_exactly(root):
    assert Nyud(root, "train").load(0, [])["image"][:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(("written", "label"), [(0, 255), (1, 0), (40, 39)])
def test_classes_count_from_zero_and_unlabelled_is_unknown(root, written, label):
    write_values(root, "segmentation", written)
    assert load(root, "semseg").unique().tolist() == [label]


def test_a_class_out_of_range_is_an_error(root):
    write_values(root, "segmentation", 41)
    with pytest.raises(BrokenFileError, match=r"0001\.png: expected values 0 … 40 and 255, got \[41\]"):
        load(root, "semseg")


def test_colours_for_classes_are_an_error(root):
    Image.new("RGB", SIZE[::-1]).save(root / "segmentation" / f"{ID}.png")
    with pytest.raises(BrokenFileError, match=r"0001\.png: expected a grey or palette PNG .*, got mode RGB"):
        load(root, "semseg")


def test_normals_are_decoded(root):
    assert_close(load(root, "normals")[:, 0, 0], torch.tensor([1.0, -0.2, -1.0]))


def test_training_edges_may_be_soft(root):
    assert_close(load(root, "edge"), torch.full((1, *SIZE), 0.2))


def test_validation_edges_without_annotation_are_every_drawn_pixel(root):
    assert_close(load(root, "edge", "val"), torch.ones(1, *SIZE))


def test_validation_edges_are_the_boundaries_of_the_annotation(root):
    (root / "edge_mat").mkdir()
    drawn = np.zeros(SIZE, np.uint8)
    drawn[:, 3] = 1
    truth = np.empty((1, 1), object)
    truth[0, 0] = {"Boundaries": drawn}
    savemat(root / "edge_mat" / f"{ID}.mat", {"groundTruth": truth})
    assert load(root, "edge", "val")[0, 0].tolist() == [0, 0, 1, 1, 0, 0]


def test_depth_in_half_precision_becomes_float32(root):
    assert_close(load(root, "depth"), torch.full((1, *SIZE), 2.5))


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_a_depth_that_is_no_distance_is_an_error(root, value):
    np.save(root / "depth" / f"{ID}.npy", np.full(SIZE, value, np.float32))
    with pytest.raises(BrokenFileError, match=r"0001\.npy: expected metres of at least 0"):
        load(root, "depth")


def test_whole_numbers_for_depth_are_an_error(root):
    np.save(root / "depth" / f"{ID}.npy", np.full(SIZE, 2500, np.int32))
    with pytest.raises(BrokenFileError, match=r"0001\.npy: expected a map of floats, got int32"):
        load(root, "depth")


def test_a_task_without_a_folder_is_an_error(root):
    with pytest.raises(MissingFileError, match="expected labels for 'sal', got semseg, normals, edge, depth"):
        Nyud(root, "train", tasks=["sal"])


def test_a_list_with_an_id_twice_is_an_error(root):
    (root / "gt_sets" / "train.txt").write_text(f"{ID}\n{ID}\n")
    with pytest.raises(BrokenFileError, match=r"train\.txt: expected every id once, got 2 ids, 1 of them different"):
        Nyud(root, "train")


def test_a_config_opens_a_split_at_the_papers_size(root):
    assert NyudData(root=root).open("val").size == (448, 576)
