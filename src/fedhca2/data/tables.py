"""CSV files: their rows, splits and labels; and tables, whose columns are inputs and labels."""

import csv
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from fedhca2.data.dataset import Split
from fedhca2.data.files import BrokenFileError, reading
from fedhca2.tasks import TASKS, TaskSet

warn_once = cache(logging.getLogger("fedhca2.data").warning)  # however often a data set is opened

LARGEST = 1e30  # number in a cell: standardised, it is far from what a float32 holds
MOST_COLUMNS = 8192  # of a file, and inputs of a table
UNKNOWN = ("", "NA", "NaN", "nan")  # cells without a value

Values = NDArray[np.float64]


def read_rows(path: Path, columns: Iterable[str]) -> dict[int, dict[str, str]]:
    """The rows of a CSV file by the number of their line; raises an error unless it has these columns."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        names = next(reader, [])
        if len(names) > MOST_COLUMNS:
            raise BrokenFileError(path, f"expected at most {MOST_COLUMNS} columns, got {len(names)}")
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise BrokenFileError(path, f"expected a different name for each column, got {twice[0]!r} twice")
        for name in columns:
            if name not in names:
                raise BrokenFileError(path, f"expected a column {name!r}, got {', '.join(names) or 'nothing':.200}")
        rows = {}
        for cells in filter(None, reader):  # an empty line is no row
            if len(cells) != len(names):
                raise BrokenFileError(cell_in(path, reader.line_num), f"expected {len(names)} cells, got {len(cells)}")
            rows[reader.line_num] = dict(zip(names, cells, strict=True))
    if not rows:
        raise BrokenFileError(path, "expected a row for each sample, got none below the names of columns")
    return rows


def cell_in(path: Path, line: int, column: str = "") -> str:
    """A line of a file, or a cell of it, as an error names it."""
    return f"{path}:{line}" + (f": column {column!r}" if column else "")


def parse_number(path: Path, line: int, column: str, cell: str) -> float:
    """The number in a cell, NaN if it is unknown."""
    try:
        value = nan if cell.strip() in UNKNOWN else float(cell)
    except ValueError:
        raise BrokenFileError(cell_in(path, line, column), f"expected a number, got {cell!r:.80}") from None
    if abs(value) > LARGEST:
        expected = f"expected a finite number, at most {LARGEST:g}"
        raise BrokenFileError(cell_in(path, line, column), f"{expected}, got {cell!r:.80}")
    return value


class CsvRows:
    """The rows of one split of a CSV file with names in its first row, and their labels by task.

    Rows belong to the split that the column `split` names, or, without such a column, every fifth is for validation.
    """

    def __init__(
        self,
        split: Split,
        path: Path,
        columns: Mapping[str, str | list[str]],
        others: Sequence[str],
        classes: Mapping[str, list[str] | int] | None,
        tasks: TaskSet,
    ) -> None:
        """:param others: further columns that the file should have, without labels."""
        self.path, self.tasks, self.classes = path, tasks, classes or {}
        self.columns = {task: [names] if isinstance(names, str) else names for task, names in columns.items()}
        with reading(path, "a CSV file with a row of names"):
            self.all_rows = read_rows(path, [*others, *(name for names in self.columns.values() for name in names)])
        self.labels: dict[str, Any] = {task: self._names(task) for task in self.columns}
        self.lines = self.lines_of(split)
        self.rows = [self.all_rows[line] for line in self.lines]

    def _names(self, task: str) -> Sequence[str] | int | None:
        """The names of a task's classes or values, or their number."""
        names_or_number, declared = self.classes.get(task), self.tasks.get(task)
        if declared is None or declared.output == "map":
            return names_or_number
        columns = self.columns[task]
        if declared.grouped_by != "class":
            return names_or_number or columns
        if isinstance(names_or_number, int):
            return [str(number) for number in range(names_or_number)]
        return names_or_number or self.words(columns[0], self.all_rows)

    def lines_of(self, split: Split) -> list[int]:
        """The lines of a split's rows."""
        if "split" not in next(iter(self.all_rows.values())):
            return [line for number, line in enumerate(self.all_rows) if (number % 5 == 4) == (split == "val")]
        words = {"train": "train", "val": "val", "validation": "val"}
        counts = Counter(row["split"] for row in self.all_rows.values())
        if unused := {name: count for name, count in counts.items() if name not in words}:
            listed = ", ".join(f"{count} of {name!r:.40}" for name, count in list(unused.items())[:5])
            about = f"{self.path}: {sum(unused.values())} rows are in neither 'train' nor 'val'"
            warn_once(f"{about}, and not used: {listed}")
        lines = [line for line, row in self.all_rows.items() if words.get(row["split"]) == split]
        if not lines:
            listed = ", ".join(f"{name!r:.40}" for name in list(counts)[:5])
            raise BrokenFileError(self.path, f"column 'split': expected {split!r} in some rows, got {listed}")
        return lines

    def words(self, column: str, lines: Iterable[int]) -> list[str]:
        """The different words in a column of these lines, sorted."""
        words = sorted({self.all_rows[line][column] for line in lines} - {""})
        if not words:
            raise BrokenFileError(self.path, f"column {column!r}: expected a word in some rows, got none")
        return words

    def __len__(self) -> int:
        return len(self.rows)

    def label(self, task: str, line: int) -> Any:
        """The label that a line has for a task; None if it has none."""
        declared = self.tasks.get(task)
        cells = {name: self.all_rows[line][name] for name in self.columns[task]}
        column, cell = next(iter(cells.items()))
        if declared is None or not any(cells.values()):
            return None
        if declared.output == "map":
            return self.map(line, column, cell)
        if declared.grouped_by != "class":
            return [self.number(line, column) for column in cells]
        names = self.labels[task]
        if cell not in names:
            expected = f"expected one of {', '.join(names):.200}"
            raise BrokenFileError(cell_in(self.path, line, column), f"{expected}, got {cell!r:.80}")
        return names.index(cell)

    def map(self, line: int, column: str, cell: str) -> Any:
        """The label map that a cell names."""
        raise BrokenFileError(
            cell_in(self.path, line, column), "expected a task with one answer for each row, got one for maps"
        )

    def number(self, line: int, column: str) -> float:
        """The number in a cell, NaN if it is unknown."""
        return parse_number(self.path, line, column, self.all_rows[line][column])


