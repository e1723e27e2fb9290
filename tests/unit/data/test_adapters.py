"""Data sets that others have already written."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from fedhca2.data import KINDS, FileError, MapStyle
from fedhca2.data.adapters import decode_runs, mask_of
from fedhca2.data.own_samples import OwnSamples
from fedhca2.tasks.declared import DeclaredTask, known_tasks

SIZE = (32, 32)
TASKS = known_tasks({"weight": DeclaredTask(kind="regression")})


def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), dtype=np.uint8))


def open_kind(kind, split="train", **settings):
    return KINDS[kind].model_validate({"kind": kind, "size": SIZE, **settings}).open(split, TASKS)


class Pairs:
    """A map-style data set as torchvision has them."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return picture(index), index % 2


class Rows(Pairs):
    """A map-style data set whose samples are dicts, with features as Hugging Face has them."""

    class Names:
        names = ("cat", "dog")

    features = {"pixels": None, "animal": Names()}  # noqa: RUF012

    def __getitem__(self, index):
        return {"pixels": picture(index), "animal": index % 2}


@pytest.mark.parametrize(
    "held",
    [
        MapStyle(Pairs(), ("image", "classification"), labels={"classification": ("cat", "dog")}),
        MapStyle(Rows(), {"image": "pixels", "classification": "animal"}),
    ],
    ids=["tuples", "dicts"],
)
def test_any_map_style_data_set_can_be_read(held):
    data = OwnSamples(held, SIZE, "train", cache=False)
    assert (len(data), data.labels["classification"].names) == (3, ("cat", "dog"))
    assert data.load(1, ["classification"])["classification"].tolist() == [1.0]


def test_a_hugging_face_data_set_can_be_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"picture": datasets.Image(), "animal": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"picture": [picture(i) for i in range(3)], "animal": [0, 1, 1]}
    both = {split: datasets.Dataset.from_dict(rows, features=features) for split in ("train", "validation")}
    datasets.DatasetDict(both).save_to_disk(tmp_path / "animals")
    columns = {"image": "picture", "classification": "animal"}
    data = open_kind("huggingface", "val", root=tmp_path / "animals", columns=columns)
    assert data.labels["classification"].names == ("cat", "dog")
    sample = data.load(2, ["classification"])
    assert (sample["classification"].tolist(), sample["image"].shape) == ([1.0], (3, *SIZE))


@pytest.fixture
def table(tmp_path):
    """A folder of images with one CSV file: classes, numbers, and masks."""
    rows = []
    for i in range(10):
        picture(i).save(tmp_path / f"{i}.png")
        Image.fromarray(np.full(SIZE, i % 3, np.uint8)).save(tmp_path / f"{i}.mask.png")
        cells = {"image": f"{i}.png", "brand": ["tea", "milk"][i % 2], "grams": str(10 * i) if i else ""}
        rows.append(cells | {"height": "1.5", "mask": f"{i}.mask.png"})
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path


COLUMNS = {"classification": "brand", "weight": ["grams", "height"], "semseg": "mask"}


def test_a_folder_with_a_csv_file_can_be_read(table):
    data = open_kind("csv", root=table, columns=COLUMNS, classes={"semseg": ["a", "b", "c"]})
    assert {task: space.names for task, space in data.labels.items()} == {
        "classification": ("milk", "tea"),
        "weight": ("grams", "height"),
        "semseg": ("a", "b", "c"),
    }
    sample = data.load(2, list(COLUMNS))
    assert (sample["classification"].tolist(), sample["weight"].tolist()) == ([1.0], [20.0, 1.5])
    assert (sample["semseg"] == 2).all()


def test_an_empty_cell_is_unknown(table):
    assert open_kind("csv", root=table, columns=COLUMNS).load(0, ["weight"])["weight"].isnan().tolist() == [True, False]


def test_every_fifth_row_is_for_validation_unless_a_column_says_so(table):
    assert list(open_kind("csv", "val", root=table, columns=COLUMNS).ids) == ["4.png", "9.png"]
    text = (table / "labels.csv").read_text().splitlines()
    marked = [f"{line},{'split' if i == 0 else 'val' if i < 4 else 'train'}" for i, line in enumerate(text)]
    (table / "labels.csv").write_text("\n".join(marked))
    assert list(open_kind("csv", "val", root=table, columns=COLUMNS).ids) == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": {"classification": "kind"}}, "should have a column 'kind', found image, brand, grams"),
        ({"columns": COLUMNS, "file": "none.csv"}, "none.csv: should be a CSV file with a row of names, found no file"),
        (
            {"columns": COLUMNS, "classes": {"classification": ["tea"]}},
            "'classification' should be one of tea, found 'milk'",
        ),
        ({"columns": {"weight": "brand"}}, "could not convert string to float: 'tea'"),
    ],
)
def test_a_mistake_in_a_csv_file_is_one_line(table, settings, message):
    with pytest.raises(FileError) as error:
        [data.load(i, list(data.labels)) for data in [open_kind("csv", root=table, **settings)] for i in range(8)]
    assert (message in str(error.value), "\n" in str(error.value)) == (True, False)


