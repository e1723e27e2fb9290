"""Data sets that others have already written: map-style ones, Hugging Face's, and folders with a CSV file.

Each is a class of the kind that `own.py` describes.
"""

import csv
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import PositiveInt

from fedhca2.data.dataset import Size, Split
from fedhca2.data.files import FORMATS, BrokenFileError, file_in, read_colours, read_npy, read_values, reading
from fedhca2.tasks import TASKS, TaskSet

log = logging.getLogger("fedhca2.data")


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
        self.keys: Mapping[str, Any] = names if isinstance(names, Mapping) else {n: i for i, n in enumerate(names)}
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
    """A Hugging Face data set in a folder, as `save_to_disk` writes it; `columns` has its columns by our names.

    Images are those within its own files: a name of another file or an address, which a data set may have instead, is
    refused.
    """

    def __init__(
        self, split: Split, root: Path, columns: dict[str, str], train: str = "train", val: str = "validation"
    ) -> None:
        try:
            import datasets
        except ImportError:
            raise ImportError("needs another package: pip install 'fedhca2[huggingface]'") from None
        chosen = datasets.load_from_disk(str(root))[train if split == "train" else val]
        chosen = chosen.select_columns(list(dict.fromkeys(columns.values())))
        for name, feature in chosen.features.items():
            if isinstance(feature, datasets.Image):
                chosen = chosen.cast_column(name, datasets.Image(decode=False))
        super().__init__(chosen, columns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: self._opened(name, value) for name, value in super().__getitem__(index).items()}

    def _opened(self, name: str, value: Any) -> Any:
        if not isinstance(value, dict) or set(value) != {"bytes", "path"}:
            return value
        if value["bytes"] is None:
            raise ValueError(f"{self.keys[name]!r}: expected an image, got the name of one: {value['path']!r:.200}")
        return Image.open(BytesIO(value["bytes"]), formats=FORMATS)


class CsvImages:
    """A folder of images and one CSV file with a row for each.

    `columns` has a column by task: the name of a file for a map (PNG, or .npy for measured values), the name of a class
    for a classification, numbers for other vectors, each in a column of its own. An empty cell is unknown. `classes`
    has the names of a task's classes, or their number. Rows belong to the split that the column `split` names, or,
    without such a column, every fifth is for validation. Files are in `root`; with `links`, also where links lead.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        columns: dict[str, str | list[str]],
        file: str = "labels.csv",
        image: str = "image",
        classes: dict[str, list[str] | PositiveInt] | None = None,
        links: bool = False,
        tasks: TaskSet = TASKS,
    ) -> None:
        self.tasks, self.root, self.image, self.path = tasks, root, image, root / file
        self.within = None if links else root
        self.columns = {task: [names] if isinstance(names, str) else names for task, names in columns.items()}
        self.classes = classes or {}
        with reading(self.path, "a CSV file with a row of names"):
            rows = self._read_rows()
        self.labels = {task: self._names(task, list(rows.values())) for task in self.columns}
        self.lines = self._lines_of(split, rows)
        self.rows = [rows[line] for line in self.lines]
        self.ids = [row[image] for row in self.rows]

    def _read_rows(self) -> dict[int, dict[str, str]]:
        """The rows by the number of their line."""
        with self.path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines)
            names = next(reader, [])
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise BrokenFileError(self.path, f"expected a different name for each column, got {twice[0]!r} twice")
            for name in (self.image, *(name for names in self.columns.values() for name in names)):
                if name not in names:
                    found = ", ".join(names) or "nothing"
                    raise BrokenFileError(self.path, f"expected a column {name!r}, got {found}")
            rows = {}
            for cells in filter(None, reader):  # an empty line is no row
                if len(cells) != len(names):
                    raise BrokenFileError(self._at(reader.line_num), f"expected {len(names)} cells, got {len(cells)}")
                rows[reader.line_num] = dict(zip(names, cells, strict=True))
        if not rows:
            raise BrokenFileError(self.path, "expected a row for each image, got none below the names of columns")
        return rows

    def _names(self, task: str, rows: Sequence[Mapping[str, str]]) -> Sequence[str] | int | None:
        """The names of a task's classes or values, or their number."""
        given, declared = self.classes.get(task), self.tasks.get(task)
        if declared is None or declared.output == "map":
            return given
        columns = self.columns[task]
        if declared.grouped_by != "class":
            return given or columns
        if isinstance(given, int):
            return [str(number) for number in range(given)]
        return given or sorted({row[columns[0]] for row in rows} - {""})

    def _lines_of(self, split: Split, rows: Mapping[int, Mapping[str, str]]) -> list[int]:
        """The lines of a split's rows."""
        if "split" not in next(iter(rows.values())):
            return [line for number, line in enumerate(rows) if (number % 5 == 4) == (split == "val")]
        words = {"train": "train", "val": "val", "validation": "val"}
        counts = Counter(row["split"] for row in rows.values())
        if unused := {name: count for name, count in counts.items() if name not in words}:
            listed = ", ".join(f"{count} of {name!r:.40}" for name, count in list(unused.items())[:5])
            about = f"{self.path}: {sum(unused.values())} rows are in neither 'train' nor 'val'"
            _warn_once(f"{about}, and not used: {listed}")
        lines = [line for line, row in rows.items() if words.get(row["split"]) == split]
        if not lines:
            listed = ", ".join(f"{name!r:.40}" for name in list(counts)[:5])
            raise BrokenFileError(self.path, f"column 'split': expected {split!r} in some rows, got {listed}")
        return lines

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, line = self.rows[index], self.lines[index]
        pixels = read_colours(self._file(line, self.image, row[self.image]))
        labels = {
            task: self._label(task, line, {name: row[name] for name in names}, (pixels.shape[1], pixels.shape[2]))
            for task, names in self.columns.items()
        }
        return {"image": pixels, **labels}

    def _at(self, line: int, column: str = "") -> str:
        """A line of the file, or a cell of it, as an error names it."""
        return f"{self.path}:{line}" + (f": column {column!r}" if column else "")

    def _file(self, line: int, column: str, name: str) -> Path:
        return file_in(self.root, name, within=self.within, where=self._at(line, column))

    def _label(self, task: str, line: int, cells: Mapping[str, str], size: Size) -> Any:
        declared = self.tasks.get(task)
        if declared is None:
            return None
        column, cell = next(iter(cells.items()))
        if declared.output == "map":
            if not cell:
                return np.full((*size, declared.label_channels or 1), declared.fill, np.float32)
            path = self._file(line, column, cell)
            return read_npy(path) if path.suffix == ".npy" else read_values(path)
        if declared.grouped_by == "class":
            names = self.labels[task]
            assert isinstance(names, Sequence)
            if cell and cell not in names:
                wanted = f"expected one of {', '.join(names):.200}"
                raise BrokenFileError(self._at(line, column), f"{wanted}, got {cell!r:.80}")
            return names.index(cell) if cell else nan
        return [self._number(line, column, cell) for column, cell in cells.items()]

    def _number(self, line: int, column: str, cell: str) -> float:
        try:
            return float(cell) if cell else nan
        except ValueError:
            raise BrokenFileError(self._at(line, column), f"expected a number, got {cell!r:.80}") from None


@cache
def _warn_once(message: str) -> None:
    """Warn, however often a data set is opened."""
    log.warning(message)
