"""A run's folder may come from anyone: no code that it names runs, unless the user allows it or has run it before."""

import json
import shutil

import pytest
import yaml

import fedhca2
from command import as_json, invoke
from fedhca2.clients import load_state, save_state
from fedhca2.imports import allow_code, is_allowed, remember_code
from fedhca2.run_folder.reader import RunFiles
from made_run import made_run
from small_run import run_small, small

SETTINGS = {
    "method": {"method": {"name": "KIND", "encoder": None, "decoder": None}},
    "data": {"data": {"mine": {"kind": "KIND"}}},
    "task": {"tasks": {"count": {"kind": "KIND"}}},
    "bare task": {"tasks": {"count": "KIND"}},
    "encoder": {"model": {"encoder": {"kind": "KIND"}}},
    "decoder": {"model": {"decoder": "KIND"}},
    "head": {"model": {"head": "KIND"}},
    "client": {"clients": [{"data": "mine", "tasks": ["sal"], "model": {"encoder": {"kind": "KIND"}}}]},
}
NAMES = {
    "absolute": "{run}/evil.py",
    "relative": "evil.py",
    "dots": "{run}/../run/evil.py",
    "only a suffix": "{run}/.py",
    "working directory": "/proc/self/cwd/evil.py",
    "outside": "{run}/../evil.py",
    "another run": "{run}/../other/evil.py",
    "module": "evil_module",
    "package": "evil_package.inner",
}
READING = {
    "runs": ["runs", "{run}/.."],
    "report": ["report", "{run}", "-o", "{run}/../page.html"],
    "watch": ["watch", "--once", "{run}"],
    "picture": ["picture", "{run}", "--client", "road", "-o", "{run}/../picture.png"],
    "run --baseline": ["run", "demo", "--baseline", "{run}", "--out", "{run}/../new"],
}
USING = {
    "resume": ["resume", "{run}", "--set", "rounds=9"],
    "evaluate": ["evaluate", "{run}"],
    "predict": ["predict", "{run}", "{run}/image.png", "--client", "road"],
    "export": ["export", "{run}", "--client", "road"],
    "flower serve": ["flower", "serve", "{run}", "--keys", "{run}/keys"],
}


@pytest.fixture
def send_run(tmp_path, monkeypatch):
    """A function that makes a run which names code in some way; the code leaves a mark. We are in its folder."""
    mark, run = tmp_path / "ran", tmp_path / "run"
    made_run(run)
    (run / "config.yaml").write_text(small().to_yaml())
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "evil_package" / "inner.py").write_text("")
    outside = ("evil.py", "other/evil.py", "evil_module.py", "evil_package/__init__.py")
    for file in (run / "evil.py", run / ".py", *(tmp_path / name for name in outside)):
        file.write_text(f"open({str(mark)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)  # what `python -m fedhca2` does with the working directory
    monkeypatch.chdir(run)

    def send(setting, name, file="config.yaml"):
        path = f"{NAMES[name].format(run=run)}:THING"
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_text(
            yaml.safe_dump(config | json.loads(json.dumps(SETTINGS[setting]).replace("KIND", path)))
        )
        return run, mark

    return send


def call(words, run):
    return invoke(*(word.format(run=run) for word in words))


@pytest.mark.parametrize("command", USING)
@pytest.mark.parametrize(
    ("setting", "name"), [*((setting, "outside") for setting in SETTINGS), *(("method", n) for n in NAMES)]
)
def test_a_command_that_needs_the_code_refuses_it_and_says_how_to_allow_it(send_run, command, setting, name):
    run, mark = send_run(setting, name)
    if command == "flower serve":
        (run / "flower.json").write_text(json.dumps({"run": "0", "engine": "flower", "flower_run": 1}))
    done = call(USING[command], run)
    assert (done.exit_code, mark.exists()) == (2, False)
    assert "config.yaml: expected code that you have run" in done.stderr
    assert "--allow-code" in done.stderr


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize(
    ("setting", "name"), [*((setting, "outside") for setting in SETTINGS), *(("task", n) for n in NAMES)]
)
def test_a_command_that_only_reads_runs_no_code(send_run, command, setting, name):
    run, mark = send_run(setting, name)
    call(READING[command], run)
    assert not mark.exists()


@pytest.mark.parametrize("command", ["runs", "report", "watch"])
@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if "task" not in setting])
def test_a_command_that_only_reads_needs_no_code(send_run, command, setting):
    run, _ = send_run(setting, "absolute")
    done = call(READING[command], run)
    assert (done.exit_code, "unreadable" in done.stdout) == (0, False), done.stderr


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["report", "evaluate"])
def test_code_that_a_baseline_names_does_not_run(send_run, command, name):
    run, mark = send_run("task", name, "baseline/config.yaml")
    call((READING | USING)[command], run)
    assert not mark.exists()


