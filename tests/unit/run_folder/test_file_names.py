"""A run's folder has one owner: no other package contains the names of its files."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fedhca2
from fedhca2.run_folder import folder as names

ROOT = Path(fedhca2.__file__).parent
NAMES = [
    value for value in vars(names).values() if isinstance(value, str) and value.endswith((".json", ".jsonl", ".yaml"))
]


def _texts(module: ast.Module) -> Iterator[str]:
    """All strings of a module except docstrings and other standalone ones."""
    alone = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def _spelled(path: Path) -> list[str]:
    texts = list(_texts(ast.parse(path.read_text("utf-8"))))
    return [name for name in NAMES if any(name in text for text in texts)]


def test_files_are_named_in_one_package() -> None:
    others = [path for path in ROOT.rglob("*.py") if path.parent.name != "run_folder"]
    assert {path.name: found for path in others if (found := _spelled(path))} == {}


def test_the_owner_does_spell_them() -> None:
    assert set(_spelled(ROOT / "run_folder" / "folder.py")) == set(NAMES) != set()
