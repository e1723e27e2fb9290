"""How many clients work beside each other on a GPU: as many as pay, measured with turns like those of a round."""

from threading import Lock

import pytest
import torch

from fedhca2.clients import DeviceSlot
from fedhca2.clients.gpu.device import MAX_SLOTS, MIN_STEPS, worthwhile_slots
from fedhca2.experiment import assign_shards, open_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.shelf import Shelf
from fedhca2.messages import Order
from small import SMALL, small

CPU = torch.device("cpu")


class Clock:
    """A clock that only turns move on: those at other slots at the same time."""

    def __init__(self):
        self.now, self.busy, self.lock = 0.0, {}, Lock()

    def __call__(self):
        self.now = max([self.now, *self.busy.values()])
        self.busy.clear()
        return self.now

    def spend(self, where):
        with self.lock:
            self.busy[where] = self.busy.get(where, self.now) + 1


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr("fedhca2.clients.gpu.device.perf_counter", found)
    return found


@pytest.fixture
def chosen(monkeypatch):
    """The number of slots on a GPU of 64 bytes for these turns, of which each takes some bytes for good."""
    free = [64]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 64))

    def choose(turn, takes=0):
        def taking(slot):
            free[0] -= takes
            turn(slot)
            return MIN_STEPS

        return len(worthwhile_slots(DeviceSlot(CPU), [taking] * 2 * MAX_SLOTS, lambda: DeviceSlot(CPU)))

    return choose


def test_turns_that_wait_for_the_gpu_get_all_slots(chosen, clock):
    assert chosen(clock.spend) == MAX_SLOTS


def test_turns_that_wait_for_each_other_get_one(chosen, clock):
    assert chosen(lambda slot: clock.spend("the interpreter")) == 1


def test_slots_that_cannot_pay_are_not_tried(chosen, clock):
    seen = set()

    def turn(slot):
        seen.add(slot)
        for where, count in ((slot, 5), ("the interpreter", 4)):  # two slots are 1.25 times as fast as one
            for _ in range(count):
                clock.spend(where)

    assert chosen(turn) == len(seen) == 2


def test_slots_have_to_fit_into_memory(chosen, clock):
    assert chosen(clock.spend, takes=16) == 1


def test_slots_that_turn_out_not_to_fit_are_left_out(chosen, clock):
    seen = set()

    def turn(slot):
        seen.add(slot)
        if len(seen) > 2:
            raise torch.OutOfMemoryError
        clock.spend(slot)

    assert chosen(turn) == 2


def test_a_client_that_does_not_fit_alone_is_an_error(chosen):
    def turn(slot):
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        chosen(turn)


@pytest.fixture
def shelves(tmp_path):
    """Shelves with the same clients, whose states stay in memory or wait in files."""

    def shelf(room, **changes):
        experiment = small(**changes)
        data = open_data(experiment)
        found = Shelf(
            plan_clients(experiment, data, assign_shards(experiment, data), DeviceSlot(CPU)), tmp_path / "states", room
        )
        found.open()
        return found

    return shelf


@pytest.mark.parametrize("room", [0, 1e12], ids=["in files", "in memory"])
def test_a_trial_takes_steps_and_leaves_no_trace(shelves, room):
    shelf = shelves(room)
    order = Order(0, upload={"encoder": "update"})
    turn = shelf.trial("home", order)
    assert [turn(DeviceSlot(CPU)) for _ in range(2)] == [3, 3]
    shelf.prepare(["home"])
    with shelf.taken("home") as tried:
        found = tried.perform(order).rows
    fresh = shelves(1e12)
    fresh.prepare(["home"])
    with fresh.taken("home") as expected:
        assert all(row.equal(found[slot]) for slot, row in expected.perform(order).rows.items())


def test_a_trial_of_a_large_client_is_short(shelves):
    many = SMALL["data"] | {"indoor": SMALL["data"]["indoor"] | {"train": 4 * MIN_STEPS}}
    assert shelves(1e12, data=many).trial("home", Order(0))(DeviceSlot(CPU)) == MIN_STEPS