class CsvTable(CsvRows):
    """A CSV file whose columns are inputs and labels.

    Numbers are standardised by the rows for training, and an unknown one is their mean. Any label may be missing.
    Splits are as in `CsvImages`.

    :param file: the CSV file.
    :param columns: the column of each task's label, or a list of columns for several numbers.
    :param inputs: columns of numbers; by default all that nothing else names.
    :param categories: columns of words with their values, or a list of columns, whose values are those in rows for
        training; each value is an input of 0 or 1.
    :param classes: the names of a task's classes, or their number.
    :param ids: a column with names for rows.
    """

    cache = True  # the default of the setting
    shape: tuple[int, ...] = ()  # of an input; known once the file is open

    def __init__(
        self,
        split: Split,
        file: Path,
        columns: dict[str, str | list[str]],
        inputs: list[str] | None = None,
        categories: dict[str, list[str] | None] | list[str] | None = None,
        classes: dict[str, list[str] | PositiveInt] | None = None,
        ids: str | None = None,
        tasks: TaskSet = TASKS,
    ) -> None:
        by_category = categories if isinstance(categories, dict) else dict.fromkeys(categories or [])
        super().__init__(split, file, columns, [*(inputs or ()), *by_category, *([ids] if ids else ())], classes, tasks)
        other_columns = {"split", ids, *by_category, *(name for names in self.columns.values() for name in names)}
        every = next(iter(self.all_rows.values()))
        self.inputs = [name for name in every if name not in other_columns] if inputs is None else inputs
        training = self.lines_of("train")
        self.categories = {name: values or self.words(name, training) for name, values in by_category.items()}
        values = np.array([[self.number(line, column) for column in self.inputs] for line in training])
        if self.inputs and (empty := np.isnan(values).all(axis=0)).any():
            column = self.inputs[int(empty.argmax())]
            raise BrokenFileError(file, f"column {column!r}: expected a number in a row for training, got none")
        self.means, deviations = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        self.deviations = np.where(deviations > 0, deviations, 1)  # of equal values 1
        width = len(self.inputs) + sum(map(len, self.categories.values()))
        if not 0 < width <= MOST_COLUMNS:
            raise BrokenFileError(file, f"expected 1 to {MOST_COLUMNS} inputs, got {width}")
        self.shape = (width,)
        for task in [task for task in self.columns if task in tasks and tasks[task].standardised]:
            for column in self.columns[task]:
                different = len({self.all_rows[line][column].strip() for line in training} - {*UNKNOWN})
                if different < 2:  # nothing to learn
                    expected = "expected two or more different numbers in the rows for training"
                    raise BrokenFileError(file, f"column {column!r}: {expected}, got {different}")
        if ids:
            self.ids = [row[ids] for row in self.rows]

    def __getitem__(self, index: int) -> dict[str, Any]:
        line = self.lines[index]
        numbers = np.array([self.number(line, column) for column in self.inputs])
        encoded = self._encode_row(numbers, self.rows[index])
        return {"input": encoded, **{task: self.label(task, line) for task in self.columns}}

    def _encode_row(self, numbers: Values, row: Mapping[str, Any]) -> Values:
        standardised = np.where(np.isnan(numbers), 0, (numbers - self.means) / self.deviations)
        words = [str(row.get(name, "")) == value for name, values in self.categories.items() for value in values]
        return np.concatenate([standardised, words])

    def encode(self, row: Mapping[str, Any]) -> Values:
        """The input of a row that is in no file: {column: value}; columns may be left out."""
        if unknown := [name for name in row if name not in (*self.inputs, *self.categories)]:
            raise ValueError(f"expected columns {', '.join([*self.inputs, *self.categories]):.200}, got {unknown[0]!r}")
        for name, values in self.categories.items():
            if name in row and str(row[name]) not in values:
                raise ValueError(f"{name}: expected one of {', '.join(values):.200}, got {row[name]!r:.80}")
        numbers = []
        for name in self.inputs:
            try:
                numbers.append(float(row.get(name, nan)))
            except (TypeError, ValueError):
                raise ValueError(f"{name}: expected a number, got {row[name]!r:.80}") from None
        return self._encode_row(np.array(numbers), row)
