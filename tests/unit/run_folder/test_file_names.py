"""A run's folder has one owner: no other package contains the names of its files."""

import ast
from pathlib import Path

import fedhca2
from fedhca2.run_folder import folder as names

ROOT = Path(fedhca2.__file__).parent
ENDINGS = (".json", ".jsonl", ".yaml")
NAMES = {value for value in vars(names).values() if isinstance(value, str) and value.endswith(ENDINGS)}


def spelled(path):
    """The names in the texts of a module, except docstrings and other standalone ones."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in alone]
    return {name for name in NAMES if any(name in text for text in texts if isinstance(text, str))}


def test_files_are_named_in_one_package():
    others = [path for path in ROOT.rglob("*.py") if path.parent.name != "run_folder"]
    assert {path.name: found for path in others if (found := spelled(path))} == {}
    assert spelled(ROOT / "run_folder" / "folder.py") == NAMES != set()
