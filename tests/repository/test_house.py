"""The pages that guide a newcomer are true."""

import ast
import re
import sys
import tomllib
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from command import printed
from fedhca2.clients import training
from small_run import SETTINGS

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


def test_unit_tests_are_in_folders_like_the_packages_and_files_of_tests_have_names_of_their_own():
    tests, package = ROOT / "tests" / "unit", ROOT / "src" / "fedhca2"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (package / folder / "__init__.py").exists()] == []
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def imports_of(folder):
    """The names of the distributions that the files of a folder import."""
    sources = packages_distributions()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names, "fedhca2"}:
                yield from sources.get(name, [])


def test_packages_that_use_the_network_are_declared_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["flower"]]
    pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    needed = {*imports_of(ROOT / "src" / "fedhca2" / "federation" / "flower")} - {"google-auth"}  # protobuf's namespace
    for lines in (declared, pinned):
        names = {re.split("[<>=]", line)[0].lower() for line in lines}
        assert {name.lower() for name in needed} - names == set()


def foreign_names(source):
    """What compiled functions of a file use from other files of the package."""
    nodes = list(ast.walk(ast.parse(source)))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedhca2")]
    imported = {alias.asname or alias.name for node in froms for alias in node.names}
    passed = [node.args for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("njit(")]
    names = {argument.id for arguments in passed for argument in arguments if isinstance(argument, ast.Name)}
    compiled = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and (node.name in names or any("njit" in ast.unparse(decorator) for decorator in node.decorator_list))
    ]
    return {n.id for node in compiled for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in imported}


def test_compiled_functions_use_nothing_of_other_files():
    """numba keeps their machine code until their own file changes."""
    sources = {file.name: file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py")}
    assert {name: names for name, source in sources.items() if (names := foreign_names(source))} == {}


def own_calls():
    """The functions of the package that are on the stack of this thread."""
    return [frame.name for frame in traceback.extract_stack() if "src/fedhca2/" in frame.filename]


@pytest.mark.slow
def test_the_walk_names_every_function_from_the_command_to_a_step(tmp_path, monkeypatch):
    stacks = {}

    def note(name, function):
        def call(*args, **options):
            stacks.setdefault(name, own_calls())
            return function(*args, **options)

        return call

    monkeypatch.setattr(ThreadPoolExecutor, "submit", note("fleet", ThreadPoolExecutor.submit))
    monkeypatch.setattr(training, "take_step", note("client", training.take_step))
    clients = [{"name": "home", "data": "indoor", "tasks": ["depth"]}]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**SETTINGS, "clients": clients, "rounds": 1}))
    printed("run", tmp_path / "small.yaml", "--out", tmp_path / "run")
    fleet, own = stacks["fleet"], stacks["client"]
    way = [name for name in (*fleet[fleet.index("run") :], *own, "take_step") if name != "<genexpr>"]
    sentence = re.search(r"Nine functions lead (?:.|\n)*?\n\n", WALK).group()
    assert (len(way), way) == (9, re.findall(r"`(\w+)`", sentence))
