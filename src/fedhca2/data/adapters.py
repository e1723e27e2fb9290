"""Data sets that others have already written: map-style ones, Hugging Face's, folders with a CSV file, and COCO's.

Each is a class of the kind that `own.py` describes.
"""

import csv
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhca2.data.dataset import Split
from fedhca2.data.file_errors import BrokenFileError
from fedhca2.data.files import read_colours, read_file, read_json, read_npy, read_values
from fedhca2.tasks import TASKS, TaskSet

HELD_OUT = 5  # without a column that says so, every fifth row is a validation image
Mask = NDArray[np.bool_]
MOST_CLASSES = 254  # beside the background; 255 is unknown
FARTHEST = 1e6  # pixels that a corner may lie outside of its image
LONGEST = 60  # bits of a run's length


class MapStyle:
    """Any data set with `len()` and `[index]`: torchvision's, or another of torch's kind.

    `names` describes its samples. For a tuple it lists the names of the items, as in ("image", "semseg"); for a dict it
    gives the keys by our names, as in {"image": "jpg", "classification": "label"}. Class names come from `labels`, or
    from the `features` that a Hugging Face data set has.
    """

    def __init__(
        self, dataset: Any, names: Sequence[str] | Mapping[str, str], labels: Mapping[str, Any] | None = None
    ) -> None:
        self.dataset = dataset
        self.keys: Mapping[str, Any] = (
            names if isinstance(names, Mapping) else {name: place for place, name in enumerate(names)}
        )
        features = getattr(dataset, "features", None) or {}
        class_names = {
            name: getattr(features.get(key), "names", None) for name, key in self.keys.items() if name != "image"
        }
        self.labels = class_names if labels is None else labels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.dataset[index]
        return {name: sample[key] for name, key in self.keys.items()}


class HuggingFace(MapStyle):
    """A Hugging Face data set in a folder, as `save_to_disk` writes it; `columns` has its columns by our names."""

    def __init__(
        self, split: Split, root: Path, columns: dict[str, str], train: str = "train", val: str = "validation"
    ) -> None:
        try:
            from datasets import load_from_disk
        except ImportError:
            raise ImportError("needs another package: pip install 'fedhca2[huggingface]'") from None
        super().__init__(load_from_disk(str(root))[train if split == "train" else val], columns)


class CsvImages:
    """A folder of images and one CSV file with a row for each.

    `columns` has a column by task: the name of a file for a map (PNG, or .npy for measured values), the name of a class
    for a classification, numbers for other vectors, each in a column of its own. An empty cell is unknown. Rows belong
    to the split that the column `split` names, or, without such a column, every fifth is for validation.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        columns: dict[str, str | list[str]],
        file: str = "labels.csv",
        image: str = "image",
        classes: dict[str, list[str]] | None = None,
        tasks: TaskSet = TASKS,
    ) -> None:
        self.tasks = tasks
        self.root, self.image, self.path = root, image, root / file
        self.columns = {task: [held] if isinstance(held, str) else held for task, held in columns.items()}
        self.classes = classes or {}
        rows = read_file(self.path, "a CSV file with a row of names", self._rows)
        self.labels = {task: self._names(task, rows) for task in self.columns}
        self.rows = [row for number, row in enumerate(rows) if self._split(row, number) == split]
        self.ids = [row[image] for row in self.rows]

    def _rows(self, path: Path) -> list[dict[str, str]]:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
        columns = list(rows[0]) if rows else []
        for name in (self.image, *(name for names in self.columns.values() for name in names)):
            if name not in columns:
                raise BrokenFileError(path, f"should have a column {name!r}, found {', '.join(columns) or 'nothing'}")
        return rows

    def _names(self, task: str, rows: Sequence[Mapping[str, str]]) -> Sequence[str] | None:
        """The names of a task's classes or values."""
        if task in self.classes:
            return self.classes[task]
        declared = self.tasks.get(task)
        if declared is None or declared.output == "map":
            return None
        columns = self.columns[task]
        return sorted({row[columns[0]] for row in rows} - {""}) if declared.grouped_by == "class" else columns

    def _split(self, row: Mapping[str, str], number: int) -> str:
        return row["split"] if "split" in row else "val" if number % HELD_OUT == HELD_OUT - 1 else "train"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        labels = {task: self._label(task, [row[column] for column in names]) for task, names in self.columns.items()}
        return {"image": read_colours(self.root / row[self.image]), **labels}

    def _label(self, task: str, cells: Sequence[str]) -> Any:
        if task not in self.tasks:
            return None
        if self.tasks[task].output == "map":
            path = self.root / cells[0]
            return read_npy(path) if path.suffix == ".npy" else read_values(path)
        if self.tasks[task].grouped_by == "class":
            names = self.labels[task] or ()
            if cells[0] and cells[0] not in names:
                raise ValueError(f"{task!r} should be one of {', '.join(names)}, found {cells[0]!r}")
            return list(names).index(cells[0]) if cells[0] else nan
        return [float(cell) if cell else nan for cell in cells]


