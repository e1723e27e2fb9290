"""The runs behind docs/results.md: which embedded experiment each belongs to, and what it changes there."""

import re
from functools import cache
from pathlib import Path
from statistics import mean, median

import yaml

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS
from fedhca2.reports.comparison.variants import FREE, flat
from fedhca2.run_folder.reader import RunFiles

MACHINES = ("devices", "model.encoder.sha256")  # settings that depend on where a run was made
SIZES = re.compile(r"rounds|clients|data\.[^.]+\.train|training\.schedule\.warmup_epochs")  # what the curve changes
METHOD = re.compile(r"method(\..*)?")
ENCODER = re.compile(r"model\.encoder\.(adapters.*|frozen)")
NOTHING = re.compile("(?!)")


class Runs:
    """Finished runs from folders, by embedded experiment, with what each changes in it."""

    def __init__(self, folders):
        self.runs, self.used = {}, set()
        for folder in folders:
            for config in sorted(Path(folder).rglob("config.yaml")):
                run = RunFiles(config.parent)
                if run.finished:
                    self.runs.setdefault(run.config["name"], []).append((run, departures(run)))

    def plain(self, wanted):
        """The runs of an experiment, NAME or NAME,KEY=VALUE…, with the defaults of their methods."""
        return self.that_change(wanted, NOTHING)

    def that_change(self, wanted, settings):
        """The runs of an experiment that change nothing but these settings, by method in the catalogue's order."""
        name, *changes = wanted.split(",")
        asked = {key: yaml.safe_load(value) for key, value in (change.split("=") for change in changes)}

        def fits(changed):
            return asked.items() <= changed.items() and all(map(settings.fullmatch, changed.keys() - asked))

        order = list(METHODS)
        runs = [run for run, changed in self.runs.get(name, ()) if changed is not None and fits(changed)]
        self.used |= {run.path for run in runs}
        return sorted(runs, key=lambda run: order.index(run.method))

    def unused(self):
        """The folders of runs that nobody asked for, by what they change."""
        found = {}
        for run, changed in (pair for runs in self.runs.values() for pair in runs):
            if run.path not in self.used:
                what = f"{run.method} on {run.config['name']}"
                why = "is unknown" if changed is None else f"changes {', '.join(changed) or 'nothing'}"
                found.setdefault(f"{what} {why}", []).append(run.path)
        return found


def departures(run):
    """What a run changes in its embedded experiment with its method's defaults; None if one of them is unknown."""
    return changes_in(run.settings)


def changes_in(config):
    """What a config changes in its embedded experiment with its method's defaults; None if one of them is unknown."""
    try:
        wanted = embedded(config["name"], config["method"]["name"])
    except UserError:
        return None
    own = {key: value for key, value in flat(config) if key.split(".")[0] not in FREE and key not in MACHINES}
    return {key: value for key, value in own.items() if key not in wanted or not same(wanted[key], value)}


def same(wanted, value):
    """Whether a setting is the same; files may be elsewhere."""
    return value == wanted or (isinstance(value, str) and isinstance(wanted, str) and "/" in wanted)


@cache
def embedded(name, method):
    """All settings of an embedded experiment with one of the catalogue's methods."""
    experiment = Experiment.load(name)
    return dict(flat((experiment if method == experiment.method_name else experiment.with_method(method)).to_dict()))


def images_per_client(run):
    entry = next(entry for entry in run.config["clients"] if entry.get("split"))
    clients = len(entry["split"]) * entry["copies"]
    return run.config["data"][entry["data"]]["train"] // clients


def encoder_of(run):
    """How much of the backbone trains, in words."""
    encoder = run.settings["model"]["encoder"]
    if encoder.get("adapters"):
        return f"LoRA, rank {encoder['adapters']['rank']}"
    return "frozen" if encoder["frozen"] else "whole"


def megabytes_and_seconds(run):
    """What a client sends in a round on average, and the median seconds of a round."""
    events = run.events
    up = [event["bytes_up"] for event in events if event["event"] == "client" and event["round"] < run.rounds]
    return mean(up) / 1e6, median(event["seconds"] for event in events if event["event"] == "round")
