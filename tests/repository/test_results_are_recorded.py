"""The pages of results show what the records give: none of their figures is stale or was edited by hand."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "choose-a-method.md", *sorted((ROOT / "docs").glob("results*.md"))]
TEXTS = {page: page.read_text("utf-8") for page in PAGES}
BLOCK = re.compile(r"<!-- results: ([^>]+) -->\n(.*?)<!-- end -->", re.DOTALL)
BLOCKS = [(page, block) for page, text in TEXTS.items() for block, _ in BLOCK.findall(text)]
SPREAD = re.compile(r"[-+−]?\d+\.\d+ ?\N{NO-BREAK SPACE}?± ?\N{NO-BREAK SPACE}?\d+\.\d+")


@pytest.fixture(scope="module")
def made():
    """The blocks of every page by their words, as the records give them, and all figures by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        results, records = import_module("results"), import_module("results_records")
        page = results.Page(results.Runs(records.read_records(records.RECORDS)))
        return {file: dict(BLOCK.findall(page.fill(text))) for file, text in TEXTS.items()}, page.figures


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_a_block_is_what_the_records_give(made, page, block):
    shown = dict(BLOCK.findall(TEXTS[page]))[block]
    assert shown == made[0][page][block], "`python benchmarks/results.py page` makes it from the records"


def spreads(text):
    """Every mean with its deviation, with plain signs and spaces; a sign of a gain may be missing."""
    return {re.sub(r"[\s+]", "", match).replace("−", "-") for match in SPREAD.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_mean_with_its_deviation_in_the_prose_is_in_a_table(made, page):
    tables = set().union(*(spreads(block) for blocks in made[0].values() for block in blocks.values()))
    assert spreads(BLOCK.sub("", TEXTS[page])) - tables == set()


def test_figures_are_what_the_records_give(made):
    _, figures = made
    assert figures == {name: (ROOT / "docs" / "images" / f"{name}.svg").read_text("utf-8") for name in figures}


def test_files_of_records_are_as_the_command_writes_them(made, tmp_path):
    records = import_module("results_records")
    files = sorted(records.RECORDS.glob("*.jsonl"))
    for file in files:
        records.write_file(tmp_path / file.name, *records.read_file(file))
    assert [file.name for file in files if file.read_bytes() != (tmp_path / file.name).read_bytes()] == []
