"""Nothing that a run writes, reads or sends can execute code."""

import re
from pathlib import Path

import fedhca2

SOURCES = sorted(Path(fedhca2.__file__).parent.rglob("*.py"))
UNSAFE = (
    re.compile(r"\b(import|from) (shelve|marshal|dill|joblib)\b"),
    re.compile(r"\bimport pickle\b|\bfrom pickle import (?!UnpicklingError$)"),  # what torch.load refuses with
    re.compile(r"\btorch\.save\("),
    re.compile(r"\btorch\.load\((?!.*weights_only=True)"),
    re.compile(r"\bnp\.load\((?!.*allow_pickle=False)"),
    re.compile(r"\byaml\.(load|unsafe_load|full_load)\("),
)


def test_no_source_pickles():
    lines = [(path.name, line) for path in SOURCES for line in path.read_text("utf-8").splitlines()]
    assert [found for found in lines if any(pattern.search(found[1]) for pattern in UNSAFE)] == []
    assert len(SOURCES) > 100
