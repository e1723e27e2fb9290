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

from results_runs import changes_in, is_traced

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.experiment.sources import apply_overrides
from fedhca2.run_folder.files import to_json
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import both_gains

RECORDS = Path(__file__).parent / "results"


def number(value):
    """A number that JSON holds as null if it is not finite."""
    return nan if value is None else value


@dataclass(frozen=True)
class Record(RunFiles):
    """A finished run that is read from a line of a file as others are from their folders."""

    name: str  # of its experiment
    base: dict  # the settings in the first line of its file
    line: dict
    alone: dict | None = None  # scores of Local to compare with; without them a comparison looks for its run

    @classmethod
    def of(cls, name, base, line):
        """The run in a line of an experiment's file."""
        return cls(Path(f"{name}.jsonl, {line['method']['name']}, seed {line['seed']}"), name, base, line)

    @property
    def seed(self):
        return self.line["seed"]

    @cached_property
    def settings(self):
        """All settings, with the defaults of those that are newer than the run."""
        return {**self.experiment().to_dict(), "seed": self.seed}

    @property
    def config(self):
        return self.settings

    def experiment(self):
        """The experiment, with any seed."""
        settings = {"name": self.name, **self.base, "method": self.line["method"]}
        changes = [f"{path}={json.dumps(value)}" for path, value in self.line["changes"].items()]
        try:
            return parse_settings(json.dumps(apply_overrides(settings, changes)))
        except UserError as error:
            raise UserError.of(fault.within(f"{self.path}") for fault in error.faults) from None

    @cached_property
    def changes(self):
        """What the run changes in today's embedded experiment with today's defaults of its method."""
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
                task: {
                    metric: number(by_client[spec.name])
                    for metric, by_client in by_task[task].items()
                    if spec.name in by_client
                }
                for task in spec.tasks
            }
            for spec in self.experiment().specs
        }

    @cached_property
    def result(self):
        """What a comparison reads of a result; bytes that older records lack are NaN."""
        sent = 1e6 * self.line.get("megabytes_up", nan) * len(self.scores) * self.rounds
        bytes = {"up": sent, "down": self.line.get("bytes_down", nan)}
        split = "test" if self.experiment().tested else "val"
        result = {"clients": self.scores, "baseline": self.alone, "split": split, "bytes": bytes}
        gains = both_gains(self.scores, self.alone, self.task_set, self.experiment().kinds)
        return SimpleNamespace(**result, **gains, seconds=self.line["seconds"])

    @property
    def task_set(self):
        return self.experiment().task_set

    @cached_property
    def _datasets(self):
        return {spec.name: spec.data for spec in self.experiment().specs}


def identity(settings):
    """What two runs share of which one replaces the other: experiment, method, seed, and everything they change."""
    return settings["name"], settings["method"]["name"], settings["seed"], as_line(changes_in(settings))


def find_missing(records):
    """A function that says whether these records lack a run with some settings, or its trace if it has one."""
    has_trace = {record.identity: "trace" in record.line for record in records}

    def is_missing(settings):
        own_trace = has_trace.get(identity(settings))
        return own_trace is None or (is_traced(settings) and not own_trace)

    return is_missing


@cache
def parse_settings(settings):
    """The experiment with these settings, as JSON: runs that differ in their seed share it."""
    return Experiment.parse(json.loads(settings))


def read_records(folder):
    """All records below a folder."""
    return [record for file in sorted(folder.glob("*.jsonl")) for record in read_file(file)[1]]


def read_file(file):
    """The settings in the first line of a file, and its records."""
    try:
        first, *lines = map(json.loads, file.read_text("utf-8").splitlines())
    except ValueError as error:
        raise UserError(file, f"expected lines of JSON, got {error}") from None
    return first["settings"], [Record.of(first["experiment"], first["settings"], line) for line in lines]


def write_file(file, base, records):
    """Write records in an order in which an added run is an added line."""
    lines = [
        {"experiment": file.stem, "settings": base},
        *sorted((record.line for record in records), key=sort_key),
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{as_line(line)}\n" for line in lines), "utf-8")


def as_line(values):
    """Plain data as one line of JSON that is the same every time."""
    return to_json(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def sort_key(line):
    """What the lines of a file are sorted by: method, changes and seed."""
    return line["method"]["name"], as_line(line["changes"]), as_line(line["method"]), line["seed"]
