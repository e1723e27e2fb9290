"""Whole server runs from arrays alone: no model, no data, only what local training added in the recorded runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.federation.server import Server
from fedhca2.messages import Profile, Reply
from fedhca2.methods import resolve
from fedhca2.params import Layout, Slot, add_scaled, layer_products

DATA = np.load(Path(__file__).parent / "data" / "server_trace.npz")
META = json.loads(str(DATA["meta"]))
METHODS = {
    "main": resolve("fedhca2"),
    "homo2": resolve("fedhca2", {"groups": True}),
    "fedavg": resolve("fedavg"),
    "fedper": resolve("fedper"),
}
LEARNED = ("main", "homo2")


class Replayed:
    """A client whose training adds the recorded updates."""

    def __init__(self, profile, rows):
        self.profile, self.rows = profile, rows
        self.remembered = {}

    def train(self, round, deltas, uploads):
        self.start = self.rows
        self.rows = {slot: row + deltas[slot] for slot, row in self.rows.items()}
        sent = {"updates": deltas, "parameters": self.rows}
        rows = {slot: sent[uploads[slot.part]][slot] for slot in self.rows if slot.part in uploads}
        agreement = {}
        for slot, (added, count) in self.remembered.items():
            products = layer_products(added, deltas[slot], self.profile.layouts[slot])
            agreement[slot] = tuple(products.tolist()) if count > 1 else (float(products.sum()),)
        return Reply(self.profile.client, round, rows, agreement)

    def receive(self, deliveries):
        for slot, delivery in deliveries.items():
            zero = torch.zeros_like(self.rows[slot])
            row = {"trained": self.rows[slot], "start": self.start[slot], "nothing": zero}[delivery.base]
            for addend in delivery.addends:
                scale = torch.tensor(addend.scale, dtype=torch.float64)
                row = add_scaled(row, addend.row, scale, self.profile.layouts[slot])
                if addend.remember:
                    self.remembered[slot] = (addend.row, len(addend.scale))
            self.rows = {**self.rows, slot: row}


def by_client(tag, name):
    """The recorded rows, as one mapping of slots per client."""
    encoders, decoders = (iter(torch.from_numpy(DATA[f"{tag}/{name}/{part}"])) for part in ("encoder", "decoder"))
    return [
        {Slot("encoder"): next(encoders)} | {Slot("decoder", task): next(decoders) for task in client["tasks"]}
        for client in META[tag]["clients"]
    ]


def replay(tag):
    """States after every round, and clients' rows after every round."""
    layouts = {
        part: Layout(tuple(META[tag][part][0]), tuple(map(tuple, META[tag][part][1])))
        for part in ("encoder", "decoder")
    }
    clients = []
    for i, (client, rows) in enumerate(zip(META[tag]["clients"], by_client(tag, "init"), strict=True)):
        places = {slot: layouts[slot.part] for slot in rows}
        clients.append(Replayed(Profile(f"c{i}", client["dataset"], tuple(client["tasks"]), 1, places), rows))
    server = Server(METHODS[tag], [client.profile for client in clients])
    state, states, values = server.start(), [], []
    for round in range(META[tag]["rounds"]):
        uploads = METHODS[tag].uploads(round)
        deltas = by_client(tag, f"r{round}/delta")
        replies = [client.train(round, delta, uploads) for client, delta in zip(clients, deltas, strict=True)]
        state, deliveries, record = server.step(state, replies)
        assert not record.refused
        for client in clients:
            client.receive(deliveries[client.profile.client])
        states.append(state)
        values.append([client.rows for client in clients])
    return states, values


def assert_weights(tag, states, tolerance):
    for round, state in enumerate(states):
        keys = sorted(key for key in state.weights if key.endswith("/encoder"))
        alpha = torch.tensor([state.weights[key].value[0] for key in keys])
        assert_close(alpha, torch.from_numpy(DATA[f"{tag}/r{round}/alpha"]), rtol=0, atol=tolerance)
        keys = sorted(key for key in state.weights if "/decoder" in key)
        beta = torch.tensor([state.weights[key].value for key in keys])
        assert_close(beta, torch.from_numpy(DATA[f"{tag}/r{round}/beta"]), rtol=0, atol=tolerance)


def assert_momentum(tag, states, rtol):
    for round, state in enumerate(states[1:], start=1):
        keys = sorted(key for key in state.weights if key.endswith("/encoder"))
        alpha = torch.tensor([state.weights[key].momentum[0] for key in keys])
        assert_close(alpha, torch.from_numpy(DATA[f"{tag}/r{round}/alpha_mom"]), rtol=rtol, atol=1e-6)
        keys = sorted(key for key in state.weights if "/decoder" in key)
        beta = torch.tensor([state.weights[key].momentum for key in keys])
        assert_close(beta, torch.from_numpy(DATA[f"{tag}/r{round}/beta_mom"]), rtol=rtol, atol=1e-6)


def assert_parameters(tag, values, tolerance):
    for round in (0, META[tag]["rounds"] - 1):
        for found, expected in zip(values[round], by_client(tag, f"r{round}/new"), strict=True):
            for slot, row in expected.items():
                assert_close(found[slot], row, rtol=0, atol=tolerance)


@pytest.fixture
def recorded_solver(monkeypatch):
    """The weights of the released solver, in place of ours."""

    def use(tag):
        recorded = iter([DATA[f"{tag}/r{round}/w_slsqp"] for round in range(META[tag]["rounds"])])
        monkeypatch.setattr(sys.modules["fedhca2.aggregation.conflict_averse"], "solve", lambda gram, c: next(recorded))

    return use


@pytest.mark.parametrize("tag", META)
def test_parameters(tag):
    _, values = replay(tag)
    assert_parameters(tag, values, 1e-5)


@pytest.mark.parametrize("tag", LEARNED)
def test_learned_weights(tag):
    states, _ = replay(tag)
    assert_weights(tag, states, 2e-5)


@pytest.mark.parametrize("tag", LEARNED)
def test_momentum(tag):
    states, _ = replay(tag)
    assert_momentum(tag, states, 1e-3)


@pytest.mark.parametrize("tag", LEARNED)
def test_with_the_recorded_solution_parameters_agree_to_2e_6(tag, recorded_solver):
    recorded_solver(tag)
    _, values = replay(tag)
    assert_parameters(tag, values, 2e-6)


@pytest.mark.parametrize("tag", LEARNED)
def test_with_the_recorded_solution_learned_weights_agree_to_2e_6(tag, recorded_solver):
    recorded_solver(tag)
    states, _ = replay(tag)
    assert_weights(tag, states, 2e-6)
