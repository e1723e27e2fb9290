"""Experiments and tables in a folder; the first of their data sets opened, dealt to clients, or refused."""

import csv
from pathlib import Path

import pytest
import yaml

from command import invoke
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data

run = invoke  # a command


def write_experiment(folder: Path, **values: object) -> Path:
    """A file with an experiment of one round."""
    (folder / "ours.yaml").write_text(yaml.safe_dump({"rounds": 1, "method": "local", **values}), "utf-8")
    return folder / "ours.yaml"


def write_table(path: Path, rows: list[dict[str, object]]) -> None:
    """A CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def opened(path, split="train"):
    experiment = Experiment.load(path)
    return experiment.open(next(iter(experiment.data)), split)


def dealt(path):
    experiment = Experiment.load(path)
    return assign_shards(experiment, open_data(experiment))


def fault(path) -> str:
    """What is said before training, which has to be one line."""
    with pytest.raises(UserError) as error:
        dealt(path)
    assert "\n" not in error.value.lines[0]
    return error.value.lines[0]