def test_a_list_shows_a_run_whose_tasks_are_unknown(send_run):
    send_run("task", "absolute")
    (listed,) = as_json("runs", ".")
    assert (listed["state"], listed["method"], listed["round"], listed["delta_m"]) == ("finished", "fedhca2", 3, 0.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    run_small(small(rounds=1), folder)
    return folder


@pytest.mark.parametrize("setting", ["method", "data", "task", "encoder", "client"])
def test_code_that_a_checkpoint_names_does_not_run(trained, tmp_path, setting):
    run, mark, evil = tmp_path / "run", tmp_path / "ran", tmp_path / "evil.py"
    shutil.copytree(trained, run)
    evil.write_text(f"open({str(mark)!r}, 'w')")
    (server,) = run.glob("checkpoints/*/server.safetensors")
    state = load_state(server)
    state.values["experiment"] |= json.loads(json.dumps(SETTINGS[setting]).replace("KIND", f"{evil}:THING"))
    save_state(server, state)
    done = call(["resume", "{run}", "--set", "rounds=2"], run)
    assert (done.exit_code, mark.exists()) == (2, False)
    assert "server.safetensors: expected code that you have run" in done.stderr


@pytest.fixture
def ours(tmp_path):
    """A run of the user's own method, started by them."""
    code = tmp_path / "ours.py"
    code.write_text("from fedhca2.methods import METHODS\nOURS = METHODS['fedavg']\n")
    run_small(small(method=f"{code}:OURS", rounds=1), tmp_path / "run")
    return tmp_path / "run", code


def method_of(run):
    return RunFiles(run).experiment().method_name


def test_code_that_the_user_has_run_needs_no_permission_until_it_changes(ours):
    run, code = ours
    assert method_of(run) == f"{code}:OURS"
    code.write_text(code.read_text() + "open('ran', 'w')")
    with pytest.raises(fedhca2.UserError, match="--allow-code"):
        method_of(run)


@pytest.mark.parametrize("in_python", [True, False])
def test_code_that_another_user_has_run_needs_permission_until_it_is_allowed(ours, tmp_path, monkeypatch, in_python):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    run, code = ours
    with pytest.raises(fedhca2.UserError, match="--allow-code"):
        method_of(run)
    if in_python:
        assert fedhca2.Run.open(run, allow_code=[str(code)]).files.experiment().method_name == f"{code}:OURS"
    else:
        done = call(["evaluate", "{run}", "--client", "road", "--allow-code", str(code)], run)
        assert done.exit_code == 0, done.stderr


def test_a_home_that_cannot_be_written_stops_no_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember_code(["evil.py:THING", f"{__file__}:THING"])
    assert not is_allowed(f"{__file__}:THING")


@pytest.mark.parametrize("changed", ["package/__init__.py", "package/inner.py"])
def test_a_module_is_trusted_together_with_its_packages(tmp_path, monkeypatch, changed):
    package = tmp_path / "package"
    package.mkdir()
    for file in ("__init__.py", "inner.py"):
        (package / file).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    remember_code(["package.inner:THING"])
    assert is_allowed("package.inner:THING")
    (tmp_path / changed).write_text("changed = True")
    assert not is_allowed("package.inner:THING")


def test_a_module_is_allowed_by_its_name():
    allow_code(["some_package.module"])
    assert is_allowed("some_package.module:THING")
    assert not is_allowed("some_package:THING")
