import ast
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from test_checkpoints import nobody

import fedhca2
from fedhca2.run_folder import folder as names
from fedhca2.run_folder.records import Progress, ServerState
from fedhca2.run_folder.writer import RunFolder
from fedhca2.whole_files import ORDINARY, PRIVATE, private_folder, put_in_place, write_whole
from small_run import small

OWNERS = {"checkpoints", "models", "samples"}


@pytest.fixture(autouse=True)
def _no_umask():
    """Files keep the modes they are created with."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder):
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


@pytest.fixture
def run(tmp_path):
    """A run's folder with a file of every kind."""
    folder = RunFolder.new(tmp_path / "run")
    folder.rewind(small(), {"partition.json": {}})
    folder.commit(Progress(ServerState(1)), nobody, {"seconds": 1.0})
    folder.save_model("home", torch.nn.Linear(1, 1))
    folder.save_samples("home", {"image": np.zeros(3)})
    folder.finish({})
    folder.close()
    return tmp_path / "run"


def test_what_holds_clients_models_and_images_is_its_owners_alone(run):
    found = {name: mode for name, mode in modes(run).items() if name.split("/")[0] in OWNERS}
    assert len(found) == 7
    assert all(mode == (0o700 if (run / name).is_dir() else 0o600) for name, mode in found.items()), found


def test_the_record_of_a_run_obeys_the_umask(run):
    found = {name: mode for name, mode in modes(run).items() if name.split("/")[0] not in OWNERS}
    assert found == dict.fromkeys([".lock", "config.yaml", "metrics.jsonl", "partition.json", "result.json"], 0o666)


@pytest.mark.parametrize(("mode", "found"), [(PRIVATE, 0o600), (ORDINARY, 0o640)])
def test_a_private_file_replaces_a_public_one_and_an_ordinary_one_obeys_the_umask(tmp_path, mode, found):
    (tmp_path / "state").touch(mode=0o666)
    os.umask(0o027)
    write_whole(tmp_path / "state", b"secret", mode)
    assert modes(tmp_path) == {"state": found}


def test_new_parents_of_a_private_folder_are_private(tmp_path):
    (tmp_path / "state").mkdir()
    private_folder(tmp_path / "state" / "run" / "home")
    assert modes(tmp_path) == {"state": 0o777, "state/run": 0o700, "state/run/home": 0o700}


def test_two_writers_of_one_path_do_not_disturb_each_other(tmp_path):
    with put_in_place(tmp_path / "page") as one, put_in_place(tmp_path / "page") as other:
        one.write_text("one")
        other.write_text("other")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page", "one")]


def test_leftovers_are_removed_when_a_run_is_resumed(run):
    """Leftovers of a killed process, matrices of rounds after the checkpoint, and at the end states of clients."""
    matrices = [run / "matrices" / f"round-{round:06d}-0.npz" for round in range(3)]
    left = [run / ".result.json.0a1b2c3d.new", run / "models" / ".home.safetensors.0a1b2c3d.new", *matrices]
    (run / "matrices").mkdir()
    for file in left:
        file.touch()
    folder = RunFolder.open(run)
    folder.rewind(small())
    (private_folder(folder.states) / "home.safetensors").touch()
    folder.close()
    assert [file for file in left if file.exists()] == matrices[:1]
    assert not folder.states.exists()


PACKAGE = Path(fedhca2.__file__).parent
ENDINGS = (".json", ".jsonl", ".yaml")
NAMES = {value for value in vars(names).values() if isinstance(value, str) and value.endswith(ENDINGS)}


def spelled(path):
    """The names in the texts of a module, except docstrings and other standalone ones."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in alone]
    return {name for name in NAMES if any(name in text for text in texts if isinstance(text, str))}


def test_files_are_named_in_one_package():
    others = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "run_folder"]
    assert {path.name: found for path in others if (found := spelled(path))} == {}
    assert spelled(PACKAGE / "run_folder" / "folder.py") == NAMES != set()
