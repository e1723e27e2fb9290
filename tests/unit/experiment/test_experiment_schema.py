"""The schema of an experiment's file accepts what `Experiment` does, and refuses typical mistakes."""

import re
import runpy
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from fedhca2.configs import built_in_file, built_in_names, read_schema
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS
from fedhca2.strict_yaml import parse_yaml, read_yaml

ROOT = Path(__file__).parents[3]
SMALL = {
    "method": {"name": "fedhca2", "c": 0.2},
    "data": {"street": {"kind": "scenes", "domain": "outdoor"}},
    "clients": [{"data": "street", "tasks": ["sal"]}],
}


@cache
def validator():
    schema = read_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def faults(values):
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator().iter_errors(values)]


def test_the_schema_in_the_package_is_up_to_date():
    assert runpy.run_path(str(ROOT / "docs" / "site" / "schema.py"))["experiment_schema"]() == read_schema()


@pytest.mark.parametrize("name", built_in_names())
def test_every_embedded_experiment_is_valid(name):
    assert faults(read_yaml(built_in_file(name))) == []


@pytest.mark.parametrize("name", METHODS)
def test_what_a_run_writes_down_is_valid(name):
    assert faults(Experiment.parse({**SMALL, "method": name}).to_dict()) == []


def test_the_files_on_the_pages_are_valid():
    by_text = {}
    for page in ("own-data.md", "data-kinds.md", "own-task.md", "own-model.md"):
        for text in re.findall(r"```yaml\n(?:# \S+\.yaml\n)?(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.S):
            values = parse_yaml(text)
            if isinstance(values, dict) and ({"data", "clients"} <= values.keys() or "extends" in values):
                by_text[text] = faults(values)
    assert len(by_text) >= 3
    assert [each for each in by_text.values() if each] == []


OWN = {
    "data": {"data": {"street": {"kind": "my_data.py:Shelves", "shelves": 7}}},
    "method": {"method": {"name": "my_method.py:MINE", "anything": 3}},
    "method by name": {"method": "package.module:MINE"},
    "task": {"tasks": {"people": "my_task.py:COUNT"}},
    "encoder": {"model": {"encoder": {"kind": "my_model.py:Ladder", "width": 8}}},
    "decoder": {"model": {"decoder": "my_model.py:Mine"}},
    "a client's model": {
        "clients": [{"data": "street", "split": ["sal"], "model": {"encoder": {"kind": "m.py:Net", "depth": 3}}}]
    },
}


@pytest.mark.parametrize("own", OWN)
def test_what_users_bring_along_is_valid(own):
    assert faults({**SMALL, **OWN[own]}) == []


def test_only_a_file_that_extends_another_may_leave_out_data_and_clients():
    changes = {"data": {"outdoor": {"train": 5}}, "method": {"c": 0.3}, "tasks": {"people": {"weight": 2}}}
    assert faults({"extends": "demo", **changes}) == []
    assert faults({"rounds": 3}) == [": 'data' is a required property", ": 'clients' is a required property"]


MISTAKES = {
    "unknown key": ({"round": 3}, "'round' was unexpected"),
    "text for a number": ({"rounds": "ten"}, "rounds: 'ten' is not of type 'integer'"),
    "boolean for a number": ({"rounds": True}, "rounds: True is not of type 'integer'"),
    "out of bounds": ({"rounds": 0}, "rounds: 0 is less than the minimum of 1"),
    "nested": ({"training": {"batchsize": 4}}, "training: .*'batchsize' was unexpected"),
    "unknown method": ({"method": "fedhca"}, "method: 'fedhca' is not valid"),
    "another method's setting": ({"method": {"name": "fedavg", "c": 0.3}}, "method: .*'c' was unexpected"),
    "a method's bounds": ({"method": {"name": "fedhca2", "c": 1.5}}, "method.c: 1.5 is greater than or equal"),
    "a component's setting": ({"method": {"name": "fedhca2", "encoder": {"d": 1}}}, "method.encoder: "),
    "unknown kind": ({"data": {"street": {"kind": "scene"}}}, "data.street.kind: 'scene' is not valid"),
    "no kind": ({"data": {"street": {"domain": "outdoor"}}}, "data.street: 'kind' is a required property"),
    "no domain": ({"data": {"street": {"kind": "scenes"}}}, "data.street: 'domain' is a required property"),
    "another kind's setting": (
        {"data": {"street": {"kind": "scenes", "domain": "outdoor", "root": "."}}},
        "data.street: .*'root' was unexpected",
    ),
    "size": ({"data": {"street": {"kind": "scenes", "domain": "outdoor", "size": [64]}}}, "data.street.size: "),
    "unknown encoder": ({"model": {"encoder": {"kind": "tim"}}}, "model.encoder.kind: 'tim' is not one of"),
    "tasks and split": ({"clients": [{"data": "street", "tasks": ["sal"], "split": ["sal"]}]}, "clients.0: "),
    "a task for tasks": ({"clients": [{"data": "street", "tasks": "sal"}]}, "clients.0.tasks: 'sal' is not"),
    "no clients": ({"clients": []}, "clients: .*"),
    "unknown task": ({"tasks": {"people": "regresion"}}, "tasks.people: 'regresion' is not valid"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_typical_mistake_is_refused(mistake):
    changes, fault = MISTAKES[mistake]
    lines = faults({**SMALL, **changes})
    assert any(re.search(fault, line) for line in lines), lines
