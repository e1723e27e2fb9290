"""Hospitals with tables: the two real tables of scikit-learn, with clients that record different outcomes.

Three hospitals have patients with diabetes and three have samples of tumours. They record different outcomes, and some
outcomes are missing. `hospitals.yaml` in this folder is the experiment. It needs `pip install scikit-learn`:

    fedhca2 compare examples/hospitals.yaml --methods fedper,fedhca2 --seeds 3

Your own table needs no code: `kind: table` reads a CSV file.
"""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn import datasets

from fedhca2.data import CsvTable, Split
from fedhca2.tasks import TASKS, TaskSet


class Diabetes(CsvTable):
    """442 patients: how far the disease went in a year, blood sugar and triglycerides, from six other measurements."""

    def __init__(self, split: Split, missing: float = 0.2, tasks: TaskSet = TASKS) -> None:
        found = datasets.load_diabetes(scaled=False)
        names = {"s5": "lipids", "s6": "sugar"}
        rows = [
            dict(zip((names.get(name, name) for name in found.feature_names), row, strict=True)) for row in found.data
        ]
        for row, progression in zip(rows, found.target, strict=True):
            row |= {"sex": "f" if row["sex"] == 1 else "m", "progression": progression}
        columns: dict[str, str | list[str]] = {name: name for name in ("progression", "sugar", "lipids")}
        with TemporaryDirectory() as folder:
            file = write(Path(folder), rows, columns, missing)
            inputs = ["age", "bmi", "bp", "s1", "s2", "s3", "s4"]
            super().__init__(split, file, columns, inputs, {"sex": ["f", "m"]}, tasks=tasks)


class Tumours(CsvTable):
    """569 tumours: malignant or benign, the largest area and the deepest dent, from means over cells."""

    def __init__(self, split: Split, missing: float = 0.2, tasks: TaskSet = TASKS) -> None:
        found = datasets.load_breast_cancer()
        rows = [dict(zip(found.feature_names, row, strict=True)) for row in found.data]
        for row, target in zip(rows, found.target, strict=True):
            row["diagnosis"] = found.target_names[target]
        columns: dict[str, str | list[str]] = {
            "diagnosis": "diagnosis",
            "area": "worst area",
            "dent": "worst concavity",
        }
        with TemporaryDirectory() as folder:
            file = write(Path(folder), rows, columns, missing)
            inputs = [name for name in found.feature_names if name.startswith("mean ")]
            super().__init__(split, file, columns, inputs, tasks=tasks)


def write(folder: Path, rows: list[dict[str, Any]], labels: dict[str, Any], missing: float) -> Path:
    """Write a CSV file in which a share of all labels is missing, the same cells every time."""
    rng = np.random.default_rng(0)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, **{column: "" for column in labels.values() if rng.random() < missing}})
    return folder / "table.csv"
