"""Nothing that a run writes, reads or sends can execute code."""

import os
import re
from pathlib import Path

import pytest

import fedhca2
from warm import output_of

SOURCES = sorted(Path(fedhca2.__file__).parent.rglob("*.py"))
UNSAFE = (
    re.compile(r"\b(import|from) (shelve|marshal|dill|joblib)\b"),
    re.compile(r"\bimport pickle\b|\bfrom pickle import (?!UnpicklingError$)"),  # what torch.load refuses with
    re.compile(r"\btorch\.save\("),
    re.compile(r"\btorch\.load\((?!.*weights_only=True)"),
    re.compile(r"\bnp\.load\((?!.*allow_pickle=False)"),
    re.compile(r"\byaml\.(unsafe_load|full_load)\("),
    re.compile(r"\byaml\.load\((?!.*SafeLoader)"),
)


def test_no_source_pickles():
    lines = [(path.name, line) for path in SOURCES for line in path.read_text("utf-8").splitlines()]
    assert [line for line in lines if any(pattern.search(line[1]) for pattern in UNSAFE)] == []
    assert len(SOURCES) > 100


@pytest.mark.slow
def test_a_run_and_its_resumption_unpickle_nothing(tmp_path):
    """Python reports every object that is unpickled, by any code."""
    program = """
import sys
from pathlib import Path

found = []

def hear(event, arguments):
    if event == "pickle.find_class" and not any("numba/core/caching" in name for name in callers()):
        found.append(arguments)  # numba stores its compiled code in the package's folder

def callers():
    frame = sys._getframe(2)
    while frame:
        yield frame.f_code.co_filename
        frame = frame.f_back

sys.addaudithook(hear)
import small_run
from fedhca2.deployment import Trained
from fedhca2.federation.run import resume, run
from fedhca2.reports.page.write import write_page
from fedhca2.run_folder.reader import RunFiles

out = Path(sys.argv[1]) / "run"
run(small_run.small(rounds=1), out, watcher=small_run.Silent())
resume(out, watcher=small_run.Silent(), overrides=["rounds=2"])
write_page([RunFiles.open(out)], out / "report.html")
Trained.open(out, "road")
assert not found, found
import pickle
pickle.loads(pickle.dumps(Path))
assert found
"""
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(fedhca2.__file__).parents[1]), str(Path(__file__).parents[1])])}
    output_of("-c", program, tmp_path, env={**os.environ, **paths})
