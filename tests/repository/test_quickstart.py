"""The examples for newcomers run."""

import re
from pathlib import Path

import pytest

from warm import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"

FEW = [
    "rounds=1",
    "training.batch_size=2",
    "data.outdoor.train=24",
    "data.indoor.train=12",
    "data.outdoor.val=2",
    "data.indoor.val=2",
]

pytestmark = pytest.mark.slow


def test_the_script_says_what_each_client_gained(tmp_path):
    assert "outdoor-semseg" in output_of(EXAMPLES / "quickstart.py", *FEW, cwd=tmp_path)
    assert list(tmp_path.glob("runs/demo-*/report.html"))


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    settings = next(cell for cell in book.cells if '"demo"' in cell.source)
    settings.source = re.sub(r"\[\n.*?\n    \]", repr(FEW), settings.source, flags=re.DOTALL)
    NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}, timeout=300).execute()
    assert list(tmp_path.glob("runs/demo-*/result.json"))
