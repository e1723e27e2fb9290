"""The papers' archives: what is read from their files, what is refused, and scenes that are written as such files."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from fedhca2.data.archives import Nyud, PascalContext, PascalContextData, training_edges
from fedhca2.data.dataset import Cache, shared_property
from fedhca2.data.files import BrokenFileError, MissingFileError
from fedhca2.data.rendered import ScenesData, _save, _struct, scene_numbers, write_scenes
from fedhca2.data.scenes.rendering import render
from fedhca2.tasks import TASKS

SIZE = (6, 8)
IDS = ("2008_000002", "2008_000003", "2008_000007", "2008_000008")
WITH_PERSON = (IDS[1], IDS[3])
LABEL_MAP = np.full(SIZE, 2, np.uint16)
LABEL_MAP[:, 4:] = 3


def grey(value, size=SIZE):
    return Image.fromarray(np.full(size, value, np.uint8))


def coloured(*colour):
    return Image.new("RGB", SIZE[::-1], colour)


def mask(*region):
    painted = np.zeros(SIZE, np.uint8)
    painted[region] = 1
    return painted


def annotation(*objects):
    """A PASCAL-Part annotation under different field names: only positions matter."""
    rows = [("thing", number, mask(slice(0, 4)), _struct("a b", parts)) for number, parts in objects]
    return {"anno": _struct("g h", [("image", _struct("c d e f", rows))])}


def write(path: Path, content) -> Path:
    """Write a picture, an array, the variables of a MATLAB file, or JSON, by the type of the content."""
    as_json = isinstance(content, list) or (isinstance(content, dict) and path.suffix != ".mat")
    _save(path.parent, {path.name: json.dumps(content) if as_json else content})
    return path


@pytest.fixture
def root(tmp_path):
    """Both archives in one folder: NYUD-v2 with one image, and PASCAL-Context with four, two of them with a person."""
    codes = grey(15)
    codes.putpalette([7] * 768)
    lists = {split: {id: [15, 6] if id in WITH_PERSON else [6] for id in IDS[::-1]} for split in ("train", "val")}
    files = {
        "images/0.png": coloured(1, 2, 3),
        "normals/0.png": coloured(255, 102, 0),
        "segmentation/0.png": grey(1),
        "edge/0.png": grey(51),
        "depth/0.npy": np.full(SIZE, 2.5, np.float16),
        **{f"gt_sets/{split}.txt": "0\n" for split in lists},
        **{f"ImageSets/Context/{split}.txt": "\n".join(IDS) + "\n" for split in lists},
        **{f"ImageSets/Parts/{split}.txt": people for split, people in lists.items()},
        "json/nyu_classes.json": {"chair": 1, "unknown": 2},
        "json/context_classes.json": {"chair": 2, "sky": 3, "tvmonitor": 427, "unknown": 431},
    }
    for id in IDS:
        parts = (15, [("head", mask(slice(0, 2)))]) if id in WITH_PERSON else (6, [])
        files |= {
            f"JPEGImages/{id}.jpg": coloured(10, 20, 30),
            f"semseg/VOC12/{id}.png": codes,
            f"sal_distill/{id}.png": grey(200),
            f"normals_distill/{id}.png": coloured(0, 51, 255),
            f"pascal-context/trainval/{id}.mat": {"LabelMap": LABEL_MAP},
            f"human_parts/{id}.mat": annotation(parts),
        }
    for name, content in files.items():
        write(tmp_path / name, content)
    return tmp_path


def load(archive, root, task, split="train"):
    return archive(root, split).load(0, [task])[task]


PIXELS = {  # what a file holds beyond what rendered scenes have, and the value of every pixel
    "half precision becomes float32": (Nyud, {}, "depth", "train", 2.5),
    "every drawn pixel is an edge without an annotation": (Nyud, {}, "edge", "val", 1.0),
    "unlabelled": (Nyud, {"segmentation/0.png": grey(0)}, "semseg", "train", 255),
    "the last class": (Nyud, {"segmentation/0.png": grey(40)}, "semseg", "train", 39),
    "the index and not the colour": (PascalContext, {}, "semseg", "train", 15),
    "not salient": (PascalContext, {f"sal_distill/{IDS[0]}.png": grey(127)}, "sal", "train", 0),
    "salient": (PascalContext, {f"sal_distill/{IDS[0]}.png": grey(128)}, "sal", "train", 1),
}


@pytest.mark.parametrize(("archive", "files", "task", "split", "pixel"), PIXELS.values(), ids=PIXELS)
def test_files_are_read_exactly(root, archive, files, task, split, pixel):
    for name, content in files.items():
        write(root / name, content)
    actual = load(archive, root, task, split)
    assert_close(actual, torch.full((1, *SIZE), pixel, dtype=actual.dtype))


def test_validation_edges_are_the_boundaries_of_the_annotation_or_the_label_map(root):
    truth = np.empty((1, 1), object)
    truth[0, 0] = {"Boundaries": mask(slice(None), 3)}
    write(root / "edge_mat/0.mat", {"groundTruth": truth})
    assert load(Nyud, root, "edge", "val")[0, 0].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert load(PascalContext, root, "edge", "val")[0].tolist() == [[0, 0, 0, 1, 0, 0, 0, 0]] * SIZE[0]


def test_semseg_comes_from_pascal_context_only_where_voc_has_none(root):
    write(root / f"semseg/pascal-context/{IDS[0]}.png", grey(3))
    preferred = load(PascalContext, root, "semseg").unique().tolist()
    (root / f"semseg/VOC12/{IDS[0]}.png").unlink()
    assert (preferred, load(PascalContext, root, "semseg").unique().tolist()) == ([15], [3])


def test_normals_are_zero_unless_the_class_is_one_of_nyud_or_a_television(root):
    valid, others = np.repeat([[2, 2, 2, 427]], SIZE[0], axis=0), np.repeat([[3, 431, 0, 459]], SIZE[0], axis=0)
    write(root / LABELS.format(IDS[0]), {"LabelMap": np.concatenate([valid, others], axis=1).astype(np.uint16)})
    actual = load(PascalContext, root, "normals")
    assert_close(actual[..., :4], torch.tensor([-1.0, -0.6, 1.0]).view(3, 1, 1).expand(3, SIZE[0], 4))
    assert not actual[..., 4:].any()


def test_training_edges_equal_those_of_opencv_and_scikit_image():
    label_map = np.full((9, 14), 1, np.uint16)
    label_map[:5, 8:], label_map[6:], label_map[3:8, 3:6], label_map[0, 0] = 5, 3, 9, 2
    expected = """
        .#............
        #......#......
        .......#......
        ...####.......
        ..#....#......
        ..#....######.
        ###...#.......
        ...###........
        ..............
    """
    edges = training_edges(torch.from_numpy(label_map.astype(np.int32)))
    assert ["".join(".#"[int(on)] for on in row) for row in edges] == expected.split()


@pytest.mark.parametrize(
    ("objects", "column"),
    [
        ([(15, [("torso", mask(slice(0, 3))), ("lfoot", mask(slice(2, 4)))])], [2, 2, 6, 6, 0, 0]),  # later ones on top
        ([(12, [("head", mask(slice(0, 3)))]), (15, [("rhand", mask(slice(4, 5)))])], [0, 0, 0, 0, 4, 0]),
        ([(15, [])], [255] * 6),  # an image without parts is unknown everywhere
    ],
)
def test_parts_of_people_are_painted_by_group(root, objects, column):
    write(root / f"human_parts/{IDS[0]}.mat", annotation(*objects))
    assert load(PascalContext, root, "human_parts")[0, :, 0].tolist() == column


@pytest.mark.parametrize("name", ["JPEGImages/{}.jpg", "sal_distill/{}.png"])
def test_a_missing_file_of_a_client_s_images_or_labels_is_named(root, name):
    path = root / name.format(IDS[2])
    path.unlink()
    with pytest.raises(MissingFileError, match="of the train split") as error:
        PascalContext(root, "train").usable(["sal"])
    assert error.value.path == path
    if "sal" in name:
        assert len(PascalContext(root, "train").usable(["edge"])) == len(IDS)


def test_labels_are_the_tasks_whose_folders_are_there(root):
    (root / "normals_distill").rename(root / "elsewhere")
    assert set(PascalContext(root, "train").labels) == {"semseg", "human_parts", "sal", "edge"}
    with pytest.raises(MissingFileError, match="'normals', got semseg"):
        PascalContext(root, "train").usable(["normals"])


CLASSES, LABELS, DEPTH = "json/context_classes.json", "pascal-context/trainval/{}.mat", "depth/0.npy"
FAULTS = [  # a file, what it holds, the task that reads it, and the message
    ("semseg/VOC12/{}.png", grey(21), "semseg", r"\[21\]"),
    ("sal_distill/{}.png", grey(0, (5, 8)), "sal", "6×8 like its image, got 5×8"),
    ("human_parts/{}.mat", "not a MATLAB file at all" * 20, "human_parts", "a MATLAB file"),
    ("human_parts/{}.mat", {"anno": np.zeros((2, 2))}, "human_parts", "readable as 'human_parts'"),
    ("human_parts/{}.mat", annotation((15, [("wing", mask(slice(0, 3)))])), "human_parts", "got 'wing'"),
    ("ImageSets/Parts/train.txt", {IDS[0]: [15]}, None, f"none for {IDS[1]}"),
    *[("ImageSets/Parts/train.txt", actual, None, "of classes by id") for actual in ([], {IDS[0]: 15}, {IDS[0]: "15"})],
    *[
        (CLASSES, {"chair": 2, "sky": number, "tvmonitor": 427}, "normals", "'sky': expected a number from 0 to 459")
        for number in (460, -1, 1.0, "2", True)
    ],
    *[
        (LABELS, {"LabelMap": np.full(SIZE, value)}, "edge", "LabelMap: expected whole numbers from 0 to 459")
        for value in (460.0, -1.0, 1.5, np.nan)
    ],
    ("segmentation/0.png", grey(41), "semseg", r"\[41\]"),
    ("segmentation/0.png", coloured(0, 0, 0), "semseg", "mode RGB"),
    ("gt_sets/train.txt", "0\n0\n", "depth", "2 ids, 1 of them different"),
    (DEPTH, np.full(SIZE, 2500, np.int32), "depth", "floats, got int32"),
    *[(DEPTH, np.full(SIZE, value, np.float32), "depth", "at least 0") for value in (-1, np.nan, np.inf)],
]


@pytest.mark.parametrize(("name", "content", "task", "message"), FAULTS)
def test_a_fault_is_named_by_its_file(root, name, content, task, message):
    path = write(root / name.format(IDS[0]), content)
    archive = Nyud if name.startswith(("segmentation", "gt_sets", "depth")) else PascalContext
    with pytest.raises(BrokenFileError, match=message) as error:
        load(archive, root, task) if task else PascalContext(root, "train").usable(["human_parts"])
    assert error.value.path == path


@pytest.mark.parametrize("id", ["../secret/2008_000002", "/etc/2008_000002", "a/../../b"])
def test_an_id_leads_to_no_other_folder(root, id):
    write(root / "ImageSets/Context/train.txt", f"{IDS[0]}\n{id}\n")
    with pytest.raises(BrokenFileError, match=r"train\.txt: id 2: expected the name of a file in"):
        PascalContext(root, "train")


def test_the_cache_saves_the_second_read_is_never_changed_and_keeps_to_its_limit(root):
    data = PascalContextData(root=root, cache=True).open("train")
    data.load(0, ["semseg"])["semseg"].zero_()
    (root / f"semseg/VOC12/{IDS[0]}.png").unlink()
    assert data.load(0, ["semseg"])["semseg"].unique().tolist() == [15]
    cache = Cache(limit=100)
    for number in range(10):
        cache.get((str(number), "image"), lambda: torch.zeros(40, dtype=torch.uint8))
    assert cache.used == 80


def test_threads_get_the_same_samples(root):
    tasks = ["semseg", "human_parts", "sal", "normals", "edge"]
    data, alone = (PascalContextData(root=root, cache=True).open("train") for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(lambda index: data.load(index % len(IDS), tasks), range(16)))
    assert_close(actual, [alone.load(index % len(IDS), tasks) for index in range(16)])


def test_threads_compute_a_shared_property_once():
    begun = []

    class Slow:
        @shared_property
        def value(self):
            begun.append(self)
            sleep(0.1)  # long enough for another thread to begin too, if it could
            return object()

    slow = Slow()
    with ThreadPoolExecutor(4) as pool:
        values = set(pool.map(lambda _: slow.value, range(4)))
    assert (len(values), len(begun)) == (1, 1)


# Rendered scenes in the same layouts.
COUNTS = {"train": 6, "val": 2}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    for layout in ("pascal_context", "nyud"):
        write_scenes(layout, folder / layout, *COUNTS.values(), (48, 64), seed=3)
    return folder


def rendered(domain, split):
    return render(domain, scene_numbers(split, COUNTS[split]), size=(48, 64), seed=3)


def all_of(data, name):
    return torch.stack([data.load(i, [name] if name != "image" else [])[name] for i in range(len(data))])


@pytest.mark.parametrize("split", COUNTS)
def test_scenes_are_read_back_exactly(scenes, split):
    data, expected = Nyud(scenes / "nyud", split), rendered("indoor", split)
    for name in ("image", "semseg", "normals", "edge", "depth"):
        assert torch.equal(all_of(data, name), expected[name]), name
    data, expected = PascalContext(scenes / "pascal_context", split), rendered("outdoor", split)
    expected["human_parts"] = TASKS["human_parts"].ignored(expected["human_parts"])  # unknown without people
    if split == "train":
        expected["edge"] = torch.stack([training_edges(each) for each in expected["context"][:, 0]]).float()[:, None]
    for name in ("semseg", "sal", "normals", "human_parts", "edge"):
        assert torch.equal(all_of(data, name), expected[name]), name
    assert (all_of(data, "image").float() - expected["image"].float()).abs().mean() < 8  # JPEG
    with Image.open(data.files("semseg", data.ids[0])[0]) as image:
        assert image.mode == "P"


def test_images_with_people_are_those_of_the_rendered_data_set(scenes):
    """Only a client with human_parts alone drops the others."""
    same = ScenesData(domain="outdoor", size=(64, 64), **COUNTS, seed=3).open("train")
    written = PascalContext(scenes / "pascal_context", "train")
    alone = list(written.usable(["human_parts"]))
    assert alone == list(written.for_share([3, 0]).usable(["human_parts"])) == list(same.usable(["human_parts"]))
    assert len(alone) < len(written.usable(["human_parts", "sal"])) == COUNTS["train"]
