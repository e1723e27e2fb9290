"""The map from papers to code names things that are there."""

import importlib
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from fedhca2.cli import app
from fedhca2.experiment.sources import embedded_experiments

ROOT = Path(__file__).parents[2]
NAMES = re.findall(r"`([^`]+)`", (ROOT / "docs" / "paper-to-code.md").read_text("utf-8"))
EXPERIMENTS = {listing.name for listing in embedded_experiments()}


def there(name):
    """Whether a dotted name is a module, or something in one."""
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


@pytest.mark.parametrize("name", sorted({name for name in NAMES if re.fullmatch(r"fedhca2(\.\w+)+", name)}))
def test_python_name(name):
    assert there(name)


@pytest.mark.parametrize(
    "pattern", sorted({name for name in NAMES if re.fullmatch(r"(fedhca2|matfl)/[\w/.*-]+", name)})
)
def test_experiment(pattern):
    assert any(fnmatch(name, pattern) for name in EXPERIMENTS)


@pytest.mark.parametrize("command", sorted({name.split()[1] for name in NAMES if re.match(r"fedhca2 \w", name)}))
def test_command(command):
    assert command in {known.name or known.callback.__name__ for known in app.registered_commands}


@pytest.mark.parametrize("path", sorted({name for name in NAMES if name.startswith("tests/")}))
def test_file(path):
    assert (ROOT / path).is_file()


def test_every_experiment_of_the_papers_is_on_the_map():
    patterns = [name for name in NAMES if "/" in name]
    papers = {name for name in EXPERIMENTS if name.startswith(("fedhca2/", "matfl/"))}
    assert {name for name in papers if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
