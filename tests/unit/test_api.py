"""The public interface is what docs/api.md says, and the examples need nothing else."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "api.md").read_text("utf-8"), re.M | re.S)
DOCUMENTED = {
    module: {name for cell in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`(\w+)`", cell)}
    for module, text in SECTIONS
}
EXAMPLES = [ROOT / "examples" / "add_a_method.py", ROOT / "examples" / "quickstart.py", *(ROOT / "docs").glob("*.md")]


def _python(path: Path) -> str:
    text = path.read_text("utf-8")
    return text if path.suffix == ".py" else "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))


def _imported(path: Path) -> set[tuple[str, str]]:
    """(module, name) of every import from fedhca2."""
    nodes = [node for node in ast.walk(ast.parse(_python(path))) if isinstance(node, ast.ImportFrom)]
    return {(node.module, each.name) for node in nodes if node.module.startswith("fedhca2") for each in node.names}


@pytest.mark.parametrize("module", ["fedhca2", "fedhca2.methods", "fedhca2.flower", "fedhca2.tasks", "fedhca2.data"])
def test_a_public_module_offers_what_the_page_lists(module):
    assert set(import_module(module).__all__) == DOCUMENTED[module]
    assert all(hasattr(import_module(module), name) for name in DOCUMENTED[module])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_public_names_alone(path):
    assert {(module, name) for module, name in _imported(path) if name not in DOCUMENTED.get(module, ())} == set()


@pytest.mark.parametrize(
    ("path", "module"),
    [("examples/add_a_method.py", "methods"), ("docs/own-task.md", "tasks"), ("docs/own-data.md", "data")],
)
def test_the_author_of_an_extension_needs_one_module(path, module):
    assert {found for found, _ in _imported(ROOT / path)} == {f"fedhca2.{module}"}
