"""A run's folder: who can read it, what is left of killed processes, its checkpoints, and the names of its files."""

import ast
import errno
import hashlib
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import fedhca2
from fedhca2.errors import UserError
from fedhca2.messages import Addend, Delivery
from fedhca2.params import Slot
from fedhca2.run_folder import folder as names
from fedhca2.run_folder.records import (
    Checkpoints,
    Progress,
    ServerState,
    SlotKey,
    progress_as_state,
    progress_from_state,
)
from fedhca2.run_folder.writer import RunFolder
from fedhca2.whole_files import ORDINARY, PRIVATE, private_folder, put_in_place, write_whole
from full_disk import files_of_at_most
from small_run import small


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
    """The record of a run obeys the umask."""
    found = modes(run)
    own = {name: found.pop(name) for name in list(found) if name.split("/")[0] in ("checkpoints", "models", "samples")}
    assert len(own) == 7
    assert all(mode == (0o700 if (run / name).is_dir() else 0o600) for name, mode in own.items()), own
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


ENCODER, EDGE = Slot("encoder"), Slot("decoder", "edge")
SHARED = torch.randn(5, generator=torch.Generator().manual_seed(0))
PENDING = {
    "a": {ENCODER: Delivery("trained", (Addend(SHARED, (0.1,), True),))},
    "b": {
        ENCODER: Delivery("trained", (Addend(SHARED, (0.3,), True),)),
        EDGE: Delivery("start", (Addend(2 * SHARED, (0.1, 1 / 3)),)),
    },
}
NOTES = {"events": 7}
EXPERIMENT = small().to_dict()


def nobody(folder):
    """The clients of a fleet without any."""
    return {}


def progress(round=1):
    return Progress(ServerState(round, shares={SlotKey("a", ENCODER): (1.0, 1 / 3)}), PENDING)


def saved(tmp_path, rounds=(1,), keep=2):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for round in rounds:
        checkpoints.save(progress(round), nobody, EXPERIMENT, NOTES)
        checkpoints.prune(keep)
    return checkpoints


def test_a_checkpoint_is_restored_and_stores_a_shared_row_once(tmp_path):
    found = saved(tmp_path).latest()
    assert (found.progress.state, found.notes, found.experiment.to_dict()) == (progress().state, NOTES, EXPERIMENT)
    pending = found.progress.pending
    assert pending["a"][ENCODER].addends[0].row is pending["b"][ENCODER].addends[0].row
    delivery = pending["b"][EDGE]
    assert (delivery.base, delivery.addends[0].scale) == ("start", (0.1, 1 / 3))
    assert_close(delivery.addends[0].row, 2 * SHARED, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("content", "numel", "dtype", "fault"),
    [
        (range(8), 8, "float32", ""),
        (range(7), 8, "float32", "expected a row with the content of its name"),
        *((range(8), 8, dtype, f"values of {dtype}, got 32 bytes") for dtype in ("nosuch", "load", "float64", None)),
        *((range(8), numel, "float32", f"{numel} values of") for numel in (2, 10**6, -1, "8")),
    ],
)
def test_rows_in_files_of_an_older_checkpoint_are_read_and_checked(tmp_path, content, numel, dtype, fault):
    row = torch.arange(8.0)
    name = f"row-{hashlib.blake2b(row.numpy().tobytes(), digest_size=16).hexdigest()}"
    (tmp_path / name).write_bytes(torch.tensor([*content], dtype=torch.float32).numpy().tobytes())
    state = progress_as_state(Progress(pending={"a": {ENCODER: Delivery("nothing", (Addend(row),))}}), {})
    (addend,) = state.values["pending"]["a"]["encoder"]["addends"]
    addend |= {"file": name, "numel": numel, "dtype": dtype}
    with pytest.raises(ValueError, match=fault) if fault else nullcontext():
        found = progress_from_state(state, tmp_path).pending["a"][ENCODER].addends[0].row
        assert found.equal(row)


@pytest.mark.parametrize("first", [1, 999_997])
def test_the_latest_checkpoints_are_kept(tmp_path, first):
    assert Checkpoints(tmp_path / "checkpoints").latest() is None
    rounds = range(first, first + 5)
    assert saved(tmp_path, rounds, keep=2).latest().progress.state.round == rounds[-1]
    found = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert found == {f"round-{round:06d}" for round in rounds[-2:]}


def test_only_its_owner_can_look_into_a_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir(mode=0o755)  # as an earlier version created it
    saved(tmp_path)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "checkpoints").rglob("*")}
    assert (modes, (tmp_path / "checkpoints").stat().st_mode & 0o777) == ({0o700, 0o600}, 0o700)


@pytest.mark.parametrize(
    "name", ["round-000003.bak", "round-3", "round-000003 copy", ".round-000003", "round-", ".new"]
)
def test_a_copy_under_another_name_is_no_checkpoint(tmp_path, name):
    checkpoints = saved(tmp_path)
    shutil.copytree(tmp_path / "checkpoints" / "round-000001", tmp_path / "checkpoints" / name)
    assert checkpoints.latest().path.name == "round-000001"


def test_a_copy_under_another_rounds_name_is_refused(tmp_path):
    checkpoints = saved(tmp_path)
    shutil.copytree(tmp_path / "checkpoints" / "round-000001", tmp_path / "checkpoints" / "round-000003")
    with pytest.raises(UserError, match=r"round-000003: expected round 3, got 1; remove .*round-000003"):
        checkpoints.latest()


def test_a_damaged_checkpoint_is_refused_with_what_to_do(tmp_path):
    checkpoints = saved(tmp_path, [1, 2])
    file = tmp_path / "checkpoints" / "round-000002" / "server.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"remove .*round-000002 to continue from the checkpoint before it"):
        checkpoints.latest()


def small_disk():
    return files_of_at_most(100)


def read_only():
    return patch.object(Path, "mkdir", side_effect=OSError(errno.EROFS, "Read-only file system", "checkpoints/.new"))


@pytest.mark.parametrize(("fails", "said"), [(small_disk, "File too large"), (read_only, "Read-only file system")])
def test_a_checkpoint_that_cannot_be_written_loses_no_earlier_one(tmp_path, fails, said):
    checkpoints = saved(tmp_path)
    with fails(), pytest.raises(OSError, match=said):
        checkpoints.save(progress(2), nobody, EXPERIMENT, NOTES)
    assert checkpoints.latest().progress.state.round == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["round-000001"]
