import pytest
from PIL import Image
from typer.testing import CliRunner

from fedhca2.cli import app


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def root(tmp_path):
    done = invoke("data", "scenes", "--layout", "nyud", "--root", tmp_path / "rooms", "--count", 3, "--size", "32x64")
    assert done.exit_code == 0, done.output
    return tmp_path / "rooms"


def test_scenes_are_written_in_the_size_that_is_asked_for(root):
    assert Image.open(root / "images" / "0000002.png").size == (64, 32)


def test_a_good_folder_checks_with_exit_code_0(root):
    done = invoke("data", "check", root)
    assert (done.exit_code, "no faults found" in done.output) == (0, True)


def test_a_missing_file_is_named_with_exit_code_1(root):
    (root / "depth" / "0000001.npy").unlink()
    done = invoke("data", "check", root)
    assert (done.exit_code, f"missing: {root / 'depth' / '0000001.npy'}" in done.output) == (1, True)


def test_info_writes_a_picture(root, tmp_path):
    done = invoke("data", "info", root, "--count", 2, "--out", tmp_path / "rooms.png")
    assert (done.exit_code, Image.open(tmp_path / "rooms.png").size) == (0, (5 * 192, 16 + 2 * 144))


@pytest.mark.parametrize("command", ["check", "info"])
def test_a_folder_of_no_known_layout_is_wrong_input(command, tmp_path):
    done = invoke("data", command, tmp_path)
    assert (done.exit_code, "should have ImageSets/ (pascal_context) or gt_sets/ (nyud)" in done.output) == (2, True)


@pytest.mark.parametrize("size", ["16", "64x", "1x2x3", "big"])
def test_a_wrong_size_is_wrong_input(size, tmp_path):
    done = invoke("data", "scenes", "--layout", "nyud", "--root", tmp_path / "new", "--size", size)
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])


def test_scenes_are_not_written_over_something(root):
    done = invoke("data", "scenes", "--layout", "nyud", "--root", root)
    assert (done.exit_code, "should be a new or empty folder" in done.output) == (2, True)


def test_experiments_are_listed_by_the_words_that_they_mention():
    output = invoke("experiments", "table", "5", "local").output
    assert ("fedhca2/table5/local" in output, "fedhca2/table1/fedavg" in output) == (True, False)
