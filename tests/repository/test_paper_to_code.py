"""The map from papers to code names things that exist, and agrees with the configs."""

import importlib
import json
import re
from collections import Counter
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import pytest
import typer

from fedhca2.cli import app
from fedhca2.configs import built_in_experiments
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper-to-code.md").read_text("utf-8")
QUOTED = re.compile(r"`([^`]+)`")
NAMES = [" ".join(name.split()) for name in QUOTED.findall(PAGE)]
PLACES = {listing.name: set(listing.belongs_to) for listing in built_in_experiments()}
PAPERS = {name for name in PLACES if name.startswith(("fedhca2/", "matfl/"))}
PAPER = {"P": "", "S": "Supplementary ", "M": "MaT-FL "}
PRINTED = json.loads((ROOT / "tests" / "golden" / "data" / "delta_m.json").read_text("utf-8"))  # rows with a Δm
COMMANDS = typer.main.get_command(app).commands


def there(name):
    """Whether a dotted name is a module or a member of one."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            found = getattr(found, word, None)
        return found is not None
    return False


def patterns(text):
    """The patterns of experiments in a text, one for each choice in braces."""
    found = [name for name in QUOTED.findall(text) if re.fullmatch(r"(fedhca2|matfl)/[\w/.*{},-]+", name)]
    pieces = [re.split(r"\{([^}]*)\}", name) for name in found]
    return ["".join(choice) for name in pieces for choice in product(*(piece.split(",") for piece in name))]


def experiments(text):
    return {name for name in PLACES if any(fnmatch(name, pattern) for pattern in patterns(text))}


def places(text, kind):
    """The places that the first cell of a row names: 'P 6, 7, weights' with kind 'figure' is Figure 6 and Figure 7."""
    found, paper = [], ""
    for piece in text.split(", "):
        match = re.fullmatch(r"(?:([PSM]) )?(\d+|section C)", piece)
        if not match:
            break
        paper = PAPER[match[1]] if match[1] else paper
        place = match[2] if match[2].startswith("section") else f"{kind} {match[2]}"
        found.append(paper + place if paper else place.capitalize())
    return found


def rows():
    """Every place in the sections on tables and figures, and what its row says."""
    for kind in ("table", "figure"):
        section = PAGE.split(f"## {kind.capitalize()}s\n")[1].split("\n## ")[0]
        for row in re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE):
            yield from ((place, row[1]) for place in places(row[0], kind))


@pytest.mark.parametrize("name", sorted({name for name in NAMES if re.fullmatch(r"fedhca2(\.\w+)+", name)}))
def test_python_name(name):
    assert there(name)


@pytest.mark.parametrize("pattern", sorted(set(patterns(PAGE))))
def test_experiment(pattern):
    assert any(fnmatch(name, pattern) for name in PLACES)


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_every_experiment_of_the_papers_can_be_read(name):
    assert Experiment.load(name).specs


@pytest.mark.parametrize("command", sorted({name for name in NAMES if re.match(r"fedhca2 \w", name)}))
def test_command_with_its_options(command):
    words = command.split()[1:]
    known = {option for parameter in COMMANDS[words[0]].params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("name", sorted(set(re.findall(r"method `(\w+)`", PAGE))))
def test_method(name):
    assert name in METHODS


@pytest.mark.parametrize("path", sorted({name for name in NAMES if name.startswith("tests/")}))
def test_file(path):
    assert (ROOT / path).is_file()


def test_every_experiment_of_the_papers_is_on_the_map():
    assert PAPERS - experiments(PAGE) == set()


def table_of(row):
    """The place of a printed row."""
    paper, table, *_ = row["table"].split("/")
    return f"{'Table' if paper == '001' else 'Supplementary table'} {table.removeprefix('T')}"


@pytest.mark.parametrize(("place", "count"), Counter(map(table_of, PRINTED)).items())
def test_every_printed_row_has_an_experiment(place, count):
    assert sum(place in belongs_to for belongs_to in PLACES.values()) == count


@pytest.mark.parametrize("place", sorted(set.union(*PLACES.values()) | {place for place, _ in rows()}))
def test_map_and_configs_have_the_same_experiments(place):
    assert set.union(set(), *(experiments(told) for at, told in rows() if at == place)) == {
        name for name, belongs_to in PLACES.items() if place in belongs_to
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
