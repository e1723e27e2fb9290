"""Benchmarks share one interface, report their bounds, and write JSON."""

import doctest
import json
from importlib import import_module
from itertools import islice
from math import isfinite
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "def rows(" in path.read_text())


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_module_finds_what_it_imports_and_its_examples_hold(load, name):
    assert doctest.testmod(load(name)).failed == 0


def test_the_table_has_every_part(load):
    assert set(load("run").PARTS.values()) == set(MODULES)


@pytest.mark.parametrize(("name", "count"), [("startup", 2), ("scenes", 2), ("noise", 3)])
def test_cheap_parts_measure_something(load, name, count):
    rows = list(islice(load(name).rows(quick=True), count))
    assert len(rows) == count
    assert all(isinstance(row, load("row").Row) and row.unit and isfinite(row.value) and row.value > 0 for row in rows)


@pytest.mark.parametrize(
    ("value", "bounds", "end"),
    [
        (5.0, {"at_most": 10.0}, "(≤ 10: 0.50 of it, ok)"),
        (11.0, {"at_most": 10.0}, "(≤ 10: 1.10 of it, missed)"),
        (0.9, {"at_least": 0.95}, "(≥ 0.95: 0.95 of it, missed)"),
        (1.0, {"at_least": 0.95}, "(≥ 0.95: 1.05 of it, ok)"),
        (5.0, {}, "step: 5 ms"),
    ],
)
def test_a_line_shows_the_bound_and_whether_it_holds(load, value, bounds, end):
    assert load("row").Row("step", value, "ms", **bounds).line().endswith(end)


def made_run(folder, *rounds, results):
    """The folder of a run without c at the end: for each round, who replied, was aggregated, was named as missing."""
    events = []
    for number, (replied, members, named) in enumerate(rounds):
        events += [{"event": "client", "round": number, "client": name} for name in replied]
        events += [{"event": "aggregation", "round": number, "part": "encoder", "members": list(members)}]
        events += [{"event": "round", "round": number, "seconds": 1.0, "refused": dict.fromkeys(named, "offline")}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    result = {"clients": {name: {} for name in results}, "missing": {"c": "offline"}}
    (folder / "result.json").write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("second", "results", "away", "missed"),
    [
        (("ab", "ab", "c"), "ab", 0, set()),
        (("ab", "a", "bc"), "ab", 1, {"replies in an aggregation"}),
        (("ab", "ab", ""), "ab", 0, {"clients aggregated or named as missing"}),
        (("ab", "ab", "c"), "a", 0, {"survivors with a result"}),
        (("a", "a", "bc"), "ab", 1, set()),
    ],
)
def test_a_site_that_is_lost_is_noticed_and_one_that_missed_a_round_is_counted(
    load, tmp_path, second, results, away, missed
):
    made_run(tmp_path, ("abc", "abc", ""), second, results=results)
    rows = list(load("sites").accounts("x", tmp_path, {*"abc"}, [{*"abc"}, {*"ab"}], ["c"]))
    assert {row.name.removeprefix("x: ") for row in rows if row.ok is False} == missed
    assert [row.value for row in rows if "missed a round" in row.name] == [away]
