"""What the page of deviations offers as the other choice can be chosen."""

import re
from pathlib import Path

import pytest
import yaml

from fedhca2.methods import METHODS, resolve

PAGE = (Path(__file__).parents[2] / "docs" / "deviations.md").read_text("utf-8")
METHOD_SECTIONS = PAGE[PAGE.index("## FedHCA²") : PAGE.index("## Federation")]
CHOICES = [
    choice
    for row in METHOD_SECTIONS.splitlines()
    if row.startswith("| ")
    for choice in re.findall(r"`(\w+: [^`]+)`", row.split(" | ")[-1])
]


def accepts(name, settings):
    try:
        return resolve(name, settings) != METHODS[name]
    except ValueError:
        return False


@pytest.mark.parametrize("choice", CHOICES)
def test_some_method_takes_the_setting_and_changes_with_it(choice):
    assert any(accepts(name, yaml.safe_load(f"{{{choice}}}")) for name in METHODS)


def test_the_page_offers_choices():
    assert len(CHOICES) >= 15
