"""The notebooks run from top to bottom, as they are."""

from importlib.util import find_spec
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
    if path.stem == "molecules" and not (find_spec("rdkit") and find_spec("MoleculeACE")):
        pytest.skip("needs fedhca2[molecules] and pip install --no-deps MoleculeACE")
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell

    book = read(path)
    book.cells.insert(0, new_code_cell(f"%reset -f\n%cd -q {tmp_path}"))
    NotebookClient(book, km=kernel, timeout=120).execute()
    shown = [str(output) for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert shown
    if path.stem == "first-federation":
        assert any('<progress value="3.000" max="3"' in output and "round 3 of 3" in output for output in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_has_no_outputs(path):
    assert [cell.outputs for cell in read(path).cells if cell.get("outputs")] == []
