"""The examples for newcomers run."""

from pathlib import Path

import pytest

from warm import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def test_the_script_says_what_each_client_gained(tmp_path):
    assert "outdoor-semseg" in output_of(EXAMPLES / "quickstart.py", "1", cwd=tmp_path)
    assert list(tmp_path.glob("runs/demo-*/report.html"))


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    book.cells[1].source = book.cells[1].source.replace("ROUNDS = 5", "ROUNDS = 1")
    NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}, timeout=300).execute()
    assert list(tmp_path.glob("runs/demo-*/result.json"))
