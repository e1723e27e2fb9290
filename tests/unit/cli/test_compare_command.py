"""What `fedhca2 compare` accepts, and what it prints about parallel runs."""

from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.reports.console import ParallelConsole


@pytest.mark.parametrize("jobs", ["0", "-1", "many", "1.5", ""])
def test_jobs_should_be_a_number_or_auto(jobs, tmp_path):
    result = CliRunner().invoke(app, ["compare", "demo", f"--jobs={jobs}", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "expected a number from 1, or auto" in result.output
    assert not (tmp_path / "out").exists()


def test_it_says_how_many_runs_wait():
    console = ParallelConsole(Console(file=StringIO(), width=200), total=4, done=0)
    console.said -= 61  # a line each minute
    console.looked([], 3)
    assert console.console.file.getvalue() == "3 more waiting\n"


def test_methods_of_several_options_are_all_compared(tmp_path):
    words = ["compare", "demo", "--methods", "fedper", "--methods", "fedavg, three", "--out", str(tmp_path / "out")]
    assert "got 'three'" in CliRunner().invoke(app, words).output


def test_a_comparison_of_no_method_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["compare", "demo", "--methods", " ,", "--out", str(tmp_path / "out")])
    assert (result.exit_code, "--methods: expected at least one method" in result.output) == (2, True)
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_run_is_refused(tmp_path):
    (tmp_path / "config.yaml").touch()
    result = CliRunner().invoke(app, ["compare", "demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "got a run in it" in result.output
