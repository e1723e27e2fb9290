"""What happens to the other clients when one fails, or when somebody interrupts a run."""

import gc
import signal
from copy import copy
from dataclasses import replace
from threading import Event, enumerate, main_thread
from unittest.mock import patch
from weakref import WeakSet

import pytest
import torch

from fedhca2.clients import Client, DeviceSlot
from fedhca2.clients.evaluation import look_ahead, mean_loss, recalibrate
from fedhca2.data.batches import Batches
from fedhca2.federation.in_process import InProcess
from fedhca2.messages import Order
from small_run import SETTINGS, CrashError, Silent, clients_of, record_clients, run_small, small

LONG = 5_000  # images or epochs, which would take minutes
PATIENCE = 60.0
EVERYTHING = {
    "training": lambda client: client.perform(Order(0)),
    "evaluating": Client.evaluate,
    "measuring losses": mean_loss,
    "looking ahead": lambda client: look_ahead(client, {}),
    "recalibrating": lambda client: recalibrate(client.personal.model, client.batches(0)),
}


def announced(batches, began):
    """Very many images, which announce that they are read."""
    data = copy(batches.data)

    def load(index, tasks):
        began.set()
        return batches.data.load(index, tasks)

    data.load = load
    return Batches(data, [0] * LONG, batches.tasks, batch_size=2)


@pytest.fixture
def began():
    return Event()


@pytest.fixture
def busy(began):
    """A client with very many images."""
    client = clients_of(small())["road"]
    client.personal.model.layer = torch.nn.BatchNorm2d(1)  # that can be recalibrated
    images = announced(client.data.val, began)
    client.data = replace(client.data, train=images, val=images, steps=LONG)
    return client


@pytest.fixture
def other():
    return clients_of(small())["shop"]


@pytest.fixture
def fleet(busy, other):
    return InProcess([busy, other], [DeviceSlot(torch.device("cpu")) for _ in range(2)])


@pytest.mark.parametrize("kind", EVERYTHING)
def test_when_one_client_fails_another_stops_after_its_batch(fleet, busy, other, began, kind):
    to_the_end = []

    def work(client):
        if client.name == busy.name:
            EVERYTHING[kind](client)
            to_the_end.append(client.name)
        assert began.wait(PATIENCE)
        raise CrashError

    with pytest.raises(CrashError):
        fleet.each([busy.name, other.name], work)
    assert not to_the_end
    assert fleet.each([other.name], Client.evaluate)[other.name]  # who can work again


def test_ctrl_c_stops_clients_after_their_batch(fleet, busy, other, began):
    def work(client):
        if client.name == busy.name:
            client.perform(Order(0))
        assert began.wait(PATIENCE)
        while not client.device_slot.stop.is_set():  # Python drops an interrupt during a callback of its own
            signal.pthread_kill(main_thread().ident, signal.SIGINT)
            client.device_slot.stop.wait(20)

    with pytest.raises(KeyboardInterrupt):
        fleet.each([busy.name, other.name], work)


class Failing(Silent):
    """Raises an error for one client when another one has trained on a batch."""

    def __init__(self, error):
        super().__init__()
        self._error, self._began = error, Event()

    def batch(self, client, *_):
        if client == "shop":
            self._began.set()
        elif client == "road":
            assert self._began.wait(PATIENCE)
            raise self._error


@pytest.mark.parametrize("error", [CrashError, KeyboardInterrupt])
def test_a_failed_run_leaves_no_threads_and_no_states(tmp_path, error):
    clients, before, out = WeakSet(), set(enumerate()), tmp_path / "run"
    experiment = small(clients=[{**client, "epochs": LONG} for client in SETTINGS["clients"]])
    cores = patch("fedhca2.federation.in_process.usable_cores", lambda: [0, 1, 2])
    recorded = patch.object(Client, "batches", record_clients(clients, Client.batches))
    with cores, recorded, pytest.raises(error) as failed:  # which keeps what its frames refer to
        run_small(experiment, out, Failing(error))
    gc.collect()
    assert (failed.type, set(enumerate()) - before, list(out.glob("checkpoints/*"))) == (error, set(), [])
    assert len(clients) <= 1
    run_small(small(rounds=1), tmp_path / "again")  # in the same process
    assert (tmp_path / "again" / "result.json").exists()
