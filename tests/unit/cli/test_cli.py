import ast
import inspect
import io
import re
import subprocess
import sys

import pytest
import typer

from command import invoke, refused
from fedhca2.cli import app, lazy
from fedhca2.cli.app import print_anywhere, report_errors
from fedhca2.version import __version__


def test_modules_that_are_imported_on_first_use_are_those_that_types_are_checked_against():
    (block,) = [node for node in ast.parse(inspect.getsource(lazy)).body if isinstance(node, ast.If)]
    for node in block.body:
        for name in [alias.name for alias in node.names]:
            expected = f"{node.module}.{name}" if isinstance(node, ast.ImportFrom) else name
            assert getattr(lazy, name).__name__ == expected


def test_without_flower_its_commands_say_what_to_install():
    code = "import sys; sys.modules['flwr'] = sys.modules['httpx'] = None; from fedhca2.cli import app; app()"
    command = [sys.executable, "-c", code, "flower", "keys", "keys", "--sites", "home"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "pip install 'fedhca2[flower]'" in done.stderr) == (2, True), done.stderr


def all_commands(group, path=()):
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(all_commands(typer.main.get_command(app)))


def test_help_lists_commands_in_panels_and_three_examples_and_the_version_is_printed():
    assert invoke("--version").output == f"fedhca2 {__version__}\n"
    shown = invoke().output
    assert re.findall(r"─ (\w+) ─", shown) == ["Options", "Run", "Compare", "Use", "Data", "Deploy", "Inspect"]
    assert shown.split("Try:")[1].count("fedhca2 ") >= 3


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_argument_and_option_has_a_help_text_and_a_default(words):
    shown = invoke(*words, "--help").output
    declared = inspect.get_annotations(inspect.unwrap(COMMANDS[words].callback))
    for parameter in (each for each in COMMANDS[words].params if each.name != "traceback"):
        info = declared[parameter.name].__metadata__[0]
        if info.hidden:
            continue
        assert info.help.split()[0] in shown
        has_default = parameter.default not in (None, "") or isinstance(info.show_default, str)
        assert parameter.required or getattr(parameter, "is_flag", False) or has_default, parameter.name


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_option_for_output_is_called_out(words):
    options = {name for parameter in COMMANDS[words].params for name in parameter.opts}
    assert ("--out" in options) == ("-o" in options)
    assert "--output" not in options


@pytest.mark.parametrize(("words", "meant"), [(["rnu"], "run"), (["data", "chek"], "check")])
def test_a_mistyped_command_gets_one_suggestion(words, meant):
    done = invoke(*words)
    assert (done.exit_code, done.output.count(f"Did you mean '{meant}'?")) == (2, 1)


@pytest.mark.parametrize(("text", "got"), [("", "an empty file"), ("3", "3"), ("- a", "['a']")])
def test_a_file_without_settings_is_named(tmp_path, text, got):
    (path := tmp_path / "plain.yaml").write_text(text)
    assert refused("run", path) == f"error: {path}: expected a mapping of keys to values, got {got}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["no-such-experiment"], "error: no-such-experiment: expected a .yaml file or a built-in experiment."),
        (["no-such-file.yaml"], "error: no-such-file.yaml: cannot be read: No such file or directory"),
        (["demo", "--set", "rounds"], "error: --set rounds: expected KEY=VALUE"),
        (["demo", "--set", "clients=semseg"], "error: clients: expected a list, got 'semseg'"),
        (["demo", "--set", "clients.0.split=sal"], "error: clients[0].split: expected a list, got 'sal'\n"),
        (["demo", "--set", "rounds=none"], "error: rounds: expected a whole number, got 'none'"),
        (["demo", "--set", "rounds=!!bool maybe"], "the value is not valid YAML at line 1, column 1: found 'maybe'"),
        (["demo", "--set", "rounds=yes"], "error: rounds: expected a number, got True"),
        (["demo", "--baseline", "no-such-run"], "error: --baseline no-such-run: not a finished run"),
    ],
)
def test_wrong_input_is_a_line_and_exit_code_2(words, line, tmp_path):
    assert line in refused("run", *words, "--out", tmp_path / "x")


def test_a_run_over_flower_takes_no_other_settings(tmp_path):
    (tmp_path / "flower.json").write_text("{}")
    assert "a resumed run over Flower" in refused("resume", tmp_path, "--set", "rounds=9")


def test_ctrl_c_is_a_line_and_exit_code_130(capsys):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise KeyboardInterrupt
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "interrupted\n")


def test_a_quorum_of_more_than_all_clients_is_refused():
    line = "error: --min-clients: expected at most 9, all clients, got 10\n"
    assert refused("flower", "serve", "demo", "--keys", "keys", "--min-clients", "10") == line


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_a_terminal_lacks_are_written_in_plain_ones(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    print_anywhere()
    print("Δm of FedHCA² ↑ ☃", flush=True)
    assert written.getvalue().decode(encoding) in ("Dm of FedHCA2 ^ ?\n", "Dm of FedHCA² ^ ?\n")
