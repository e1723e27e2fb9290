"""Data sets that others have already written: any map-style data set, Hugging Face's, and a folder with a CSV file.

Each is a class of the kind that `own.py` describes.
"""

import csv
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from fedhca2.data.dataset import Split
from fedhca2.data.file_errors import BrokenFileError
from fedhca2.data.files import read_colours, read_file, read_npy, read_values
from fedhca2.tasks import TASKS, get_task

HELD_OUT = 5  # without a column that says so, every fifth row is a validation image


class MapStyle:
    """Any data set with `len()` and `[index]`: torchvision's, or another of torch's kind.

    `names` says what its samples are: for a tuple the names of its items, as in ("image", "semseg"), for a dict its
    keys by our names, as in {"image": "jpg", "classification": "label"}. Class names come from `labels`, or from the
    `features` that a Hugging Face data set has.
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
    ) -> None:
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
        declared = TASKS.get(task)
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
        if task not in TASKS:
            return None
        if get_task(task).output == "map":
            path = self.root / cells[0]
            return read_npy(path) if path.suffix == ".npy" else read_values(path)
        if get_task(task).grouped_by == "class":
            names = self.labels[task] or ()
            if cells[0] and cells[0] not in names:
                raise ValueError(f"{task!r} should be one of {', '.join(names)}, found {cells[0]!r}")
            return list(names).index(cells[0]) if cells[0] else nan
        return [float(cell) if cell else nan for cell in cells]
