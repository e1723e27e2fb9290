"""The runs behind docs/results.md: what each changes in its built-in experiment, and which of them a block shows."""

import re
from functools import cache

import yaml

from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS
from fedhca2.reports.variants import FREE

SIZES = re.compile(r"rounds|clients|data\.[^.]+\.train|training\.schedule\.warmup_epochs")  # what the curve changes
LENGTHS = re.compile(r"rounds|clients|data\.[^.]+\.train")  # of rounds
METHOD = re.compile(r"method(\..*)?")
FAMILIES = re.compile(r"method(\..*)?|clients")  # one of them federates
ENCODER = re.compile(r"model\.encoder\.(adapters.*|frozen)")
RECIPE = re.compile(r"model\.(encoder(\.frozen)?|head|decoder_width)|training\.(encoder_rate|scales)")  # of photographs
NOTHING = re.compile("(?!)")


class Runs:
    """Finished runs, by the built-in experiment that they belong to."""

    def __init__(self, records):
        self.records, self.used = {}, set()
        for record in records:
            self.records.setdefault(record.name, []).append(record)

    def plain(self, query):
        """The runs of an experiment, NAME or NAME,KEY=VALUE…, with the defaults of their methods."""
        return self.that_change(query, NOTHING)

    def that_change(self, query, settings):
        """The runs of an experiment that change nothing but these settings, by method in the catalogue's order."""
        name, *changes = query.split(",")
        required = {key: yaml.safe_load(value) for key, value in (change.split("=") for change in changes)}

        def fits(own):
            return required.items() <= own.items() and all(map(settings.fullmatch, own.keys() - required))

        order = list(METHODS)
        runs = [record for record in self.records.get(name, ()) if fits(record.changes)]
        self.used |= {record.identity for record in runs}
        return sorted(runs, key=lambda record: order.index(record.method))

    def like(self, name, settings):
        """The runs of an experiment with exactly these settings, as KEY=VALUE."""
        changes = changes_in(Experiment.load(name, settings).to_dict())
        runs = [record for record in self.records.get(name, ()) if record.changes == changes]
        self.used |= {record.identity for record in runs}
        return runs

    def unused(self):
        """How many runs no block shows, by what they change."""
        counts = {}
        for record in (record for records in self.records.values() for record in records):
            if record.identity not in self.used:
                what = f"{record.method} on {record.name} changes {', '.join(record.changes) or 'nothing'}"
                counts[what] = counts.get(what, 0) + 1
        return counts


def changes_in(settings):
    """What settings change in their built-in experiment with the defaults of their method; raises UserError."""
    return find_changes(portable(built_in(settings["name"], settings["method"]["name"])), portable(settings))


@cache
def built_in(name, method):
    """All settings of a built-in experiment with one of the catalogue's methods."""
    experiment = Experiment.load(name)
    return (experiment if method == experiment.method_name else experiment.with_method(method)).to_dict()


def is_traced(settings):
    """Whether a run evaluates over rounds though its experiment does not: its record then keeps these scores."""
    return settings["evaluate_every"] and not built_in(settings["name"], settings["method"]["name"])["evaluate_every"]


def portable(settings):
    """The settings that decide a run's scores on any machine.

    These are not its seed, its devices, how a GPU takes a step, nor the digest of its weights.
    """
    model = dict(settings["model"])
    model["encoder"] = {key: value for key, value in model["encoder"].items() if key != "sha256"}
    training = {key: value for key, value in settings["training"].items() if key != "step"}
    deciding = {key: value for key, value in settings.items() if key not in (*FREE, "devices")}
    return deciding | {"model": model, "training": training}


def find_changes(expected, own, path=""):
    """What differs between settings, by path: key by key as `--set` would say it, or whole if its kind is another.

    >>> find_changes({"a": 1, "b": {"kind": "x", "c": 2}}, {"a": 1, "b": {"kind": "x", "c": 3}, "d": 4})
    {'b.c': 3, 'd': 4}
    >>> find_changes({"a": 1, "b": {"kind": "x", "c": 2}}, {"b": {"kind": "y"}})
    {'b': {'kind': 'y'}, 'a': None}
    """
    if not (isinstance(expected, dict) and isinstance(own, dict)) or not same_kind(expected, own):
        return {} if same(expected, own) else {path: own}
    changes = {}
    for key in {**own, **expected}:  # a setting that is absent is None
        changes |= find_changes(expected.get(key), own.get(key), f"{path}.{key}" if path else key)
    return changes


def same_kind(expected, own):
    """Whether settings of one kind are compared, so that their keys are the same."""
    return all(expected.get(key) == own.get(key) for key in ("kind", "name"))


def same(expected, value):
    """Whether a setting is the same; files may be elsewhere."""
    return value == expected or (isinstance(value, str) and isinstance(expected, str) and "/" in expected)


def images_per_client(settings):
    entry = next(entry for entry in settings["clients"] if entry.get("split"))
    clients = len(entry["split"]) * entry["copies"]
    return settings["data"][entry["data"]]["train"] // clients


def exchanges_per_epoch(settings):
    """How often clients exchange in an epoch, if their rounds are numbers of steps; None otherwise."""
    entry = next((entry for entry in settings["clients"] if entry.get("split")), {})
    if not entry.get("steps"):
        return None
    return images_per_client(settings) // settings["training"]["batch_size"] / entry["steps"]


def encoder_of(settings):
    """How much of the backbone trains, in words."""
    encoder = settings["model"]["encoder"]
    if encoder.get("adapters"):
        return f"LoRA, rank {encoder['adapters']['rank']}"
    return "frozen" if encoder["frozen"] else "whole"
