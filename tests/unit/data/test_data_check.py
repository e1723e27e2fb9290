import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedhca2.data.archives import PascalContext
from fedhca2.data.check import check, compare_with_papers, contact_sheet, kind_of
from fedhca2.data.rendered import write_scenes

SIZE = (24, 32)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_scenes("pascal_context", tmp_path / "scenes", 3, 2, SIZE, 0)
    return tmp_path / "scenes"


def contents(root: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}


def first(root: Path, folder: str) -> Path:
    return min((root / folder).iterdir())


def test_images_are_counted_by_split_and_size_and_nothing_is_written(root):
    before, heard = contents(root), list[tuple[int, int]]()
    report = check(root, progress=lambda done, total: heard.append((done, total)))
    assert (report.ok, heard) == (True, [(number, 5) for number in range(1, 6)])
    sizes = {split: dict(report_of_split.sizes) for split, report_of_split in report.splits.items()}
    assert sizes == {"train": {SIZE: 3}, "val": {SIZE: 2}}
    assert contents(root) == before


def test_ranges_leave_out_unknown_labels(root):
    path = first(root, "semseg/VOC12")
    Image.fromarray(np.where(np.eye(*SIZE), 20, 255).astype(np.uint8)).save(path)
    assert check(root).splits["train"].ranges["semseg"] == (0, 20)


@pytest.mark.parametrize("folder", ["sal_distill", "JPEGImages"])
def test_a_missing_file_or_list_is_named(root, folder):
    path = first(root, folder)
    path.unlink()
    report = check(root)
    assert (report.missing, f"missing: {path}" in list(report.lines())) == ([path], True)
    (list_file := root / "ImageSets" / "Context" / "val.txt").unlink()  # the other split is still read
    report = check(root)
    assert (list_file in report.missing, list(report.splits)) == (True, ["train"])


@pytest.mark.parametrize(
    "folder",
    ["JPEGImages", "semseg/VOC12", "human_parts", "pascal-context/trainval", "normals_distill", "ImageSets/Parts"],
)
def test_a_damaged_file_is_named_once(root, folder):
    path = first(root, folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert list(check(root).broken) == [path]


def test_a_folder_that_is_neither_archive_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"expected .*ImageSets/ .* or gt_sets/ .*, got neither"):
        kind_of(tmp_path)


@pytest.mark.parametrize(("count", "rows"), [(2, 2), (10, 3)])
def test_a_contact_sheet_has_a_row_per_sample_and_a_column_per_label(root, count, rows):
    assert contact_sheet(PascalContext(root, "train"), count).size == (6 * 192, 16 + rows * 144)


def test_an_archive_that_is_not_the_papers_is_named_with_the_tasks_that_it_serves(root):
    shutil.rmtree(root / "normals_distill")
    lines = list(check(root).lines())
    assert "no folder with labels for normals" in lines
    assert [line.split(":")[0] for line in lines if "another archive than the papers'" in line] == ["train", "val"]
    assert any(line.startswith("clients of this archive can have") and "normals" not in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "split", "count", "message"),
    [
        ("pascal_context", "val", 5105, "the papers' number"),
        ("nyud", "val", 654, "the papers' number"),
        ("nyud", "train", 795, "others than in the official list"),
    ],
)
def test_a_split_is_compared_with_the_papers(kind, split, count, message):
    assert message in compare_with_papers(kind, split, list(map(str, range(count))))[0]
