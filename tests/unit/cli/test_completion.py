"""What shells propose: through the protocol that their scripts use, and by pressing Tab in the real ones."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.cli.completion import SCRIPTS
from fedhca2.reports.tracking import TRACKERS
from made_run import made_run


def proposed(line, **environment):
    """The words that are proposed at the end of a line."""
    asked = {"_FEDHCA2_COMPLETE": "complete_line", "COMP_LINE": f"fedhca2 {line}", **environment}
    done = CliRunner().invoke(app, [], env=asked, prog_name="fedhca2")
    assert done.exit_code == 0, done.output
    return [found.partition("\t")[0] for found in done.output.splitlines()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run dem", ["demo"]),
        ("run demo --engine flower-l", ["flower-local"]),
        ("methods fedp", ["fedprox", "fedper", "fedpull"]),
        ("compare demo --methods local,fedh", ["local,fedhca2"]),
        ("run demo --set roun", ["rounds="]),
        ("run demo --set=roun", ["--set=rounds="]),
        ("run demo --set data.o", ["data.outdoor."]),
        ("run demo --set data.outdoor.tr", ["data.outdoor.train="]),
        ("run demo --set clients.1.ep", ["clients.1.epochs="]),
        ("run demo --set method.c", ["method.c=", "method.clamp="]),
        ("run demo --set method", ["method.", "method=", "methods."]),
        ("run demo --set method=fedh", ["method=fedhca2"]),
        ("run demo --set method.rescale=", ["method.rescale=released", "method.rescale=none"]),
        ("run demo --set baseline=t", ["baseline=true"]),
        ("run fedhca2/table1/fedprox --set method.m", ["method.mu="]),
        ("run demo --track ml", ["mlflow="]),
        ("run nothing.yaml --set roun", ["rounds="]),
    ],
)
def test_a_line_is_completed(line, words):
    assert proposed(line) == words


def test_bash_gets_the_end_of_a_word_that_it_breaks():
    assert proposed("run demo --set method=fedh", COMP_WORD="fedh") == ["fedhca2"]


def test_settings_of_a_users_own_file_are_completed(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "demo", "data": {"yard": {"kind": "nyud", "root": "."}}}))
    assert proposed(f"run {path} --set data.y") == ["data.yard."]
    assert "data.yard.root=" in proposed(f"run {path} --set data.yard.")


def test_files_that_extend_each_other_are_completed_too(tmp_path):
    for name, other in ("ab", "ba"):
        (tmp_path / f"{name}.yaml").write_text(f"extends: {other}.yaml\nrounds: 1")
    assert proposed(f"run {tmp_path}/a.yaml --set roun") == ["rounds="]


def test_files_of_experiments_are_completed(tmp_path):
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "mine.txt").touch()
    assert proposed(f"run {tmp_path}/m") == [f"{tmp_path}/mine.yaml"]


def test_run_folders_are_completed(tmp_path, monkeypatch):
    made_run(tmp_path / "runs" / "first")
    made_run(tmp_path / "runs" / "sweep" / "second")
    monkeypatch.chdir(tmp_path)
    assert proposed("report ") == ["runs/first", "runs/sweep/"]
    assert proposed("resume runs/sweep/") == ["runs/sweep/second"]


def test_all_trackers_are_proposed():
    assert sorted(proposed("run demo --track ")) == sorted(f"{name}=" for name in TRACKERS)


def test_nothing_slow_is_imported():
    code = "import sys, fedhca2.cli.completion as c; list(c.methods('')); list(c.experiments('')); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "numpy", "pydantic"} & set(found) == set()


COMMAND = f"""#!{sys.executable}
import os, sys
if "_FEDHCA2_COMPLETE" in os.environ:
    from fedhca2.__main__ import main
    main()
print("GOT", *sys.argv[1:])
"""


@pytest.fixture
def home(tmp_path):
    """A folder with each shell's script, and a command that completes, or prints what it gets."""
    (tmp_path / "fedhca2").write_text(COMMAND)
    (tmp_path / "fedhca2").chmod(0o755)
    for shell in SCRIPTS:
        (tmp_path / f"script.{shell}").write_text(CliRunner().invoke(app, ["completion", shell]).output)
    return tmp_path


START = {
    "bash": (["--norc", "--noprofile", "-i"], "source script.bash"),
    "zsh": (["-f", "-i"], "autoload -U compinit; compinit -D -u; source script.zsh"),
    "fish": (["--no-config", "-i"], "source script.fish"),
}


def typed(shell, home, keys):
    """What a real shell shows when these keys are typed, each group once it shows what the one before should give."""
    options, script = START[shell]
    environment = {"PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", "PS1": "> "}
    environment |= {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(home)
        os.execvpe(shell, [shell, *options], environment)
    shown = ""
    try:
        for group, expected in ((f"{script}; echo rea''dy\r", "ready"), *keys):
            os.write(terminal, group.encode())
            shown += _read(terminal, shown, expected)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)
    return shown


def _read(terminal, before, expected, patience=15.0):
    """Read until something is shown, and nothing follows."""
    found, end = "", time.monotonic() + patience
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.3)
        if ready:
            found += os.read(terminal, 65536).decode(errors="replace").replace("\a", "")
        elif expected in before + found:
            break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("shell", SCRIPTS)
def test_tab_completes_in_the_real_shell(shell, home):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    keys = [("fedhca2 run dem\t", "demo"), ("--set rou\t", "rounds="), ("7 --set method=fedhc\t", "=fedhca2")]
    assert "GOT run demo --set rounds=7 --set method=fedhca2" in typed(shell, home, [*keys, ("\r", "GOT")])
