"""What runs without the modules and functions that only Linux or only Unix has."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from small_run import SETTINGS

PRELUDE = Path(__file__).parents[1] / "without_linux.py"


def run(folder, *commands):
    words = " -- ".join(commands).split()
    done = subprocess.run([sys.executable, PRELUDE, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_federation_runs_resumes_evaluates_and_predicts(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**SETTINGS, "rounds": 1, "method": "fedhca2"}))
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "black.png")
    out = run(
        tmp_path,
        "run small.yaml --out first",
        "resume first --set rounds=2",
        "evaluate first --client road",
        "predict first black.png --client road",
        "export first --client road --format safetensors",
        "compare small.yaml --methods local,fedper --out both",
        "leaderboard . --json",
    )
    assert "black.png  semseg:" in out
    assert (tmp_path / "both" / "table.csv").is_file()
    assert (tmp_path / "first" / "report.html").is_file()


@pytest.mark.parametrize("module", ["fcntl", "resource"])
def test_modules_of_linux_are_missing_in_these_tests(module):
    code = f"import without_linux; without_linux.take_away(); import {module}"
    done = subprocess.run([sys.executable, "-c", code], cwd=PRELUDE.parent, capture_output=True, text=True, check=False)
    assert f"No module named {module!r}" in done.stderr
