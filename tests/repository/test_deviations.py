"""Every alternative that the page of deviations offers can be configured."""

import re
from pathlib import Path

import pytest
import yaml

from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS, resolve

PAGE = (Path(__file__).parents[2] / "docs" / "deviations.md").read_text("utf-8")
METHOD_SECTIONS = PAGE[PAGE.index("## FedHCA²") : PAGE.index("## Federation")]
CHOICES = [
    choice
    for row in METHOD_SECTIONS.splitlines()
    if row.startswith("| ")
    for choice in re.findall(r"`(\w+: [^`]+)`", row.split(" | ")[-1])
]
OTHER_SECTIONS = PAGE[PAGE.index("## Federation") : PAGE.index("## Theorem 1")]
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
