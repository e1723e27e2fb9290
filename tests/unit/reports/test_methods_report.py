import pytest
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.methods import METHODS, components_of


def lines(*arguments):
    found = CliRunner().invoke(app, ["methods", *arguments], env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.output
    return found.output.splitlines()


def test_the_list_names_every_method_with_its_reference():
    found = lines()
    assert all(
        any(line.startswith(name) and method.reference in line for line in found) for name, method in METHODS.items()
    )


@pytest.mark.parametrize("name", [None, *METHODS])
def test_every_line_fits_into_80_columns(name):
    assert max(len(line.rstrip()) for line in lines(*filter(None, [name]))) <= 80


@pytest.mark.parametrize("name", METHODS)
def test_a_method_s_page_has_every_setting(name):
    settings = {key for part in components_of(METHODS[name]).values() for key in type(part).model_fields} - {"kind"}
    assert settings <= {line.split()[0] for line in lines(name) if line.startswith("  ") and line.strip()}


def test_a_setting_has_its_default_bounds_and_meaning():
    row = next(line for line in lines("fedprox") if line.strip().startswith("mu"))
    assert row.split(maxsplit=4)[:4] == ["mu", "0.01", "≥", "0"]
    assert "strength of the pull" in row


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_has_a_meaning(name):
    fields = {
        (type(part).__name__, key): field
        for part in components_of(METHODS[name]).values()
        for key, field in type(part).model_fields.items()
    }
    assert [key for key, field in fields.items() if key[1] != "kind" and not field.description] == []


def test_an_unknown_method_is_one_line_with_a_suggestion():
    found = CliRunner().invoke(app, ["methods", "fedhca3"])
    assert found.exit_code == 2
    assert "Did you mean 'fedhca2'?" in found.output
