"""The records of finished runs, from which docs/results.md is made: benchmarks/results/EXPERIMENT.jsonl

The first line of a file has the settings of the built-in experiment when the file was begun. Every other line is a run:
its method with all settings, what else it `changes` in the settings of the first line, its scores by task, metric and
client, and its cost. So a record keeps its meaning when a built-in experiment or a method's defaults change later.
"""

import json
from dataclasses import dataclass
from functools import cache, cached_property
from math import nan
from pathlib import Path
from types import SimpleNamespace

from results_runs import changes_in

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.experiment.sources import merged
from fedhca2.run_folder.files import to_json

RECORDS = Path(__file__).parent / "results"


def number(value):
    """A number that JSON holds as null if it is not finite."""
    return nan if value is None else value


@dataclass(frozen=True)
class Record:
    """A finished run. It has what a comparison reads of a run's folder."""

    experiment: str
    base: dict  # the settings in the first line of its file
    line: dict

    @property
    def path(self):
        """Its place, for messages."""
        return f"{self.experiment}.jsonl, {self.method}, seed {self.seed}"

    @property
    def method(self):
        return self.line["method"]["name"]

    @property
    def seed(self):
        return self.line["seed"]

    @property
    def rounds(self):
        return self.settings["rounds"]

    @cached_property
    def settings(self):
        """All settings, with the defaults of those that are newer than the run."""
        return {**self._parsed.to_dict(), "seed": self.seed}

    @cached_property
    def _parsed(self):
        settings = {"name": self.experiment, **self.base}
        for path, value in self.line["changes"].items():
            settings = merged(settings, at_path(path, value))
        try:
            return parsed(json.dumps({**settings, "method": self.line["method"]}))
        except UserError as error:
            raise UserError.of(fault.within(self.path) for fault in error.faults) from None

    @cached_property
    def changes(self):
        """What the run changes in today's built-in experiment with today's defaults of its method."""
        return changes_in(self.settings)

    @cached_property
    def identity(self):
        """What two runs share of which one replaces the other."""
        return identity(self.settings)

    @cached_property
    def scores(self):
        """Scores by client and task, in the order of the config."""
        by_task = self.line["scores"]
        return {
            spec.name: {
                task: {metric: number(held[spec.name]) for metric, held in by_task[task].items() if spec.name in held}
                for task in spec.tasks
            }
            for spec in self._parsed.specs
        }

    @property
    def outcome(self):
        split = "test" if self._parsed.tested else "val"
        return SimpleNamespace(clients=self.scores, split=split, baseline=None)  # compared with recorded runs of Local

    @cached_property
    def tasks(self):
        return {spec.name: spec.tasks for spec in self._parsed.specs}

    @property
    def task_set(self):
        return self._parsed.task_set

    @cached_property
    def kinds(self):
        return self._parsed.kinds

    @property
    def several_of_a_kind(self):
        return len(set(self.kinds.values())) < len(self.kinds)

    def dataset(self, client):
        return self._datasets[client]

    @cached_property
    def _datasets(self):
        return {spec.name: spec.data for spec in self._parsed.specs}


def identity(settings):
    """What two runs share of which one replaces the other: experiment, method, seed, and everything they change."""
    return settings["name"], settings["method"]["name"], settings["seed"], as_line(changes_in(settings))


@cache
def parsed(settings):
    """The experiment with these settings, given as JSON: runs that differ in their seed share it."""
    return Experiment.parse(json.loads(settings))


def at_path(path, value):
    """Settings that hold one value.

    >>> at_path("data.outdoor.train", 125)
    {'data': {'outdoor': {'train': 125}}}
    """
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def read_records(folder):
    """All records below a folder."""
    return [record for file in sorted(folder.glob("*.jsonl")) for record in read_file(file)[1]]


def read_file(file):
    """The settings in the first line of a file, and its records."""
    try:
        first, *lines = map(json.loads, file.read_text("utf-8").splitlines())
    except ValueError as error:
        raise UserError(file, f"expected lines of JSON, got {error}") from None
    return first["settings"], [Record(first["experiment"], first["settings"], line) for line in lines]


def write_file(file, base, records):
    """Write records in an order in which an added run is an added line."""
    lines = [
        {"experiment": file.stem, "settings": base},
        *sorted((record.line for record in records), key=place_in_file),
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{as_line(line)}\n" for line in lines), "utf-8")


def as_line(values):
    """Plain data as one line of JSON that is the same every time."""
    return to_json(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def place_in_file(line):
    """What the lines of a file are sorted by: method, changes and seed."""
    return line["method"]["name"], as_line(line["changes"]), as_line(line["method"]), line["seed"]
