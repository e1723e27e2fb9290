"""Adding finished runs to the records behind docs/results.md, and refusing those that cannot stand there."""

import subprocess
from functools import cache
from pathlib import Path
from statistics import mean, median

from results_records import Record, read_file, write_file
from results_runs import find_changes, is_traced, portable

from fedhca2.configs import built_in_names
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS
from fedhca2.run_folder.folder import CONFIG
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.runs import Run


def add_runs(folders, into):
    """Record the finished runs below these folders; returns how many are new, how many replaced, and refusals."""
    new, replaced, refusals = 0, 0, []
    for experiment, runs in runs_below(folders, refusals).items():
        file = into / f"{experiment}.jsonl"
        base, records = read_file(file) if file.exists() else (base_of(experiment), [])
        by_identity, before = {record.identity: record for record in records}, len(records)
        for run in runs:
            try:
                record = Record.of(experiment, base, line_of(run, base))
                replaced += record.identity in by_identity
                by_identity[record.identity] = record
            except UserError as error:
                refusals.append(f"{run.path}: {'; '.join(error.lines)}")
        new += len(by_identity) - before
        if by_identity:
            write_file(file, base, by_identity.values())
    return new, replaced, refusals


def runs_below(folders, refusals):
    """The finished runs of built-in experiments, by experiment; the others get a line in `refusals`."""
    by_experiment = {}
    for folder in folders:
        runs = [RunFiles(config.parent) for config in sorted(Path(folder).rglob(CONFIG))]
        if not runs:
            refusals.append(f"{folder}: expected runs in it, got no {CONFIG} below it")
        for run in runs:
            try:
                by_experiment.setdefault(experiment_of(run), []).append(run)
            except UserError as error:
                refusals.append(f"{run.path}: {'; '.join(error.lines)}")
    return by_experiment


def experiment_of(run):
    """The built-in experiment of a finished run; raises UserError."""
    if not run.finished:
        raise UserError("", "expected a finished run, got one without a result")
    name = run.config["name"]
    if name not in built_in_names():
        raise UserError("", f"expected a run of a built-in experiment, got {name!r}")
    if run.method not in METHODS:
        raise UserError("", f"expected a run of a method in the catalogue, got {run.method!r}")
    return name


def base_of(experiment):
    """The settings of a built-in experiment that hold for all methods."""
    settings = portable(Experiment.load(experiment).to_dict())
    return {key: value for key, value in settings.items() if key != "method"}


def line_of(run, base):
    """What to keep of a run; raises UserError if something is missing, or if its settings hold on its machine alone."""
    experiment = run.experiment()
    settings = portable(experiment.to_dict())
    method = settings.pop("method")
    changes = find_changes(portable(base), settings)
    if paths := [value for value in strings_in([changes, method]) if Path(value).is_absolute()]:
        raise UserError("", f"expected settings that hold on every machine, got {paths[0]}")
    line = {"seed": experiment.seed, "method": method, "changes": changes, "scores": scores_of(run), **cost_of(run)}
    return line | ({"trace": trace_of(run)} if is_traced(experiment.to_dict()) else {})


def scores_of(run):
    """The main score of every client by task and metric; raises UserError if one is missing."""
    scores, clients = {}, run.outcome.clients
    for spec in run.experiment().specs:
        for task in spec.tasks:
            if task not in clients.get(spec.name, {}):
                raise UserError("", f"expected scores of every client, got none of {spec.name} in {task}")
            main = headline(run.task_set[task], clients[spec.name][task])
            scores.setdefault(task, {}).setdefault(main.metric, {})[spec.name] = float(f"{main.value:.6g}")
    return scores


def trace_of(run):
    """Main scores by client and task after evaluated rounds, each client's α, and each decoder's last β by layer."""
    made = Run(run.path)
    main = {(score["client"], score["task"]): score["metric"] for score in made.scores()}
    trace = {"rounds": [], "scores": {}, "alpha": {}, "beta": {}}
    for one in made.history():
        if one["method"] == run.method and main.get((one["client"], one["task"])) == one["metric"]:
            trace["rounds"] += [one["round"]] * (one["round"] not in trace["rounds"])
            trace["scores"].setdefault(one["client"], {}).setdefault(one["task"], []).append(
                float(f"{one['value']:.5g}")
            )
    for one in made.weights():
        value = round(one["weight"], 4)
        if one["part"] == "encoder" and one["round"] in trace["rounds"]:
            trace["alpha"].setdefault(one["client"], []).append(value)
        elif one["part"] == "decoder" and one["round"] == run.rounds:
            trace["beta"].setdefault(f"{one['client']}/{one['task']}", []).append(value)
    return trace


def cost_of(run):
    """What a run and its rounds cost, and on what."""
    up = [event["bytes_up"] for event in run.of("client") if event["round"] < run.rounds]
    if not up or not run.of("round"):
        raise UserError("", f"expected events of its rounds, got none in {run.events_file.name}")
    return {
        "seconds": round(run.outcome.seconds, 1),
        "seconds_per_round": round(median(event["seconds"] for event in run.of("round")), 2),
        "megabytes_up": float(f"{mean(up) / 1e6:.6g}"),  # per client and round
        "bytes_down": run.outcome.bytes["down"],
        "device": run.outcome.device,
        "fedhca2": run.outcome.versions["fedhca2"],
        "commit": commit(),
    }


@cache
def commit():
    """The commit of this checkout; empty if it is none."""
    command = ["git", "-C", Path(__file__).parent, "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def strings_in(value):
    """All strings in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_in(item)
