"""Many clients, of which few work at a time: the others' states wait in files."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event
from types import SimpleNamespace
from unittest.mock import patch
from weakref import WeakSet

import pytest
import torch

from fedhca2.clients import Client, ClientState, save_state
from fedhca2.cores import usable_cores
from fedhca2.federation.in_process import ClientQueue, ClientStore
from small_run import SETTINGS, Silent, events, record_clients, resume_small, run_small, same_runs, small

pytestmark = pytest.mark.slow

MANY = {
    "rounds": 4,
    "evaluate_every": 0,
    "participation": {"fraction": 0.25},
    "data": {"outdoor": {**SETTINGS["data"]["outdoor"], "partition": {"kind": "draws", "share": 0.5}}},
    "clients": [{"data": "outdoor", "split": ["semseg", "sal"], "copies": 6}],
}
IN_FILES = {"every": 1, "keep": 9, "memory": 0}
ROOM_FOR_TWO = 2e-4  # GB
CHOSEN = 3  # in a round


class Counting(Silent):
    """Counts the clients in memory whenever one has trained on a batch, and between rounds."""

    def __init__(self, clients):
        super().__init__()
        self.clients, self.at_work, self.between = clients, [], []

    def batch(self, *_):
        self.at_work.append(len(self.clients))

    def aggregated(self, *_):
        self.between.append(len(self.clients))


@pytest.fixture(scope="module")
def in_files(tmp_path_factory):
    """A run whose states are all in files, and how many clients were in memory meanwhile."""
    out, clients = tmp_path_factory.mktemp("files") / "run", WeakSet()
    with patch.object(Client, "batches", record_clients(clients, Client.batches)):
        run_small(small(**MANY, checkpoints=IN_FILES), out, counting := Counting(clients))
    return out, counting


@pytest.fixture
def crashed(once):
    """A run that crashed in its last round. Its end would have removed all checkpoints but one."""
    return once(small(**MANY, checkpoints=IN_FILES), MANY["rounds"] - 1)


def no_links(*_):
    raise OSError(errno.EPERM, "files can have only one name here")


TWO = {**IN_FILES, "memory": ROOM_FOR_TWO}


@pytest.mark.parametrize(("checkpoints", "link"), [({}, os.link), (TWO, os.link), (IN_FILES, no_links)])
def test_states_in_files_give_the_same_models_as_states_in_memory(in_files, tmp_path, monkeypatch, checkpoints, link):
    monkeypatch.setattr(os, "link", link)
    run_small(small(**MANY, checkpoints=checkpoints), tmp_path / "run")
    assert same_runs(in_files[0], tmp_path / "run")


def test_only_clients_at_work_are_in_memory_and_none_between_rounds(in_files):
    assert 1 <= max(in_files[1].at_work) <= len(usable_cores())
    assert in_files[1].between == [0] * MANY["rounds"]


def test_a_checkpoint_writes_the_states_of_those_that_took_part_and_links_the_others(crashed):
    checkpoints = sorted((crashed / "checkpoints").glob("round-*"))
    assert len(list(checkpoints[0].glob("client-*"))) == CHOSEN  # the others have no state yet
    for round, (before, after) in enumerate(pairwise(checkpoints), 1):
        logged = [event for event in events(crashed) if event["event"] == "client"]
        took_part = {event["client"] for event in logged if event["round"] == round}
        before_ids = {file.stat().st_ino for file in before.glob("client-*")}
        written = {file.name for file in after.glob("client-*") if file.stat().st_ino not in before_ids}
        assert written == {f"client-{name}.safetensors" for name in took_part}


def test_a_copy_of_an_interrupted_run_ends_as_a_straight_one(in_files, crashed, tmp_path):
    resumed = shutil.copytree(crashed, tmp_path / "copy")
    resume_small(resumed)
    assert same_runs(in_files[0], resumed)
    assert [path.name for path in (resumed / "checkpoints").iterdir()] == ["round-000004"]  # and nothing that waits


def slot(captures, *kinds):
    return SimpleNamespace(captures=captures, kinds=set(kinds))


@pytest.mark.parametrize(
    ("waiting", "own", "other", "order"),
    [
        (["a-1", "b-1"], slot(False, "b"), (), ["a-1", "b-1", None]),  # on a CPU, as they come
        (["a-1", "b-1", "a-2", "b-2"], slot(True, "b"), (), ["b-1", "b-2", "a-1", "a-2"]),  # a GPU: captured first
        (["a-1", "b-1"], slot(True), slot(True, "a"), ["b-1", "a-1"]),  # then those that no other slot knows
    ],
)
def test_the_next_client_has_the_most_work_or_a_step_that_is_captured_already(waiting, own, other, order):
    queue = ClientQueue(waiting, {name: name[0] for name in waiting})
    assert [queue.next(own, [own, other] if other else [own]) for _ in order] == order


class Counter:
    """A client and its plan, which remembers how often it worked."""

    def __init__(self, name, count=0):
        self.name, self.nbytes, self.count, self.profile = name, 8, count, SimpleNamespace(client=name)

    @property
    def current(self):
        return ClientState({"count": torch.tensor(self.count)}, {})

    def drop_gradients(self): ...

    def build(self, state):
        return Counter(self.name, int(state.tensors["count"]) if state else 0)


def test_while_a_state_is_written_only_its_own_client_waits(tmp_path):
    writing, may_write = Event(), Event()

    def slowly(*args, **options):
        writing.set()
        assert may_write.wait(10)
        return save_state(*args, **options)

    def work(name):
        with store.borrow(name) as client:
            client.count += 1
            return client.count

    store = ClientStore([Counter("a"), Counter("b")], tmp_path / "states", room=8)
    store.open()
    assert [work("a"), work("b"), work("b")] == [1, 1, 2]
    with patch("fedhca2.federation.in_process.save_state", slowly), ThreadPoolExecutor(2) as pool:
        first = pool.submit(work, "a")  # which takes the place of b
        assert writing.wait(10)
        second = pool.submit(work, "b")
        assert work("a") == 3
        assert not second.done()
        may_write.set()
        assert (first.result(10), second.result(10)) == (2, 3)