class CocoMasks:
    """A folder in COCO's layout, with `semseg` (0 is background) and `multilabel` (which categories are there).

    Objects are painted from the largest to the smallest, so that small ones are not covered.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        images: str = "{split}2017",
        annotations: str = "annotations/instances_{split}2017.json",
    ) -> None:
        self.folder = root / images.format(split=split)
        self.path = root / annotations.format(split=split)
        content = read_json(self.path)
        if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
            raise BrokenFileError(self.path, "should have images, annotations and categories, found other keys")
        categories = sorted(content["categories"], key=lambda category: category["id"])
        if len(categories) > MOST_CLASSES:
            raise BrokenFileError(self.path, f"should have at most {MOST_CLASSES} categories, found {len(categories)}")
        self.classes = {category["id"]: number for number, category in enumerate(categories, 1)}
        if len(self.classes) < len(categories):
            raise BrokenFileError(self.path, "should have a different id for each category, found one twice")
        names = [str(category["name"]) for category in categories]
        self.labels = {"semseg": ["background", *names], "multilabel": names}
        self.images = sorted(content["images"], key=lambda image: image["id"])
        self.ids = [image["file_name"] for image in self.images]
        self.objects: dict[Any, list[Mapping[str, Any]]] = {}
        for each in content["annotations"]:
            self.objects.setdefault(each["image_id"], []).append(each)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.images[index]
        objects = self.objects.get(image["id"], [])
        pixels = read_colours(self.folder / image["file_name"])
        size = (pixels.shape[1], pixels.shape[2])
        if (declared := (image.get("height"), image.get("width"))) != size:
            fault = f"image {image['id']} should be {size[0]}×{size[1]} like its file, found {declared!r:.80}"
            raise BrokenFileError(self.path, fault)
        try:
            painted = self._painted(objects, size)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            fault = (
                f"image {image['id']} should have segmentations of COCO's format, found {type(error).__name__}: {error}"
            )
            raise BrokenFileError(self.path, fault) from error
        there = np.zeros(len(self.classes), np.float32)
        there[[self.classes[each["category_id"]] - 1 for each in objects]] = 1
        return {"image": pixels, "semseg": painted, "multilabel": there}

    def _painted(self, objects: Sequence[Mapping[str, Any]], size: tuple[int, int]) -> NDArray[np.uint8]:
        painted = np.zeros(size, np.uint8)
        masks = [(mask_of(each["segmentation"], size), self.classes[each["category_id"]]) for each in objects]
        for mask, number in sorted(masks, key=lambda pair: -int(pair[0].sum())):
            painted[mask] = number
        return painted


def mask_of(segmentation: Any, size: tuple[int, int]) -> Mask:
    """The mask [H, W] of a segmentation: polygons, or run lengths, compressed or not.

    >>> mask_of({"counts": [1, 2, 3], "size": [2, 3]}, (2, 3)).astype(int)
    array([[0, 1, 0],
           [1, 0, 0]])
    """
    if isinstance(segmentation, Mapping):
        counts = segmentation["counts"]
        return decode_runs(decompress(counts) if isinstance(counts, str | bytes) else counts, size)
    mask: Mask = np.zeros(size, bool)
    for polygon in segmentation:
        mask |= fill_polygon(np.asarray(polygon, np.float64).reshape(-1, 2), size)
    return mask


def fill_polygon(corners: NDArray[np.float64], size: tuple[int, int]) -> Mask:
    """The pixels [H, W] whose centres are in a polygon of (x, y) corners, in pixels from the upper left.

    >>> fill_polygon(np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 1.0], [1.0, 1.0]]), (2, 4)).astype(int)
    array([[0, 1, 1, 0],
           [0, 0, 0, 0]])
    """
    if not np.all(np.abs(corners) < FARTHEST):
        raise ValueError(f"corners should be nearer than {FARTHEST:g} pixels, found one farther away")
    crossings = np.zeros((size[0], size[1] + 1), np.int64)  # of edges, by row and the first column to the right of them
    for (x, y), (to_x, to_y) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        top, bottom = (int(np.clip(np.ceil(edge - 0.5), 0, size[0])) for edge in sorted((y, to_y)))
        rows = np.arange(top, bottom)
        if len(rows):
            place = x + (rows + 0.5 - y) * (to_x - x) / (to_y - y)
            np.add.at(crossings, (rows, np.clip(np.ceil(place - 0.5), 0, size[1]).astype(int)), 1)
    inside: Mask = crossings.cumsum(axis=1)[:, :-1] % 2 == 1
    return inside


def decode_runs(counts: Sequence[int], size: tuple[int, int]) -> Mask:
    """The mask of run lengths down the columns, of 0 and 1 in turn, beginning with 0."""
    if (covered := sum(counts)) != size[0] * size[1]:
        raise ValueError(f"runs should cover {size[0]}×{size[1]} pixels, found {covered}")
    mask: Mask = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return mask.reshape(size[1], size[0]).T


def decompress(text: str | bytes) -> list[int]:
    """The run lengths in COCO's compressed text: groups of 5 bits, each as a letter from '0' on, lowest first.

    A sixth bit says that the number goes on; from the fourth number on, only the difference from the last but one of
    the same value is written.

    >>> decompress("0150000000")  # a diagonal of 5 pixels
    [0, 1, 5, 1, 5, 1, 5, 1, 5, 1]
    """
    counts: list[int] = []
    value = shift = 0
    for letter in text.encode("ascii") if isinstance(text, str) else text:
        group = letter - 48
        value |= (group & 0x1F) << shift
        shift += 5
        if group & 0x20:
            if shift > LONGEST:
                raise ValueError(f"numbers should have at most {LONGEST} bits, found more")
            continue
        if group & 0x10:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    return counts
