"""Processes that a command starts import what it imports, and nothing from the working directory."""

import subprocess
import sys

from fedhca2.imports import same_modules


def output_of(*arguments, cwd):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=same_modules(), capture_output=True, text=True, check=True).stdout


def test_the_working_directory_is_not_searched(tmp_path):
    (tmp_path / "colorsys.py").write_text("print('foreign')")
    assert output_of("-m", "colorsys", cwd=tmp_path) == ""


def test_modules_that_this_process_finds_are_found(tmp_path, monkeypatch):
    (tmp_path / "own_method.py").write_text("print('own')")
    monkeypatch.syspath_prepend(tmp_path)
    assert output_of("-c", "import own_method", cwd="/") == "own\n"
