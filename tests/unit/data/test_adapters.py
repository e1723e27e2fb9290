"""Data sets that others have already written."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from fedhca2.data import KINDS, FileError, MapStyle
from fedhca2.data.adapters import paint
from fedhca2.data.own import OwnSamples
from fedhca2.tasks.built_in import DeclaredTask, make_task_set
from own_experiments import write_table

SIZE = (32, 32)
TASKS = make_task_set({"weight": DeclaredTask(kind="regression")})


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
    "data_set",
    [
        MapStyle(Pairs(), ("image", "classification"), labels={"classification": ("cat", "dog")}),
        MapStyle(Rows(), {"image": "pixels", "classification": "animal"}),
    ],
    ids=["tuples", "dicts"],
)
def test_any_map_style_data_set_can_be_read(data_set):
    data = OwnSamples(data_set, SIZE, "train", cache=False)
    assert (len(data), data.labels["classification"].names) == (3, ("cat", "dog"))
    assert data.load(1, ["classification"])["classification"].tolist() == [1.0]


def animals(folder, pictures, **changes):
    """The validation split of a Hugging Face data set with these pictures, read from a folder."""
    datasets = pytest.importorskip("datasets")
    kinds = {"picture": datasets.Image(), "animal": datasets.ClassLabel(names=["cat", "dog"])}
    rows = {"picture": pictures, "animal": [0, 1, 1][: len(pictures)]}
    features = datasets.Features(kinds | changes)
    both = {split: datasets.Dataset.from_dict(rows, features=features) for split in ("train", "validation")}
    datasets.DatasetDict(both).save_to_disk(folder)
    for info in folder.glob("*/dataset_info.json"):
        content = json.loads(info.read_text())
        info.write_text(json.dumps({**content, "features": content["features"] | {"picture": {"_type": "Image"}}}))
    columns = {"image": "picture", "classification": "animal"}
    return open_kind("huggingface", "val", root=folder, columns=columns)


@pytest.mark.parametrize("name", ["/patient.png", "https://example.invalid/x.png"])
def test_a_hugging_face_data_set_opens_no_other_file(tmp_path, name):
    picture(0).save(tmp_path / "patient.png")
    path = str(tmp_path / "patient.png") if name.startswith("/") else name
    value = pytest.importorskip("datasets").Value
    names_only = {"bytes": value("binary"), "path": value("string")}  # `save_to_disk` would read an Image from its file
    data = animals(tmp_path / "animals", [{"bytes": None, "path": path}], picture=names_only)
    with pytest.raises(FileError, match="'picture': expected an image, got the name of one"):
        data.load(0, [])


def test_a_hugging_face_data_set_can_be_read(tmp_path):
    data = animals(tmp_path / "animals", [picture(i) for i in range(3)])
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
    write_table(tmp_path / "labels.csv", rows)
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


def test_every_fifth_row_is_for_validation_unless_a_column_says_so(table, caplog):
    assert list(open_kind("csv", "val", root=table, columns=COLUMNS).ids) == ["4.png", "9.png"]
    values = ["split", "test", "val", *["validation"] * 2, *["train"] * 4, "test", "holdout"]
    change(table, lambda lines: [f"{line},{value}" for line, value in zip(lines, values, strict=True)])
    assert list(open_kind("csv", "val", root=table, columns=COLUMNS).ids) == ["1.png", "2.png", "3.png"]
    assert "3 rows are in neither 'train' nor 'val', and not used: 2 of 'test', 1 of 'holdout'" in caplog.text


def change(table, lines):
    """Write the CSV file anew, from a function of its lines."""
    (table / "labels.csv").write_text("\n".join(lines((table / "labels.csv").read_text().splitlines())))


def everything(kind, root, **settings):
    data = open_kind(kind, root=root, **settings)
    return [data.load(i, list(data.labels)) for i in range(len(data))]


def with_row(row):
    return lambda lines: [lines[0], row]


def split_into(lines):
    return [f"{line},{['split', 'val', 'test'][min(i, 2)]}" for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("settings", "lines", "message"),
    [
        ({"columns": {"classification": "kind"}}, list, "csv: expected a column 'kind', got image, brand, grams"),
        ({"file": "none.csv"}, list, "none.csv: expected a CSV file with a row of names, got no file"),
        ({"classes": {"classification": ["tea"]}}, list, "csv:3: column 'brand': expected one of tea, got 'milk'"),
        ({"columns": {"weight": "brand"}}, list, "csv:2: column 'brand': expected a number, got 'tea'"),
        ({}, lambda lines: [*lines[:3], "2.png,tea", *lines[4:]], "csv:4: expected 5 cells, got 2"),
        ({}, lambda lines: [*lines[:3], lines[3] + ",more", *lines[4:]], "csv:4: expected 5 cells, got 6"),
        ({}, lambda lines: lines[:1], "csv: expected a row for each sample, got none"),
        ({}, lambda lines: [], "csv: expected a column 'image', got nothing"),
        ({}, lambda lines: [lines[0].replace("grams", "brand"), *lines[1:]], "csv: expected a different name for each"),
        ({}, split_into, "csv: column 'split': expected 'train'"),
        ({}, with_row("../0.png,tea,1,1,0.mask.png"), "csv:2: column 'image': expected the name of a file"),
        ({}, with_row("0.png,tea,1,1,a/../../0.png"), "csv:2: column 'mask': expected the name of a file"),
        ({}, with_row("/etc/x.png,tea,1,1,0.mask.png"), "csv:2: column 'image': expected the name of a file"),
    ],
)
def test_a_csv_file_that_makes_no_sense_is_named_by_its_line(table, settings, lines, message):
    change(table, lines)
    with pytest.raises(FileError) as error:
        everything("csv", table, **{"columns": COLUMNS, "classes": {"semseg": 3}, **settings})
    assert (message in str(error.value), "\n" in str(error.value)) == (True, False)


def test_an_empty_cell_is_unknown_in_a_map_everywhere(table):
    change(table, lambda lines: [lines[0], lines[1].replace("0.mask.png", ""), *lines[2:]])
    sample = open_kind("csv", root=table, columns=COLUMNS, classes={"semseg": 3}).load(0, ["semseg", "weight"])
    assert (sample["semseg"] == 255).all()
    assert sample["weight"].isnan().tolist() == [True, False]


@pytest.fixture
def outside(tmp_path_factory):
    """An image outside of every data set."""
    folder = tmp_path_factory.mktemp("secret")
    picture(0).save(folder / "patient.png")
    return folder


def linked_image(root, outside):
    (root / "0.png").unlink()
    (root / "0.png").symlink_to(outside / "patient.png")


def linked_folder(root, outside):
    (root / "more").symlink_to(outside)
    change(root, lambda lines: [lines[0], lines[1].replace("0.png", "more/patient.png", 1), *lines[2:]])


@pytest.mark.parametrize("link", [linked_image, linked_folder])
def test_a_link_out_of_the_folder_of_a_csv_file_is_followed_only_if_the_config_says_so(table, outside, link):
    link(table, outside)
    with pytest.raises(FileError, match=r"labels.csv:2: column 'image': .* a link out of it"):
        everything("csv", table, columns=COLUMNS)
    assert everything("csv", table, columns=COLUMNS, links=True)


def test_the_folder_itself_may_be_a_link_and_have_links_within(table, tmp_path_factory):
    root = tmp_path_factory.mktemp("linked") / "root"
    root.symlink_to(table)
    (table / "copy.png").symlink_to("0.png")
    change(table, lambda lines: [lines[0], lines[1].replace("0.png", "copy.png", 1), *lines[2:]])
    assert everything("csv", root, columns=COLUMNS)


def write_coco(folder, size, categories, **content):
    """A folder in COCO's layout with these annotations, and pictures of this size."""
    images = [{"id": i, "file_name": f"{i}.png", "height": size[0], "width": size[1]} for i in (2, 1)]
    named = [{"id": id, "name": name} for id, name in categories.items()]
    (folder / "annotations").mkdir()
    (folder / "train2017").mkdir()
    annotations = {"images": images, "categories": named, **content}
    (folder / "annotations" / "instances_train2017.json").write_text(json.dumps(annotations))
    for i in (1, 2):
        Image.new("L", size[::-1], i).save(folder / "train2017" / f"{i}.png")
    return folder


