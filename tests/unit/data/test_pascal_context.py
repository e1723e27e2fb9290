import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch.testing import assert_close

from fedhca2.data.archives import PascalContext, PascalContextData, training_edges
from fedhca2.data.dataset import Cache
from fedhca2.data.files import BrokenFileError, MissingFileError

SIZE = (6, 8)
IDS = ("2008_000002", "2008_000003", "2008_000007", "2008_000008")
WITH_PERSON = (IDS[1], IDS[3])
LABEL_MAP = np.full(SIZE, 2, np.uint16)
LABEL_MAP[:, 4:] = 3


def struct(rows: list[tuple], fields: str) -> np.ndarray:
    array = np.empty((1, len(rows)) if rows else (0, 0), [(name, object) for name in fields.split()])
    for place, row in enumerate(rows):
        array[0, place] = row
    return array


def mask(*place: slice) -> np.ndarray:
    painted = np.zeros(SIZE, np.uint8)
    painted[place] = 1
    return painted


def annotation(objects: list[tuple[int, list[tuple[str, np.ndarray]]]]) -> np.ndarray:
    """A PASCAL-Part annotation under different field names: only positions matter."""
    rows = [("thing", number, mask(slice(0, 4)), struct(parts, "a b")) for number, parts in objects]
    return struct([("image", struct(rows, "c d e f"))], "g h")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folders = "JPEGImages semseg/VOC12 semseg/pascal-context sal_distill normals_distill human_parts"
    for folder in (*folders.split(), "pascal-context/trainval", "ImageSets/Context", "ImageSets/Parts", "json"):
        (tmp_path / folder).mkdir(parents=True)
    for id in IDS:
        Image.new("RGB", SIZE[::-1], (10, 20, 30)).save(tmp_path / "JPEGImages" / f"{id}.jpg")
        codes = Image.fromarray(np.full(SIZE, 15, np.uint8))
        codes.putpalette([7] * 768)
        codes.save(tmp_path / "semseg" / "VOC12" / f"{id}.png")
        Image.fromarray(np.full(SIZE, 200, np.uint8)).save(tmp_path / "sal_distill" / f"{id}.png")
        Image.new("RGB", SIZE[::-1], (0, 51, 255)).save(tmp_path / "normals_distill" / f"{id}.png")
        savemat(tmp_path / "pascal-context" / "trainval" / f"{id}.mat", {"LabelMap": LABEL_MAP}, do_compression=True)
        objects = [(15, [("head", mask(slice(0, 2)))])] if id in WITH_PERSON else [(6, [])]
        savemat(tmp_path / "human_parts" / f"{id}.mat", {"anno": annotation(objects)}, do_compression=True)
    flags = {id: [15, 6] if id in WITH_PERSON else [6] for id in reversed(IDS)}
    for split in ("train", "val"):
        (tmp_path / "ImageSets" / "Context" / f"{split}.txt").write_text("\n".join(IDS) + "\n")
        (tmp_path / "ImageSets" / "Parts" / f"{split}.txt").write_text(json.dumps(flags))
    (tmp_path / "json" / "nyu_classes.json").write_text(json.dumps({"chair": 1, "unknown": 2}))
    context = {"chair": 2, "sky": 3, "tvmonitor": 427, "unknown": 431}
    (tmp_path / "json" / "context_classes.json").write_text(json.dumps(context))
    return tmp_path


def load(root: Path, task: str, split: str = "train", index: int = 0) -> torch.Tensor:
    return PascalContext(root, split).load(index, [task])[task]


def write_parts(root: Path, *objects: tuple[int, list[tuple[str, np.ndarray]]]) -> None:
    savemat(root / "human_parts" / f"{IDS[0]}.mat", {"anno": annotation(list(objects))})


def test_an_image_is_bytes_by_channel(root):
    image = PascalContext(root, "train").load(0, [])["image"]
    assert (image.dtype, image.shape) == (torch.uint8, (3, *SIZE))


def test_semseg_is_the_index_and_not_the_colour(root):
    assert_close(load(root, "semseg"), torch.full((1, *SIZE), 15, dtype=torch.uint8))


def test_semseg_prefers_voc(root):
    Image.fromarray(np.full(SIZE, 3, np.uint8)).save(root / "semseg" / "pascal-context" / f"{IDS[0]}.png")
    assert load(root, "semseg").unique().tolist() == [15]


