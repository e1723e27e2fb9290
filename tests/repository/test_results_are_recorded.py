"""docs/results.md shows what the records give: none of its figures is stale or was edited by hand."""

import re
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "results.md").read_text("utf-8")
BLOCKS = re.findall(r"<!-- results: ([^>]+) -->\n", TEXT)


@pytest.fixture(scope="module")
def page():
    """The page's blocks by their words, as the records give them, and its figures by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS.parent / "benchmarks"))
        results, records = import_module("results"), import_module("results_records")
        page = results.Page(results.Runs(records.read_records(records.RECORDS)))
        return blocks_of(page.filled(TEXT)), page.figures


def blocks_of(text):
    return dict(re.findall(r"<!-- results: ([^>]+) -->\n(.*?)<!-- end -->", text, re.DOTALL))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_what_the_records_give(page, block):
    made, _ = page
    assert blocks_of(TEXT)[block] == made[block], "`python benchmarks/results.py page` makes it from the records"


def test_figures_are_what_the_records_give(page):
    _, figures = page
    assert figures == {name: (DOCS / "images" / f"{name}.svg").read_text("utf-8") for name in figures}


def test_files_of_records_are_as_the_command_writes_them(page, tmp_path):
    records = import_module("results_records")
    files = sorted(records.RECORDS.glob("*.jsonl"))
    for file in files:
        records.write_file(tmp_path / file.name, *records.read_file(file))
    assert [file.name for file in files if file.read_bytes() != (tmp_path / file.name).read_bytes()] == []
