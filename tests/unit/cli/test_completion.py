"""What shells propose: through the protocol that Typer's scripts use, and in bash itself."""

import os
import subprocess
import sys

import pytest

from command import printed
from fedhca2.reports.tracking import TRACKERS
from made_run import made_run


def proposals(line):
    """The words that are proposed at the end of a line."""
    words = f"fedhca2 {line}"
    environment = {"_FEDHCA2_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return printed(env=environment, prog_name="fedhca2").splitlines()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run dem", ["demo"]),
        ("run demo --engine flower-l", ["flower-local"]),
        ("methods fedp", ["fedprox", "fedper", "fedper_ft", "fedpull"]),
        ("compare demo --methods local,fedh", ["local,fedhca2"]),
        ("run demo --set roun", ["rounds="]),
        ("run demo --set clients.0.ep", ["clients.0.epochs="]),
        ("run demo --set training.schedule.la", ["training.schedule.lag="]),
        ("run demo --set method.resc", ["method.rescale="]),
        ("run demo --track ml", ["mlflow="]),
        ("run demo --track ", [f"{name}=" for name in TRACKERS]),
    ],
)
def test_a_line_is_completed(line, words):
    assert sorted(proposals(line)) == sorted(words)


def test_files_of_experiments_folders_of_runs_and_their_clients_are_completed(tmp_path, monkeypatch):
    models = made_run(tmp_path / "runs" / "first").path / "models"
    made_run(tmp_path / "runs" / "sweep" / "second")
    models.mkdir()
    clients = [models / f"{client}.safetensors" for client in ("home", "road", "shop")]
    for file in (tmp_path / "mine.yaml", tmp_path / "mine.txt", *clients):
        file.touch()
    monkeypatch.chdir(tmp_path)
    assert proposals(f"run {tmp_path}/m") == [f"{tmp_path}/mine.yaml"]
    assert proposals("report ") == ["runs/first", "runs/sweep/"]
    assert proposals("resume runs/sweep/") == ["runs/sweep/second"]
    assert proposals("export runs/first --client ho") == ["home"]


@pytest.mark.parametrize("line", ["run dem", "run demo --set roun", "methods fed"])
def test_nothing_slow_is_imported(line):
    code = "import sys\nfrom fedhca2.__main__ import main\ntry: main()\nfinally: print(*sys.modules)"
    words = {"COMP_WORDS": f"fedhca2 {line}", "COMP_CWORD": str(1 + line.count(" "))}
    environment = {**os.environ, "_FEDHCA2_COMPLETE": "complete_bash", **words}
    command = [sys.executable, "-c", code.replace("main()", "sys.argv[0] = 'fedhca2'; main()", 1)]
    imported = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
    assert {"torch", "numpy", "pydantic"} & set(imported) == set()


def test_every_shell_has_a_script_and_in_bash_a_value_follows_a_key_without_a_space(tmp_path):
    assert all(f"complete_{shell}" in printed("completion", shell) for shell in ("bash", "zsh", "fish"))
    script = printed("completion", "bash")
    (tmp_path / "fedhca2").write_text(f"#!{sys.executable}\nfrom fedhca2.__main__ import main\nmain()\n")
    (tmp_path / "fedhca2").chmod(0o755)
    pressed = "COMP_WORDS=(fedhca2 run demo --set rou); COMP_CWORD=4; _fedhca2_completion fedhca2"
    command = ["bash", "-c", f"{script}\ncompopt() {{ echo $*; }}; {pressed}; echo ${{COMPREPLY[@]}}"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["-o", "nospace", "rounds="], done.stderr
