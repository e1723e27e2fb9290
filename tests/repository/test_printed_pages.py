"""Pages show what commands print, and describe the software as it is: dates and attempts are for records."""

import re
from importlib import import_module
from pathlib import Path
from statistics import quantiles

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWING = [
    page for page in PAGES if re.search(r"<!-- (prints: .*|commands|methods|settings) -->", page.read_text("utf-8"))
]


@pytest.fixture
def printed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    return import_module("printed")


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(printed, page):
    text = page.read_text("utf-8")
    assert printed.filled(text) == text, "`python docs/site/printed.py` writes it"


def test_several_pages_show_what_commands_print():
    assert {"README", "command-line", "from-zero"} <= {page.stem for page in SHOWING}


def test_exit_codes_are_those_of_the_source():
    source = "".join(file.read_text("utf-8") for file in (ROOT / "src" / "fedhca2" / "cli").glob("*.py"))
    table = (ROOT / "docs" / "command-line.md").read_text("utf-8").split("## Exit codes")[1].split("\n## ")[0]
    assert {*re.findall(r"Exit\((\d+)\)", source), "0", "143"} == set(
        re.findall(r"\d+", re.sub(r"\|[^|]*\|\n", "|\n", table))
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nine_sentences_of_ten_and_the_first_page_are_short(page):
    assert page != PAGES[0] or len(page.read_text("utf-8").splitlines()) <= 120
    prose = re.sub(r"^```.*?^```|^\$\$.*?\$\$$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^(?:\||    |!|<|#).*$", "", prose, flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    sentences = [sentence.split() for sentence in re.split(r"(?<=[.:?!])\s+|\n\n|\n- ", prose) if sentence.strip()]
    assert quantiles(map(len, sentences), n=10)[-1] <= 25


PROSE = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/results/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
MADE = re.compile(r"<!-- (?:results: |prints: |commands|methods|settings).*?<!-- end -->", re.DOTALL)
DIARY = re.compile(
    r"\b20\d\d-\d\d-\d\d|\b(?:January|February|March|April|June|July|August|September|October|November|December) 20\d\d"
    r"|\btoday\b|\bthat day|\bthe day before\b|\bthis session\b|\bour machine"
    r"|\bwe had no\b|\bwe have no\b|\bearlier (?:run|trial)"
    r"|\bin brackets the same before\b|\bothers' work\b|\btried by hand\b|\bmended\b|\banew\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_a_page_is_no_diary_and_a_sign_for_percent_follows_its_number(page):
    prose = MADE.sub("", page.read_text("utf-8"))
    assert (DIARY.findall(prose), re.findall(r"\d %|\d °", prose)) == ([], [])