def test_semseg_comes_from_pascal_context_where_voc_has_none(root):
    Image.fromarray(np.full(SIZE, 3, np.uint8)).save(root / "semseg" / "pascal-context" / f"{IDS[0]}.png")
    (root / "semseg" / "VOC12" / f"{IDS[0]}.png").unlink()
    assert load(root, "semseg").unique().tolist() == [3]


def test_a_class_out_of_range_is_an_error(root):
    Image.fromarray(np.full(SIZE, 21, np.uint8)).save(root / "semseg" / "VOC12" / f"{IDS[0]}.png")
    with pytest.raises(BrokenFileError, match=rf"{IDS[0]}\.png: expected values 0 … 20 and 255, got \[21\]"):
        load(root, "semseg")


@pytest.mark.parametrize(("grey", "salient"), [(127, 0), (128, 1)])
def test_saliency_starts_at_128(root, grey, salient):
    Image.fromarray(np.full(SIZE, grey, np.uint8)).save(root / "sal_distill" / f"{IDS[0]}.png")
    assert load(root, "sal").unique().tolist() == [salient]


def test_normals_are_decoded_where_the_class_is_valid(root):
    valid = torch.tensor([-1.0, -0.6, 1.0]).view(3, 1, 1).expand(3, SIZE[0], 4)
    assert_close(load(root, "normals")[..., :4], valid)


def test_normals_are_zero_where_the_class_is_not_valid(root):
    assert not load(root, "normals")[..., 4:].any()


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
    assert ["".join(".#"[int(on)] for on in row) for row in training_edges(label_map)] == expected.split()


def test_validation_edges_are_the_boundaries_that_odsf_compares_with(root):
    expected = torch.zeros(1, *SIZE)
    expected[..., 3] = 1
    assert_close(load(root, "edge", "val"), expected)


def test_parts_are_painted_by_group_and_later_ones_on_top(root):
    write_parts(root, (15, [("torso", mask(slice(0, 3))), ("lfoot", mask(slice(2, 4)))]))
    assert load(root, "human_parts")[0, :, 0].tolist() == [2, 2, 6, 6, 0, 0]


def test_parts_of_other_objects_are_not_painted(root):
    write_parts(root, (12, [("head", mask(slice(0, 3)))]), (15, [("rhand", mask(slice(4, 5)))]))
    assert load(root, "human_parts")[0, :, 0].tolist() == [0, 0, 0, 0, 4, 0]


def test_an_image_without_parts_is_unknown_everywhere(root):
    write_parts(root, (15, []))
    assert load(root, "human_parts").unique().tolist() == [255]


def test_an_unknown_part_is_an_error(root):
    write_parts(root, (15, [("wing", mask(slice(0, 3)))]))
    with pytest.raises(BrokenFileError, match="got 'wing'"):
        load(root, "human_parts")


def test_a_client_with_human_parts_alone_drops_images_without_a_person(root):
    assert list(PascalContext(root, "val").usable(["human_parts"])) == [1, 3]


def test_a_client_with_more_tasks_keeps_every_image(root):
    assert list(PascalContext(root, "train").usable(["human_parts", "sal"])) == [0, 1, 2, 3]


def test_a_share_changes_nothing(root):
    assert list(PascalContext(root, "train").for_share([3, 0]).usable(["human_parts"])) == [1, 3]


def test_the_released_index_asks_for_the_position_in_the_share(root):
    share = [3, 0, 1]
    data = PascalContext(root, "train", released_parts_index=True).for_share(share)
    assert [index for index in share if index in data.usable(["human_parts"])] == [0]


def test_the_released_index_loses_the_parts_of_a_client_with_more_tasks(root):
    data = PascalContext(root, "train", released_parts_index=True).for_share([3, 0, 1])
    assert data.load(3, ["human_parts", "sal"])["human_parts"].unique().tolist() == [255]


def test_opening_names_the_missing_label(root):
    (root / "sal_distill" / f"{IDS[2]}.png").unlink()
    with pytest.raises(MissingFileError, match=rf"sal_distill.{IDS[2]}\.png: expected 'sal' of the train split"):
        PascalContext(root, "train", tasks=["sal"])


def test_labels_of_other_tasks_are_not_looked_at(root):
    (root / "sal_distill" / f"{IDS[2]}.png").unlink()
    assert len(PascalContext(root, "train", tasks=["edge"])) == len(IDS)