@pytest.fixture
def coco(tmp_path):
    """Two images: one with a square, a smaller one on it and a mask in runs; one with nothing."""
    square = [4, 4, 20, 4, 20, 20, 4, 20]
    small = [8, 8, 10, 8, 10, 10, 8, 10]
    runs = {"size": list(SIZE), "counts": [30 * 32, 64]}
    objects = [(small, 7), (square, 3)]
    annotations = [{"image_id": 1, "category_id": number, "segmentation": [polygon]} for polygon, number in objects]
    annotations.append({"image_id": 1, "category_id": 9, "segmentation": runs, "iscrowd": 1})
    found = {
        "images": [{"id": i, "file_name": f"{i}.jpg", "height": 32, "width": 32} for i in (2, 1)],
        "annotations": annotations,
        "categories": [{"id": 7, "name": "cup"}, {"id": 3, "name": "table"}, {"id": 9, "name": "crowd"}],
    }
    (tmp_path / "annotations").mkdir()
    (tmp_path / "train2017").mkdir()
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(found))
    for i in (1, 2):
        picture(i).save(tmp_path / "train2017" / f"{i}.jpg")
    return tmp_path


def test_cocos_objects_become_a_map_with_small_ones_on_top(coco):
    data = open_kind("coco", root=coco)
    assert data.labels["semseg"].names == ("background", "table", "cup", "crowd")
    label = data.load(0, ["semseg"])["semseg"][0]
    assert torch.bincount(label.flatten()).tolist() == [1024 - 256 - 64, 256 - 4, 4, 64]
    assert (label[8:10, 8:10] == 2).all()
    assert (label[:, 30:] == 3).all()


def test_cocos_categories_become_labels_of_the_image(coco):
    data = open_kind("coco", root=coco)
    assert [data.load(i, ["multilabel"])["multilabel"].tolist() for i in (0, 1)] == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("[960, 64]", "[960, 63]", "image 1 should have .* runs should cover 32×32 pixels, found 1023"),
        ("[960, 64]", "[960, 99000000000]", "image 1 should have .* found 99000000960"),
        ("[960, 64]", '"oooooooooooooooooooooo0"', "image 1 should have .* at most 60 bits"),
        ("4, 4, 20,", "NaN, 4, 20,", "image 1 should have .* corners should be nearer than 1e.06 pixels"),
        ('"height": 32', '"height": 1000000', r"image 1 should be 32×32 like its file, found \(1000000, 32\)"),
        ('"id": 9', '"id": 3', "different id for each category"),
    ],
)
def test_a_bad_annotation_names_the_file_and_the_image(coco, good, bad, message):
    path = coco / "annotations" / "instances_train2017.json"
    assert good in path.read_text()
    path.write_text(path.read_text().replace(good, bad))
    with pytest.raises(FileError, match=f"json: {message}|json: should have a {message}"):
        open_kind("coco", root=coco).load(0, ["semseg"])


# A rectangle with a hole, as pycocotools 2.0.11 writes it.
WRITTEN = r"U?S1=000000000000000000\OH080H080H080H080H080H080H080H080H080H08d000000000000000000000000000000000000000kd0"


def test_compressed_runs_are_read_as_pycocotools_wrote_them():
    expected = np.zeros((48, 64), bool)
    expected[5:40, 10:50] = True
    expected[20:25, 20:30] = False
    assert (mask_of({"counts": WRITTEN, "size": [48, 64]}, (48, 64)) == expected).all()


def test_runs_go_down_the_columns():
    assert decode_runs([1, 2, 3], (2, 3)).tolist() == [[False, True, False], [True, False, False]]


def test_a_hole_of_a_polygon_stays_empty():
    outer, inner = [0, 0, 10, 0, 10, 10, 0, 10], [3, 3, 6, 3, 6, 6, 3, 6]
    assert mask_of([[*outer, 0, 0, *inner, 3, 3]], (10, 10)).sum() == 100 - 9
