"""`fedhca2 report`, `picture` and `compare`: what they accept, write and print."""

from io import StringIO

import pytest
from PIL import Image
from rich.console import Console

from command import invoke, printed, refused
from fedhca2.reports.console import ParallelConsole
from made_run import made_run


def test_report_takes_several_runs_and_writes_into_a_run_by_default(tmp_path):
    runs = [made_run(tmp_path / "a", "local").path, made_run(tmp_path / "b").path]
    printed("report", *runs, "-o", tmp_path / "page.html")
    assert "Gain over local" in (tmp_path / "page.html").read_text("utf-8")
    assert printed("report", runs[0]).strip() == str(runs[0] / "report.html")


@pytest.mark.parametrize("command", ["report", "watch"])
def test_a_folder_without_a_run_is_one_line(command, tmp_path):
    refused(command, tmp_path)


@pytest.mark.parametrize("option", ["--out", "--output", "-o"])
def test_picture_writes_a_panel_by_default_named_after_the_client_and_the_sample(tmp_path, monkeypatch, option):
    made_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    printed("picture", "run", "--client", "home", "--tile", 32, option, tmp_path / "out" / "home.png")
    assert Image.open(tmp_path / "out" / "home.png").width > 4 * 32
    assert printed("picture", "run", "--client", "home") == "home-0.png\n"
    assert (tmp_path / "home-0.png").is_file()


def test_a_comparison_says_how_many_runs_wait():
    console = ParallelConsole(Console(file=StringIO(), width=200), total=4, done=0)
    console.last_printed -= 61  # a line each minute
    console.polled([], 3)
    assert console.console.file.getvalue() == "3 more waiting\n"


@pytest.mark.parametrize("jobs", ["0", "-1", "many", "1.5", ""])
def test_jobs_should_be_a_number_or_auto(jobs, tmp_path):
    result = invoke("compare", "demo", f"--jobs={jobs}", "--out", tmp_path / "out")
    assert (result.exit_code, "expected a number from 1, or auto" in result.output) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("methods", "line"),
    [
        (["--methods", "fedper", "--methods", "fedavg, three"], "got 'three'"),  # of several options, all are compared
        (["--methods", " ,"], "--methods: expected at least one method"),
    ],
)
def test_a_comparison_of_other_than_known_methods_is_refused(tmp_path, methods, line):
    assert line in refused("compare", "demo", *methods, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_run_is_refused(tmp_path):
    (tmp_path / "config.yaml").touch()
    assert "got a run in it" in refused("compare", "demo", "--out", tmp_path)
