"""The map from papers to code names things that exist, and agrees with the configs; deviations can be configured."""

import importlib
import json
import re
from collections import Counter
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import pytest
import typer
import yaml

from fedhca2.cli import app
from fedhca2.configs import built_in_experiments
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS, resolve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper-to-code.md").read_text("utf-8")
QUOTED = re.compile(r"`([^`]+)`")
NAMES = [" ".join(name.split()) for name in QUOTED.findall(PAGE)]
ITEMS_OF = {listing.name: set(listing.belongs_to) for listing in built_in_experiments()}
PAPERS = {name for name in ITEMS_OF if name.startswith(("fedhca2/", "matfl/"))}
PAPER = {"P": "", "S": "Supplementary ", "M": "MaT-FL "}
PRINTED = json.loads((ROOT / "tests" / "golden" / "data" / "delta_m.json").read_text("utf-8"))  # rows with a Δm
COMMANDS = typer.main.get_command(app).commands


def exists(name):
    """Whether a dotted name is a module or a member of one."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        try:
            member = importlib.import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            member = getattr(member, word, None)
        return member is not None
    return False


def patterns(text):
    """The patterns of experiments in a text, one for each choice in braces."""
    names = [name for name in QUOTED.findall(text) if re.fullmatch(r"(fedhca2|matfl)/[\w/.*{},-]+", name)]
    pieces = [re.split(r"\{([^}]*)\}", name) for name in names]
    return ["".join(choice) for name in pieces for choice in product(*(piece.split(",") for piece in name))]


def experiments(text):
    return {name for name in ITEMS_OF if any(fnmatch(name, pattern) for pattern in patterns(text))}


def items_of(text, kind):
    """The tables or figures in the first cell of a row: 'P 6, 7, weights' of kind 'figure' is Figure 6 and Figure 7."""
    items, paper = [], ""
    for piece in text.split(", "):
        match = re.fullmatch(r"(?:([PSM]) )?(\d+|section C)", piece)
        if not match:
            break
        paper = PAPER[match[1]] if match[1] else paper
        item = match[2] if match[2].startswith("section") else f"{kind} {match[2]}"
        items.append(paper + item if paper else item.capitalize())
    return items


def rows():
    """Every table and figure in the sections on them, and what its row says."""
    for kind in ("table", "figure"):
        section = PAGE.split(f"## {kind.capitalize()}s\n")[1].split("\n## ")[0]
        for row in re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE):
            yield from ((item, row[1]) for item in items_of(row[0], kind))


@pytest.mark.parametrize("name", sorted({name for name in NAMES if re.fullmatch(r"fedhca2(\.\w+)+", name)}))
def test_python_name(name):
    assert exists(name)


@pytest.mark.parametrize("pattern", sorted(set(patterns(PAGE))))
def test_experiment(pattern):
    assert any(fnmatch(name, pattern) for name in ITEMS_OF)


@pytest.mark.parametrize("command", sorted({name for name in NAMES if re.match(r"fedhca2 \w", name)}))
def test_command_with_its_options(command):
    words = command.split()[1:]
    options = {option for parameter in COMMANDS[words[0]].params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options


@pytest.mark.parametrize("name", sorted(set(re.findall(r"method `(\w+)`", PAGE))))
def test_method(name):
    assert name in METHODS


@pytest.mark.parametrize("path", sorted({name for name in NAMES if name.startswith("tests/")}))
def test_file(path):
    assert (ROOT / path).is_file()


def test_every_experiment_of_the_papers_is_on_the_map():
    assert PAPERS - experiments(PAGE) == set()


def item_of_row(row):
    """The table or figure of a printed row."""
    paper, table, *_ = row["table"].split("/")
    return f"{'Table' if paper == '001' else 'Supplementary table'} {table.removeprefix('T')}"


@pytest.mark.parametrize(("item", "count"), Counter(map(item_of_row, PRINTED)).items())
def test_every_printed_row_has_an_experiment(item, count):
    assert sum(item in belongs_to for belongs_to in ITEMS_OF.values()) == count


@pytest.mark.parametrize("item", sorted(set.union(*ITEMS_OF.values()) | {item for item, _ in rows()}))
def test_map_and_configs_have_the_same_experiments(item):
    assert set.union(set(), *(experiments(text) for named, text in rows() if named == item)) == {
        name for name, belongs_to in ITEMS_OF.items() if item in belongs_to
    }


STATEMENTS = [
    line
    for section in PAGE.split("\n## ")[1:]
    for line in re.findall(r"^\| .+ \|$", section, re.MULTILINE)[2:]
    if not line.endswith("| not results |")
]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda line: line[2:40])
def test_every_statement_names_a_test_or_a_command_or_an_experiment(statement):
    """Commands are checked above, and a round of every experiment is run by `tests/unit/configs`."""
    assert patterns(statement) or re.search(r"`(tests/[\w/]+\.py|fedhca2 \w)", statement)


DEVIATIONS = (ROOT / "docs" / "deviations.md").read_text("utf-8")
METHOD_SECTIONS = DEVIATIONS[DEVIATIONS.index("## FedHCA²") : DEVIATIONS.index("## Federation")]
CHOICES = [
    choice
    for row in METHOD_SECTIONS.splitlines()
    if row.startswith("| ")
    for choice in re.findall(r"`(\w+: [^`]+)`", row.split(" | ")[-1])
]
OTHER_SECTIONS = DEVIATIONS[DEVIATIONS.index("## Federation") : DEVIATIONS.index("## Theorem 1")]
SETTINGS = re.findall(r"`((?:training|metrics)[\w.]*: [^`]+)`", OTHER_SECTIONS)


def accepts(name, settings):
    try:
        return resolve(name, settings) != METHODS[name]
    except ValueError:
        return False


@pytest.mark.parametrize("choice", CHOICES)
def test_some_method_takes_the_setting_and_changes_with_it(choice):
    assert any(accepts(name, yaml.safe_load(f"{{{choice}}}")) for name in METHODS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_experiment_takes_the_setting_and_changes_with_it(setting):
    key, _, value = setting.partition(": ")
    assert Experiment.load("fedhca2/scenario1", [f"{key}={value}"]) != Experiment.load("fedhca2/scenario1")


def test_the_page_offers_choices():
    assert (len(CHOICES) >= 15, len(SETTINGS) >= 7) == (True, True)
