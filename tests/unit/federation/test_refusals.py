"""A refused run changes no byte and no time in its folder."""

import json
import re
import shutil
from contextlib import contextmanager

import pytest

from fedhca2.data.rendered import write_scenes
from fedhca2.errors import UserError
from fedhca2.federation.run import resume, run
from fedhca2.run_folder.folder import lock_folder
from small_run import SETTINGS, CrashError, Silent, crash, resume_small, run_small, small, tree

pytestmark = pytest.mark.slow
NOWHERE = {"kind": "nyud", "root": "nowhere"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run of each kind; one stopped in its last round, and its baseline had finished."""
    folders = {kind: tmp_path_factory.mktemp("runs") for kind in ("finished", "stopped", "against another")}
    run_small(small(baseline=True, rounds=1), folders["finished"] / "run")
    calls = iter([lambda: None, crash])  # the third round of the baseline, and that of the run
    with pytest.raises(CrashError):
        run_small(small(baseline=True), folders["stopped"] / "run", Silent(2, lambda: next(calls)()))
    local = folders["against another"] / "local"
    run_small(small("local", rounds=1), local)
    run_small(small(rounds=1), local.with_name("run"), baseline=local)
    return folders


def edited(name, old, new):
    def damage(run):
        path = run / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return damage


def cut(pattern):
    """Truncate the last file of this kind."""

    def damage(run):
        path = sorted(run.glob(pattern))[-1]
        path.write_bytes(path.read_bytes()[:-8])

    return damage


def exchanged(run):
    """Replace one client's state with another's."""
    folder = sorted((run / "checkpoints").iterdir())[-1]
    shutil.copy(folder / "client-road.safetensors", folder / "client-shop.safetensors")


def lost_events(run):
    (run / "metrics.jsonl").write_text("")


def nothing(run): ...


LANE = [*SETTINGS["clients"], {"name": "lane", "data": "outdoor", "tasks": ["edge"]}]
SERVER, CLIENT = "checkpoints/round-*/server.safetensors", "checkpoints/round-*/client-road.safetensors"
CHANGES = {  # to a run that stopped, and the message
    "rounds=1": "rounds: expected at least 2, which the run has",
    "rounds=0": "rounds: expected at least 1",
    "seed=1": "seed: expected what the run started with, 0, got 1",
    "method=fedavg": "what the run started with",
    "model.decoder_width=16": "model.decoder_width: ",
    "privacy.clip=1.0": "privacy.clip: expected what",
    "training.optimizer.amsgrad=true": "optimizer.amsgrad: expected what",
    "metrics.semseg=miou_all_classes": "metrics.semseg: expected what",
    "data.outdoor.train=5": "data.outdoor.train: ",
    "round=5": "round: unknown key",
    f"clients={json.dumps(LANE)}": "a data set of its own",
    "devices=[cuda:7]": "devices: 'cuda:7' does not exist",
    "training.batch_size=64": "expected at least training.batch_size = 64",
}
# the run, the fault in its folder, the request, the message
REFUSED = {
    "an edited seed": ("stopped", edited("config.yaml", "seed: 0", "seed: 1"), [], "config.yaml: seed: expected what"),
    "broken YAML": ("stopped", edited("config.yaml", "seed: 0", "seed: [0"), [], "config.yaml: not valid YAML"),
    "a key twice": ("stopped", edited("config.yaml", "seed: 0", "seed: 0\nseed: 0"), [], "'seed' a second time"),
    "a broken partition": ("stopped", cut("partition.json"), [], "partition.json: expected JSON"),
    "a damaged server": ("stopped", cut(SERVER), [], "server.safetensors"),
    "a damaged client": ("stopped", cut(CLIENT), [], "client-road.safetensors"),
    "an exchanged client": ("stopped", exchanged, [], "belongs to another checkpoint"),
    "lost events": ("stopped", lost_events, [], "metrics.jsonl: expected at least"),
    "a damaged baseline": ("stopped", cut(f"baseline/{CLIENT}"), ["rounds=4"], "client-road.safetensors"),
    "a damaged server of the baseline": ("stopped", cut(f"baseline/{SERVER}"), ["rounds=4"], "server.safetensors"),
    "a damaged client before a baseline": ("stopped", cut(CLIENT), ["rounds=4"], "client-road.safetensors"),
    "a finished run": ("finished", nothing, [], "already finished"),
    "a finished run that is damaged": ("finished", cut(SERVER), ["rounds=2"], "server.safetensors"),
    "a finished run with a damaged client": ("finished", cut(CLIENT), ["rounds=2"], "client-road.safetensors"),
    "more rounds than a baseline from elsewhere": ("against another", nothing, ["rounds=2"], "as in the baseline"),
    "a broken baseline from elsewhere": ("against another", cut("baseline.json"), [], "baseline.json: expected JSON"),
} | {change: ("stopped", nothing, [change], said) for change, said in CHANGES.items()}


@contextmanager
def refused(folder, said):
    """Expect an error in this block that changes nothing in a folder."""
    before = tree(folder)
    with pytest.raises(UserError, match=re.escape(said)):
        yield
    assert tree(folder) == before


@pytest.mark.parametrize(("which", "damage", "overrides", "said"), REFUSED.values(), ids=REFUSED)
def test_a_run_that_is_not_resumed_stays_as_it_was(runs, tmp_path, which, damage, overrides, said):
    shutil.copytree(runs[which], tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "run")
    with refused(tmp_path / "run", said):
        resume_small(tmp_path / "run", overrides)


def test_a_run_can_be_resumed_after_a_refusal(runs, tmp_path):
    shutil.copytree(runs["stopped"], tmp_path, dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"rounds: .*at least 2"):
        resume_small(tmp_path / "run", ["rounds=1"])
    with lock_folder(tmp_path / "run"), refused(tmp_path / "run", "in use by another"):
        resume_small(tmp_path / "run")
    assert resume_small(tmp_path / "run").rounds == 3


def test_a_folder_that_is_no_runs_stays_as_it_was(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with refused(tmp_path, "got no config.yaml in it"):
        resume_small(tmp_path)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("archive") / "root"
    write_scenes("nyud", root, 2, 1, (32, 32), seed=0)
    return root


def spoil_image(root):
    """The last one, which is evaluated on."""
    sorted((root / "images").iterdir())[-1].write_bytes(b"no image")


@pytest.mark.parametrize(
    ("spoil", "said"), [(shutil.rmtree, "expected a folder"), (spoil_image, "expected an RGB image")]
)
def test_a_run_whose_images_are_gone_stays_as_it_was(archive, tmp_path, spoil, said):
    shutil.copytree(archive, tmp_path / "archive")
    data = {"indoor": {"kind": "nyud", "root": str(tmp_path / "archive"), "size": [32, 32]}}
    with pytest.raises(CrashError):
        run(small(data=data, clients=SETTINGS["clients"][2:]), tmp_path / "run", watcher=Silent(1, crash))
    spoil(tmp_path / "archive")
    with refused(tmp_path / "run", said):
        resume(tmp_path / "run", watcher=Silent())


NOT_BEGUN = {
    "an encoder that does not exist": ({"model": {"encoder": {"name": "swin_nano"}}}, "model: cannot be built"),
    "weights that are none": ({"model": {"encoder": {"name": "swin_micro", "weights": __file__}}}, "a file of tensors"),
    "weights that are not there": ({"model": {"encoder": {"weights": "nowhere.pth"}}}, "got no file 'nowhere.pth'"),
    "a device that is not there": ({"devices": ["cuda:7"]}, "devices: 'cuda:7' does not exist"),
    "too large a batch": ({"training": {"batch_size": 64}}, "expected at least training.batch_size = 64"),
    "no archive": ({"data": {"indoor": NOWHERE}, "clients": SETTINGS["clients"][2:]}, "got none at nowhere"),
}


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(("changes", "said"), NOT_BEGUN.values(), ids=NOT_BEGUN)
def test_a_run_that_is_not_begun_makes_no_folder(tmp_path, changes, said, exists):
    if exists:
        (tmp_path / "run").mkdir()
    with refused(tmp_path, said):
        run(small(baseline=True, **changes), tmp_path / "run", watcher=Silent())


@pytest.mark.parametrize("name", ["notes.txt", "metrics.jsonl", "result.json", "baseline.json", "flower.json"])
def test_a_folder_with_files_of_others_stays_as_it_was(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with refused(tmp_path, "expected a new or empty folder"):
        run_small(small(), tmp_path)


def test_a_run_with_another_baseline_makes_no_folder(runs, tmp_path):
    with refused(tmp_path / "run", "got different rounds"):
        run_small(small(), tmp_path / "run", baseline=runs["against another"] / "local")
