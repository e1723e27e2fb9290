"""Only one file uses Flower's unstable names."""

import ast
import re
from pathlib import Path

import pytest

import fedhca2
from fedhca2.federation.flower import internals

PRIVATE = re.compile(r"flwr\.(supercore|superlink|supernode|cli|common\.serde|app\.)\b")
ATTRIBUTES = {"_runtime_client", "_retry_invoker", "_interceptors"}
SOURCE = Path(fedhca2.__file__).parent


def reaches(path):
    """Flower's private modules and attributes that a file uses."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from filter(PRIVATE.match, modules)
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield node.attr


def test_one_file_uses_private_names_of_flower():
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if any(reaches(path))}
    assert files == {"federation/flower/internals.py"}


@pytest.mark.parametrize("name", internals.LARGE)
def test_names_that_are_imported_late_are_there(name):
    assert getattr(internals, name).__name__ == name


def test_nothing_else_imports_flower():
    imports = re.compile(r"^\s*(from|import) flwr\b", re.MULTILINE)
    found = [path for path in SOURCE.rglob("*.py") if imports.search(path.read_text())]
    homes = (SOURCE / "federation" / "flower", SOURCE / "flower")
    assert found
    assert all(any(path.is_relative_to(home) for home in homes) for path in found)