@pytest.fixture
def coco(tmp_path):
    """Two images: one with a square, a smaller one on it and a mask in runs; one with nothing."""
    small, square = [8, 8, 10, 8, 10, 10, 8, 10], [4, 4, 20, 4, 20, 20, 4, 20]
    runs = {"size": list(SIZE), "counts": [30 * 32, 64]}
    objects = [
        {"image_id": 1, "category_id": 7, "segmentation": [small]},
        {"image_id": 1, "category_id": 3, "segmentation": [square]},
        {"image_id": 1, "category_id": 9, "segmentation": runs, "iscrowd": 1},
    ]
    return write_coco(tmp_path, SIZE, {7: "cup", 3: "table", 9: "crowd"}, annotations=objects)


def test_cocos_objects_become_a_map_with_small_ones_on_top_and_labels_of_the_image(coco):
    data = open_kind("coco", root=coco)
    assert data.labels["semseg"].names == ("background", "table", "cup", "crowd")
    label = data.load(0, ["semseg"])["semseg"][0]
    assert torch.bincount(label.flatten()).tolist() == [1024 - 256 - 64, 256 - 4, 4, 64]
    assert (label[8:10, 8:10] == 2).all()
    assert (label[:, 30:] == 3).all()
    assert [data.load(i, ["multilabel"])["multilabel"].tolist() for i in (0, 1)] == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("[960, 64]", "[960, 63]", "image 1: .* runs of 1023 pixels, instead of 32×32"),
        ("[960, 64]", "[960, 99000000000]", "image 1: .* runs of 99000000960 pixels"),
        ("[960, 64]", '"oooooooooooooooooooooo0"', "image 1: .* more than 60 bits"),
        ("4, 4, 20,", "NaN, 4, 20,", "image 1: .* a corner 1e.06 or more pixels away"),
        ('"height": 32', '"height": 1000000', r"image 1: expected 32×32 like its file, got \(1000000, 32\)"),
        ('"id": 2,', '"id": 1,', "images: expected a different id for each, got 1 twice"),
        ('"id": 9', '"id": "9"', r"categories\[2\]: expected 'id' of type int"),
        ('"category_id": 9', '"category_id": 8', "image 1: .* KeyError: 8"),
        ('"image_id": 1', '"image_id": [1]', r"annotations\[0\]: expected 'image_id' of type int"),
        ('"size": [32, 32]', '"size": [16, 64]', r"image 1: .* 32×32 pixels: \[16, 64\]"),
        ('"id": 9', '"id": 3', "categories: expected a different id for each, got 3 twice"),
    ],
)
def test_a_bad_annotation_names_the_file_and_the_image(coco, good, bad, message):
    path = coco / "annotations" / "instances_train2017.json"
    assert good in path.read_text()
    path.write_text(path.read_text().replace(good, bad))
    with pytest.raises(FileError, match=f"json: {message}"):
        open_kind("coco", root=coco).load(0, ["semseg"])


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/secret.jpg", "", "a/../../../x.jpg"])
def test_cocos_images_are_in_its_folder(coco, name):
    path = coco / "annotations" / "instances_train2017.json"
    path.write_text(path.read_text().replace('"1.png"', json.dumps(name)))
    with pytest.raises(FileError, match=r"json: image 1: file_name: expected the name of a file in"):
        open_kind("coco", root=coco).load(0, ["semseg"])


