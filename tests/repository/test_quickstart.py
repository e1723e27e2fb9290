"""The examples for newcomers run."""

from pathlib import Path

import pytest

from warm import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def on_fewer_images(code):
    """The same program, whose few images are even fewer."""
    assert code.count("train=80") == code.count("train=16") == 1
    return code.replace("train=80", "train=60").replace("train=16", "train=8").replace("val=20", "val=2")


def test_the_script_says_what_each_client_gained(tmp_path):
    script = on_fewer_images((EXAMPLES / "quickstart.py").read_text("utf-8"))
    assert "outdoor-semseg" in output_of("-c", script, "1", cwd=tmp_path)
    assert list(tmp_path.glob("runs/demo-*/report.html"))


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    book.cells[1].source = book.cells[1].source.replace("ROUNDS = 5", "ROUNDS = 1")
    book.cells[3].source = on_fewer_images(book.cells[3].source)
    NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}, timeout=300).execute()
    assert list(tmp_path.glob("runs/demo-*/result.json"))
