"""The records of finished runs, from which docs/results.md is made: benchmarks/results/EXPERIMENT.jsonl

The first line of a file has the settings of the embedded experiment when the file was begun. Every other line is a run:
its method with all settings, what else it `changes` in the settings of the first line, its scores by task, metric and
client, and its cost. So a record keeps its meaning when an embedded experiment or a method's defaults change later.
"""

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from results_runs import changed, changes_in, megabytes_and_seconds, portable

from fedhca2.configs import embedded_names
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.experiment.sources import merged
from fedhca2.methods import METHODS
from fedhca2.run_folder.names import CONFIG
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.run_folder.strict_json import numbers, to_json

RECORDS = Path(__file__).parent / "results"


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
            raise UserError([f"{self.path}: {line}" for line in error.lines]) from None

    @cached_property
    def changes(self):
        """What the run changes in today's embedded experiment with today's defaults of its method."""
        return changes_in(self.settings)

    @property
    def identity(self):
        """What two runs share of which one replaces the other."""
        return identity(self.settings)

    @cached_property
    def scores(self):
        """Scores by client and task, in the order of the config."""
        by_task = numbers(self.line["scores"])
        return {
            spec.name: {
                task: {metric: held[spec.name] for metric, held in by_task[task].items() if spec.name in held}
                for task in spec.tasks
            }
            for spec in self._parsed.specs
        }

    @property
    def finished_result(self):
        return {"clients": self.scores, "baseline": None}  # the page compares with recorded runs of Local

    @property
    def tasks(self):
        return {spec.name: spec.tasks for spec in self._parsed.specs}

    @property
    def kinds(self):
        return self._parsed.kinds

    @property
    def several_of_a_kind(self):
        return len(set(self.kinds.values())) < len(self.kinds)

    def dataset(self, client):
        return next(spec.data for spec in self._parsed.specs if spec.name == client)


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


def read_records(folder=RECORDS):
    """All records below a folder."""
    return [record for file in sorted(folder.glob("*.jsonl")) for record in read_file(file)[1]]


def read_file(file):
    """The settings in the first line of a file, and its records."""
    first, *lines = map(json.loads, file.read_text("utf-8").splitlines())
    return first["settings"], [Record(first["experiment"], first["settings"], line) for line in lines]


def add_runs(folders, into=RECORDS):
    """Record the finished runs below these folders; returns how many are new, how many replaced, and refusals."""
    new, replaced, refusals = 0, 0, []
    for experiment, runs in runs_below(folders, refusals).items():
        file = into / f"{experiment}.jsonl"
        base, records = read_file(file) if file.exists() else (base_of(experiment), [])
        kept, before = {record.identity: record for record in records}, len(records)
        for run in runs:
            try:
                record = Record(experiment, base, line_of(run, base))
                replaced += record.identity in kept
                kept[record.identity] = record
            except UserError as error:
                refusals.append(f"{run.path}: {'; '.join(error.lines)}")
        new += len(kept) - before
        if kept:
            into.mkdir(parents=True, exist_ok=True)
            lines = sorted((record.line for record in kept.values()), key=place_in_file)
            first = {"experiment": experiment, "settings": base}
            file.write_text("".join(f"{as_line(values)}\n" for values in (first, *lines)), "utf-8")
    return new, replaced, refusals


def runs_below(folders, refusals):
    """The finished runs of embedded experiments, by experiment; the others get a line in `refusals`."""
    found = {}
    for folder in folders:
        runs = [RunFiles(config.parent) for config in sorted(Path(folder).rglob(CONFIG))]
        if not runs:
            refusals.append(f"{folder}: should hold runs, found no {CONFIG} below it")
        for run in runs:
            try:
                found.setdefault(experiment_of(run), []).append(run)
            except UserError as error:
                refusals.append(f"{run.path}: {'; '.join(error.lines)}")
    return found


def experiment_of(run):
    """The embedded experiment of a finished run; raises UserError."""
    if not run.finished:
        raise UserError(["should be a finished run, found one without a result"])
    name = run.config["name"]
    if name not in embedded_names():
        raise UserError([f"should be a run of an embedded experiment, found {name!r}"])
    if run.method not in METHODS:
        raise UserError([f"should be a run of a method in the catalogue, found {run.method!r}"])
    return name


def base_of(experiment):
    """The settings of an embedded experiment that hold for all methods."""
    settings = portable(Experiment.load(experiment).to_dict())
    return {key: value for key, value in settings.items() if key != "method"}


def line_of(run, base):
    """What to keep of a run; raises UserError if something is missing, or if its settings hold on its machine alone."""
    experiment = run.experiment()
    settings = portable(experiment.to_dict())
    method = settings.pop("method")
    changes = changed(base, settings)
    if paths := [value for value in strings_in([changes, method]) if Path(value).is_absolute()]:
        raise UserError([f"should have settings that hold on every machine, found {paths[0]}"])
    return {"seed": experiment.seed, "method": method, "changes": changes, "scores": scores_of(run), **cost_of(run)}


def scores_of(run):
    """The main score of every client by task and metric; raises UserError if one is missing."""
    scores, clients = {}, run.finished_result["clients"]
    for spec in run.experiment().specs:
        for task in spec.tasks:
            if task not in clients.get(spec.name, {}):
                raise UserError([f"should have scores of every client, found none of {spec.name} in {task}"])
            main = headline(task, clients[spec.name][task])
            scores.setdefault(task, {}).setdefault(main.metric, {})[spec.name] = float(f"{main.value:.6g}")
    return scores


def cost_of(run):
    """What a run and its rounds cost, and on what."""
    if not run.of("client") or not run.of("round"):
        raise UserError([f"should have events of its rounds, found none in {run.events_file.name}"])
    megabytes, seconds = megabytes_and_seconds(run)
    result = run.finished_result
    return {
        "seconds": round(result["seconds"], 1),
        "seconds_per_round": round(seconds, 2),
        "megabytes_up": float(f"{megabytes:.6g}"),  # per client and round
        "device": result["device"],
        "fedhca2": result["versions"]["fedhca2"],
    }


def strings_in(value):
    """All strings in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_in(item)


def as_line(values):
    """Plain data as one line of JSON that is the same every time."""
    return to_json(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def place_in_file(line):
    """Sort by method, changes and seed, so that an added run is an added line."""
    return line["method"]["name"], as_line(line["changes"]), as_line(line["method"]), line["seed"]
