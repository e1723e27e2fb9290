"""The pages that guide a newcomer are true."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WALK = (ROOT / "docs" / "one-run.md").read_text("utf-8")
STEPS = re.findall(r"\((\.\./src/[\w/.]+)\)((?:, `\w+(?:\.\w+)?`(?: (?:and|or) `\w+`)?)?)", WALK)


def test_the_picture_of_the_house_is_the_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = [layer for layer in settings["contracts"][0]["layers"] if layer != "__main__"]
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    picture = text[text.index("same as its contract:") : text.index("[One run, file by file]")]
    assert [re.split(r"  +", line.strip())[0] for line in picture.splitlines()[1:] if line.strip()] == layers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(("file", "named"), STEPS, ids=[file for file, _ in STEPS])
def test_the_walk_names_what_is_in_the_file(file, named):
    source = (ROOT / "docs" / file).read_text("utf-8")
    names = [name for each in re.findall(r"`([\w.]+)`", named) for name in each.split(".")]
    assert [name for name in names if not re.search(rf"^ *(?:def|class) {name}\b", source, re.M)] == []


def test_unit_tests_are_in_folders_like_the_packages():
    tests, package = ROOT / "tests" / "unit", ROOT / "src" / "fedhca2"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (package / folder / "__init__.py").exists()] == []


def test_no_two_files_of_tests_have_the_same_name():
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