def test_a_link_out_of_cocos_folder_is_followed_only_if_the_config_says_so(coco, outside):
    (coco / "train2017" / "1.png").unlink()
    (coco / "train2017" / "1.png").symlink_to(outside / "patient.png")
    with pytest.raises(FileError, match=r"image 1: file_name: .* a link out of it"):
        everything("coco", coco)
    assert everything("coco", coco, links=True)
    elsewhere = outside / "images"
    (coco / "train2017").rename(elsewhere)
    (elsewhere / "1.png").unlink()
    (outside / "patient.png").rename(elsewhere / "1.png")
    assert everything("coco", coco, images=str(elsewhere))  # another folder may be named in the config


def with_objects(folder, size, segmentations):
    """A data set whose first image has these objects."""
    objects = [{"image_id": 1, "category_id": 1, "segmentation": each} for each in segmentations]
    return open_kind("coco", root=write_coco(folder, size, {1: "thing"}, annotations=objects))


def test_many_objects_take_no_more_memory_than_one(tmp_path):
    side = 1000
    data = with_objects(tmp_path, (side, side), [[[0, 0, side, 0, side, side - i, 0, side]] for i in range(40)])
    tracemalloc.start()
    data.load(0, ["semseg"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * side**2  # 40 masks would be twice as much


@pytest.mark.parametrize(
    ("segmentations", "message"),
    [
        ([{"counts": [10**6], "size": [1000, 1000]}] * 2001, "pixels in the boxes around objects, more than 2e.09"),
        ([[[0, 0, 1000, 1000, 0, 1000]] * 2001], "pixels in the boxes around objects, more than 2e.09"),
        ([[[value for i in range(4003) for value in (i % 1000, 1000 * (i % 2))]]], "more than 4000000"),
    ],
)
def test_objects_that_would_take_minutes_are_refused_before_they_are_painted(tmp_path, segmentations, message):
    with pytest.raises(FileError, match=f"json: image 1: .*{message}"):
        with_objects(tmp_path, (1000, 1000), segmentations).load(0, ["semseg"])


# A rectangle with a hole, as pycocotools 2.0.11 writes it.
WRITTEN = r"U?S1=000000000000000000\OH080H080H080H080H080H080H080H080H080H08d000000000000000000000000000000000000000kd0"


def test_compressed_runs_holes_and_overlaps_are_painted_as_pycocotools_does():
    expected = np.zeros((48, 64), bool)
    expected[5:40, 10:50] = True
    expected[20:25, 20:30] = False
    assert (paint([{"counts": WRITTEN, "size": [48, 64]}], [1], (48, 64)) == expected).all()
    outer, inner = [0, 0, 10, 0, 10, 10, 0, 10], [3, 3, 6, 3, 6, 6, 3, 6]
    assert paint([[[*outer, 0, 0, *inner, 3, 3]]], [1], (10, 10)).sum() == 100 - 9
    assert paint([[outer]] * 3, [9, 3, 7], (10, 10)).max() == 7  # of objects of the same size, the last is seen
