"""Mutated configs: each is accepted or gets clear lines, never a traceback."""

import random
from copy import deepcopy
from importlib import resources

import pytest
import yaml

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment

pytestmark = pytest.mark.slow
EMBEDDED = sorted((resources.files("fedhca2") / "configs").glob("*.yaml"))
BASES = [
    *(path.read_text("utf-8") for path in EMBEDDED[:3]),
    yaml.safe_dump(
        {
            "rounds": 2,
            "method": {"name": "fedhca2", "c": 0.2, "decoder": None, "weights": {"lr": 0.1}},
            "participation": {"fraction": 0.5, "availability": {"home": 0.5}},
            "privacy": {"clip": 1.0, "noise": 0.5},
            "guard": {"reach": 0.5, "jump": 10},
            "checkpoints": {"every": 2, "keep": 1},
            "training": {"batch_size": 4, "schedule": {"warmup_epochs": 0}},
            "data": {"indoor": {"kind": "scenes", "domain": "indoor", "size": [32, 32]}},
            "clients": [{"name": "home", "data": "indoor", "tasks": ["depth"], "copies": 1}],
        }
    ),
]
ODD = [
    None, True, False, 0, -1, 1, 2**63, 10**400, 0.5, -0.5, float("nan"), float("inf"), "", " ", "none", "ü\u0000",
    "../..", "a" * 5000, "fedavg", "os:system", "nothing.py:X", [], {}, [None], [[]], {"kind": None}, {"name": 3},
    {1: 2}, {None: 1}, [1, 2, 3], {"a": {"b": {"c": {}}}}, "2020-01-01", "!!python/object:os.system", "~", "1e400",
]  # fmt: skip
CHARACTERS = "{}[]:,-#&*!|>'\"%@`\\\t\n 0aé\u0000\x85\ufeff"


def paths_in(tree, path=()):
    """Every path in plain data."""
    paths = [path] if path else []
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in steps:
        paths += paths_in(value, (*path, key))
    return paths


def with_another_value(tree, rng):
    path = rng.choice(paths_in(tree))
    *steps, last = path
    holder = tree
    for step in steps:
        holder = holder[step]
    change = rng.randrange(4)
    if change == 0:
        del holder[last]
    elif change == 1 and isinstance(holder, dict):
        holder[rng.choice(["nothing", "", "kind", "name", 3, None, "round s"])] = holder.pop(last)
    elif change == 2 and isinstance(holder, list):
        holder.append(deepcopy(rng.choice([*holder, *ODD])))
    else:
        holder[last] = deepcopy(rng.choice(ODD))


def of_another_tree(text, rng):
    tree = yaml.load(text, yaml.CSafeLoader)
    for _ in range(rng.randint(1, 3)):
        if paths_in(tree):
            with_another_value(tree, rng)
    return yaml.dump(tree, Dumper=yaml.CSafeDumper, allow_unicode=True)


def of_other_characters(text, rng):
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.choice([0, 1, 1, 2, 20]))
        text = text[:start] + rng.choice(["", rng.choice(CHARACTERS), text[stop : stop + 30]]) + text[stop:]
    return text


def verdict(path):
    """The error lines of a config; none if it is accepted and survives being written and read again."""
    try:
        experiment = Experiment.load(path)
    except UserError as error:
        return error.lines
    assert Experiment.parse(yaml.load(experiment.to_yaml(), yaml.CSafeLoader)).to_dict() == experiment.to_dict()
    return None


EACH = 1600 // (2 * len(BASES))  # files per base and kind of change


@pytest.mark.parametrize("mutate", [of_another_tree, of_other_characters])
@pytest.mark.parametrize("base", range(len(BASES)))
def test_a_mutated_config_is_accepted_or_gets_clear_lines(tmp_path, base, mutate):
    rng = random.Random(base)
    path = tmp_path / "mutated.yaml"
    accepted = 0
    for _ in range(EACH):
        path.write_text(mutate(BASES[base], rng), "utf-8")
        lines = verdict(path)
        accepted += lines is None
        assert lines is None or (lines and all(line.strip() and "\n" not in line for line in lines)), path.read_text()
    assert 0 < accepted < EACH
