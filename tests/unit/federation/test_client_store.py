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
from fedhca2.federation.client_store import ClientStore
from small_run import SETTINGS, CrashError, Silent, crash, events, resume_small, run_small, same_models, small

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
ASKED = 3  # in a round


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
    with patch.object(Client, "batches", noting(clients)):
        run_small(small(**MANY, checkpoints=IN_FILES), out, counting := Counting(clients))
    return out, counting


def noting(clients):
    """What a client does for its batches, and the client among the others in memory."""
    batches = Client.batches

    def noted(client, *given):
        clients.add(client)
        return batches(client, *given)

    return noted


@pytest.fixture
def crashed(tmp_path_factory):
    """A run that crashed in its third round."""
    out = tmp_path_factory.mktemp("crashed") / "run"
    with pytest.raises(CrashError):
        run_small(small(**MANY, checkpoints=IN_FILES), out, Silent(2, crash))
    return out


@pytest.fixture(scope="module")
def every_checkpoint(tmp_path_factory):
    """The checkpoints of a run that stopped before its end, which removes all but the last."""
    out = tmp_path_factory.mktemp("all") / "run"
    with pytest.raises(CrashError):
        run_small(small(**{**MANY, "rounds": 5}, checkpoints=IN_FILES), out, Silent(4, crash))
    return [out / "checkpoints" / f"round-{round:06d}" for round in range(1, 5)], events(out)


@pytest.mark.parametrize("memory", [{}, {"checkpoints": {**IN_FILES, "memory": ROOM_FOR_TWO}}])
def test_states_in_files_give_the_same_models_as_states_in_memory(in_files, memory, tmp_path):
    run_small(small(**MANY, **memory), tmp_path / "run")
    assert same_models(in_files[0], tmp_path / "run")
    assert events(in_files[0]) == events(tmp_path / "run")


def test_only_clients_at_work_are_in_memory(in_files):
    assert 1 <= max(in_files[1].at_work) <= len(usable_cores())


def test_between_rounds_no_client_is_in_memory(in_files):
    assert in_files[1].between == [0] * MANY["rounds"]


def test_a_checkpoint_writes_the_states_of_those_that_took_part_and_links_the_others(every_checkpoint):
    checkpoints, logged = every_checkpoint
    for round, (before, after) in enumerate(pairwise(checkpoints), 1):
        took_part = {event["client"] for event in logged if event["event"] == "client" and event["round"] == round}
        known = {file.stat().st_ino for file in before.glob("client-*")}
        written = {file.name for file in after.glob("client-*") if file.stat().st_ino not in known}
        assert written == {f"client-{name}.safetensors" for name in took_part}


def test_a_client_that_never_took_part_has_no_state(every_checkpoint):
    checkpoints, _ = every_checkpoint
    assert len(list(checkpoints[0].glob("client-*"))) == ASKED


def test_a_copy_of_an_interrupted_run_ends_as_a_straight_one(in_files, crashed, tmp_path):
    resumed = shutil.copytree(crashed, tmp_path / "copy")
    resume_small(resumed)
    assert same_models(in_files[0], resumed)
    assert events(in_files[0]) == events(resumed)


def test_a_finished_run_leaves_nothing_that_waits(in_files):
    assert [path.name for path in (in_files[0] / "checkpoints").iterdir()] == ["round-000004"]


def test_files_are_copied_where_they_can_have_only_one_name(in_files, tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    run_small(small(**MANY, checkpoints=IN_FILES), tmp_path / "run")
    assert same_models(in_files[0], tmp_path / "run")


class Counter:
    """A client and its plan, which remembers how often it worked."""

    drawn = True

    def __init__(self, name, count=0):
        self.name, self.nbytes, self.count, self.profile = name, 8, count, SimpleNamespace(client=name)

    @property
    def current(self):
        return ClientState({"count": torch.tensor(self.count)}, {})

    def drop_gradients(self): ...

    def build(self):
        return Counter(self.name)

    def rebuild(self, state):
        return Counter(self.name, int(state.tensors["count"]))


def test_while_a_state_is_written_only_its_own_client_waits(tmp_path):
    writing, may_write = Event(), Event()

    def slowly(*given, **named):
        writing.set()
        assert may_write.wait(10)
        return save_state(*given, **named)

    def work(name):
        with store.borrow(name) as client:
            client.count += 1
            return client.count

    store = ClientStore([Counter("a"), Counter("b")], tmp_path / "states", room=8)
    store.open()
    assert [work("a"), work("b"), work("b")] == [1, 1, 2]
    with patch("fedhca2.federation.client_store.save_state", slowly), ThreadPoolExecutor(2) as pool:
        first = pool.submit(work, "a")  # which takes the place of b
        assert writing.wait(10)
        second = pool.submit(work, "b")
        assert work("a") == 3
        assert not second.done()
        may_write.set()
        assert (first.result(10), second.result(10)) == (2, 3)