def test_labels_are_the_tasks_whose_folders_are_there(root):
    (root / "normals_distill").rename(root / "elsewhere")
    assert set(PascalContext(root, "train").labels) == {"semseg", "human_parts", "sal", "edge"}


def test_a_label_of_another_size_is_an_error(root):
    Image.fromarray(np.zeros((5, 8), np.uint8)).save(root / "sal_distill" / f"{IDS[0]}.png")
    with pytest.raises(BrokenFileError, match=rf"{IDS[0]}\.png: expected 6×8 like its image, got 5×8"):
        load(root, "sal")


def test_a_damaged_file_is_an_error_that_names_it(root):
    (root / "human_parts" / f"{IDS[0]}.mat").write_bytes(b"not a MATLAB file at all" * 20)
    with pytest.raises(BrokenFileError, match=rf"{IDS[0]}\.mat: expected a MATLAB file"):
        load(root, "human_parts")


def test_something_else_in_a_file_is_an_error_that_names_it(root):
    savemat(root / "human_parts" / f"{IDS[0]}.mat", {"anno": np.zeros((2, 2))})
    with pytest.raises(BrokenFileError, match=rf"{IDS[0]}\.mat: expected a file readable as 'human_parts', got"):
        load(root, "human_parts")


@pytest.mark.parametrize("id", ["../secret/2008_000002", "/etc/2008_000002", "a/../../b"])
def test_an_id_leads_to_no_other_folder(root, id):
    path = root / "ImageSets" / "Context" / "train.txt"
    path.write_text(f"{IDS[0]}\n{id}\n")
    with pytest.raises(BrokenFileError, match=r"train\.txt: id 2: expected the name of a file in"):
        PascalContext(root, "train")


@pytest.mark.parametrize("value", [460.0, -1.0, 1.5, float("nan")])
def test_a_class_that_does_not_exist_in_the_label_map_is_an_error(root, value):
    path = root / "pascal-context" / "trainval" / f"{IDS[0]}.mat"
    savemat(path, {"LabelMap": np.full(SIZE, value)})
    with pytest.raises(BrokenFileError, match=r"\.mat: LabelMap: expected whole numbers from 0 to 459"):
        load(root, "edge")


@pytest.mark.parametrize("number", [460, -1, 1.0, "2", True])
def test_a_class_list_with_a_number_out_of_range_is_an_error(root, number):
    path = root / "json" / "context_classes.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sky": number}))
    with pytest.raises(BrokenFileError, match=r"context_classes\.json: 'sky': expected a number from 0 to 459"):
        load(root, "normals")


@pytest.mark.parametrize("content", [[], {IDS[0]: 15}, {IDS[0]: "15"}])
def test_a_person_list_in_another_form_is_an_error(root, content):
    (root / "ImageSets" / "Parts" / "train.txt").write_text(json.dumps(content))
    with pytest.raises(BrokenFileError, match=r"Parts.train\.txt: expected a list of classes by id"):
        PascalContext(root, "train").usable(["human_parts"])


def test_a_person_list_without_an_image_is_an_error(root):
    (root / "ImageSets" / "Parts" / "train.txt").write_text(json.dumps({IDS[0]: [15]}))
    with pytest.raises(BrokenFileError, match=rf"got none for {IDS[1]}"):
        PascalContext(root, "train").usable(["human_parts"])


def test_the_cache_saves_the_second_read(root):
    data = PascalContextData(root=root, cache=True).open("train")
    first = data.load(0, ["semseg"])["semseg"]
    (root / "semseg" / "VOC12" / f"{IDS[0]}.png").unlink()
    assert_close(data.load(0, ["semseg"])["semseg"], first)


def test_changing_a_sample_does_not_change_the_cache(root):
    data = PascalContextData(root=root, cache=True).open("train")
    for _ in range(2):
        sample = data.load(0, ["semseg"])["semseg"]
        value = sample[0, 0, 0].item()
        sample.zero_()
    assert value == 15


def test_the_cache_keeps_to_its_limit():
    cache = Cache(limit=100)
    for number in range(10):
        cache.get((str(number), "image"), lambda: torch.zeros(40, dtype=torch.uint8))
    assert cache.used == 80


def test_threads_get_the_same_samples(root):
    tasks = ["semseg", "human_parts", "sal", "normals", "edge"]
    data, alone = (PascalContextData(root=root, cache=True).open("train") for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: data.load(index % len(IDS), tasks), range(16)))
    assert_close(found, [alone.load(index % len(IDS), tasks) for index in range(16)])
