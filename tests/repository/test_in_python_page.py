"""The code on the page about Python runs as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "in-python.md"


@pytest.mark.slow
def test_the_page_about_python_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S))
    names = {"__name__": "page"}
    exec(compile(code, PAGE.name, "exec"), names)
    assert set(names["answer"].values) == {"upright", "flat"}
    assert list(names["comparison"].entries)[-1] == "trivial"
    assert set(names["unlearned"]) <= {"direction"}
    assert {record["experiment"] for record in names["board"]} == {"stripes"}
    assert 0 <= names["again"]["accuracy"] <= 100
    assert Path("history.csv").read_text("utf-8").startswith("round,method,client,task,metric,value\n")
