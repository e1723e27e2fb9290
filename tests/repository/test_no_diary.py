"""Pages describe the software as it is: when, where and after which attempts is for records and changelogs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_no_diary(page):
    assert DIARY.findall(MADE.sub("", page.read_text("utf-8"))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_sign_for_percent_follows_its_number(page):
    assert re.findall(r"\d %|\d °", MADE.sub("", page.read_text("utf-8"))) == []
