import pytest
import yaml
from PIL import Image

from command import invoke, printed, refused
from tiny_encoder import TINY


@pytest.fixture
def root(tmp_path):
    printed("data", "scenes", "--layout", "nyud", tmp_path / "rooms", "--count", 3, "--size", "32x64")
    return tmp_path / "rooms"


def test_scenes_have_the_requested_size_and_a_picture_and_a_check_names_a_missing_file(root, tmp_path):
    assert Image.open(root / "images" / "0000002.png").size == (64, 32)
    assert "No problems found" in printed("data", "check", root)
    printed("data", "info", root, "--count", 2, "--out", tmp_path / "rooms.png")
    assert Image.open(tmp_path / "rooms.png").size == (5 * 192, 16 + 2 * 144)
    (root / "depth" / "0000001.npy").unlink()
    done = invoke("data", "check", root)
    assert (done.exit_code, f"missing: {root / 'depth' / '0000001.npy'}" in done.output) == (1, True)
    assert "empty folder" in refused("data", "scenes", "--layout", "nyud", root)


@pytest.mark.parametrize("command", ["check", "info"])
def test_a_folder_of_no_known_layout_is_wrong_input(command, tmp_path):
    assert "gt_sets/" in refused("data", command, tmp_path)


@pytest.mark.parametrize("size", ["16", "64x", "1x2x3", "big"])
def test_a_wrong_size_is_wrong_input(size, tmp_path):
    done = invoke("data", "scenes", "--layout", "nyud", tmp_path / "new", "--size", size)
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])


def with_masks(tmp_path, **settings):
    """An experiment on a folder of masks with a CSV file."""
    (tmp_path / "cups").mkdir()
    for i in range(10):
        Image.new("RGB", (32, 32)).save(tmp_path / "cups" / f"{i}.png")
        Image.new("L", (32, 32), i % 3).save(tmp_path / "cups" / f"{i}.mask.png")
    rows = "".join(f"{i}.png,{i}.mask.png\n" for i in range(10))
    (tmp_path / "cups" / "labels.csv").write_text(f"image,mask\n{rows}")
    data = {"kind": "csv", "root": "cups", "columns": {"semseg": "mask"}, "size": [32, 32], **settings}
    values = {
        "model": {"encoder": {"name": TINY}},
        "training": {"batch_size": 2},
        "data": {"cups": data},
        "clients": [{"data": "cups", "tasks": ["semseg"]}],
    }
    (tmp_path / "cups.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "cups.yaml"


@pytest.mark.parametrize(("classes", "codes"), [(None, [2, 2]), (3, [0, 0]), (["a", "b", "c"], [0, 0]), (2, [1, 2])])
def test_masks_with_too_few_classes_are_refused_by_a_check_as_by_a_run(tmp_path, classes, codes):
    path = with_masks(tmp_path, **({"classes": {"semseg": classes}} if classes else {}))
    outcomes = [invoke("data", "check", path), invoke("run", path, "--dry-run")]
    assert [done.exit_code for done in outcomes] == codes
    assert all(("data.cups: semseg: expected the names" in done.output) == (not classes) for done in outcomes)
