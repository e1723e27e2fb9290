"""The notebooks run from top to bottom, as they are."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def read(path):
    import nbformat  # every worker collects this file

    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all of them, since each would import torch again."""
    from jupyter_client import KernelManager

    manager = KernelManager()
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, kernel, tmp_path):
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell

    book = read(path)
    book.cells.insert(0, new_code_cell(f"%reset -f\n%cd -q {tmp_path}"))
    NotebookClient(book, km=kernel, timeout=120).execute()
    assert any(cell.outputs for cell in book.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_kept_without_outputs(path):
    assert [cell.outputs for cell in read(path).cells if cell.get("outputs")] == []
