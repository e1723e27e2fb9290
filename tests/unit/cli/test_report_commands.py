import json

import pytest
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from fedhca2.cli import app
from made_run import made_run


def invoked(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_report_writes_into_the_run_by_default(tmp_path):
    made_run(tmp_path)
    assert invoked("report", tmp_path).stdout.strip() == str(tmp_path / "report.html")


def test_report_takes_several_runs(tmp_path):
    runs = [made_run(tmp_path / "a", "local").path, made_run(tmp_path / "b").path]
    invoked("report", *runs, "-o", tmp_path / "page.html")
    assert "Gain over local" in (tmp_path / "page.html").read_text("utf-8")


def test_report_of_no_run_is_one_line(tmp_path):
    done = invoked("report", tmp_path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_runs_without_a_column_in_common_are_one_line(tmp_path):
    runs = [made_run(tmp_path / "a", "local").path, made_run(tmp_path / "b").path]
    for run, clients in zip(runs, (["road", "shop"], ["home"]), strict=True):
        result = json.loads((run / "result.json").read_text())
        result["clients"] = {client: result["clients"][client] for client in clients}
        (run / "result.json").write_text(json.dumps(result))
    done = invoked("report", *runs)
    assert (done.exit_code, done.stderr.count("\n"), "in common" in done.stderr) == (2, 1, True)


@pytest.mark.parametrize("option", ["--out", "--output", "-o"])
def test_picture_writes_a_panel(tmp_path, option):
    made_run(tmp_path)
    invoked("picture", tmp_path, "--client", "home", "--tile", 32, option, tmp_path / "out" / "home.png")
    assert Image.open(tmp_path / "out" / "home.png").width > 4 * 32


def test_picture_names_its_file_after_the_client_and_the_sample(tmp_path, monkeypatch):
    made_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert invoked("picture", "run", "--client", "home").stdout == "home-0.png\n"
    assert (tmp_path / "home-0.png").is_file()


@pytest.mark.parametrize("command", ["report", "picture", "predict", "export", "run", "compare", "sweep"])
def test_every_command_that_writes_takes_out(command):
    assert "--out" in {name for each in get_command(app).commands[command].params for name in each.opts}
