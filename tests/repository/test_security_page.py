"""docs/security.md: every promise names tests that try to break it, and these exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text("utf-8")
ADVERSARIES = [
    *("A stranger", "A curious site", "A hostile site", "A curious server", "A hostile server"),
    "People with access to disks",
]
NAMED = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")


def promises(text=PAGE):
    """The lines of all tables of promises."""
    tables = re.findall(r"^\| promised \| shown by \|\n\| --- \| --- \|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [line for table in tables for line in table.splitlines()]


def section(name):
    return PAGE.split(f"## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("promise", promises())
def test_a_promise_names_a_test(promise):
    assert NAMED.search(promise)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_every_adversary_has_promises_and_limits(adversary):
    assert promises(section(adversary))
    assert "Not promised: " in section(adversary)


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(re.sub(r".*<!-- from: .*", "", PAGE)))))
def test_a_test_that_is_named_is_there(file, name):
    """Lines that name the branch they come from are exempt until it is merged."""
    (path,) = TESTS.rglob(file)
    assert not name or f"\ndef {name}(" in path.read_text("utf-8")


def test_tests_that_any_page_names_are_there():
    files = {path.stem: path.read_text("utf-8") for path in TESTS.rglob("test_*.py")}
    there = {*files, *(name for text in files.values() for name in re.findall(r"^def (test_\w+)", text, re.M))}
    pages = [page.read_text("utf-8") for page in (TESTS.parent / "docs").rglob("*.md")]
    assert {name for page in pages for name in re.findall(r"\btest_\w+", page)} - there == set()
