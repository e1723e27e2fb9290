"""Benchmarks share one interface, report their bounds, and write JSON."""

import json
import subprocess
import sys
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
def test_a_line_says_the_bound_and_whether_it_is_kept(load, value, bounds, end):
    assert load("row").Row("step", value, "ms", **bounds).line().endswith(end)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The output and the file of a quick run of the cheap parts."""
    file = tmp_path_factory.mktemp("bench") / "new" / "bench.json"
    command = [sys.executable, "run.py", "--quick", "--only", "rendering", "--json", file]
    ended = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    return ended.stdout, json.loads(file.read_text("utf-8"))


@pytest.mark.slow
def test_the_table_prints_bounds(bench):
    assert bench[0].count("≤ 10") == 2


@pytest.mark.slow
def test_json_has_every_row_with_its_bound(bench):
    assert [row["at_most"] for row in bench[1]["parts"]["rendering"]] == [10.0, 10.0]


@pytest.mark.slow
def test_json_names_the_machine(bench):
    assert {"cpu", "cores", "gpu", "torch", "date"} <= set(bench[1]["machine"])


@pytest.mark.slow
def test_a_part_that_breaks_is_an_error(load, tmp_path, monkeypatch):
    (tmp_path / "no_scenes.py").write_text("def rows(quick):\n    raise RuntimeError('out of scenes')\n    yield\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(load("run").PARTS, "rendering", "no_scenes")
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "rendering"])
    assert load("run").main() == 1
