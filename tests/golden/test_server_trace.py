"""Whole server runs from arrays alone: no model and no data, only the updates of the recorded runs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from array_client import ArrayClient
from fedhca2.federation.server import Server
from fedhca2.messages import Profile
from fedhca2.methods import resolve
from fedhca2.params import Layout, Slot

DATA = np.load(Path(__file__).parent / "data" / "server_trace.npz")
META = json.loads(str(DATA["meta"]))
METHODS = {
    "main": resolve("fedhca2"),
    "homo2": resolve("fedhca2", {"groups": True}),
    "fedavg": resolve("fedavg"),
    "fedper": resolve("fedper"),
}
LEARNED = ("main", "homo2")


def by_client(tag, name):
    """The recorded rows, as one mapping of slots per client."""
    encoders, decoders = (iter(torch.from_numpy(DATA[f"{tag}/{name}/{part}"])) for part in ("encoder", "decoder"))
    return [
        {Slot("encoder"): next(encoders)} | {Slot("decoder", task): next(decoders) for task in client["tasks"]}
        for client in META[tag]["clients"]
    ]


def replay(tag):
    """States after every round, clients' rows after every round, and the update that all encoders were sent."""
    layouts = {
        part: Layout(tuple(META[tag][part][0]), tuple(map(tuple, META[tag][part][1])))
        for part in ("encoder", "decoder")
    }
    clients = []
    for i, (client, rows) in enumerate(zip(META[tag]["clients"], by_client(tag, "init"), strict=True)):
        slot_layouts = {slot: layouts[slot.part] for slot in rows}
        clients.append(ArrayClient(Profile(f"c{i}", client["dataset"], tuple(client["tasks"]), 1, slot_layouts), rows))
    server = Server(METHODS[tag], [client.profile for client in clients])
    state, states, values, shared = server.start(), [], [], []
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
        shared.append(deliveries["c0"][Slot("encoder")].addends[-1].row)
    return states, values, shared


def assert_learned(tag, states, field, suffix, **tolerance):
    """α and β, or from the second round on their momenta."""
    for round, state in enumerate(states):
        if suffix and round == 0:
            continue
        for part, name in (("encoder", "alpha"), ("decoder", "beta")):
            actual = [getattr(state.weights[key], field) for key in sorted(state.weights) if part == key.slot.part]
            recorded = torch.from_numpy(DATA[f"{tag}/r{round}/{name}{suffix}"])
            assert_close(torch.tensor(actual).view(recorded.shape), recorded, **tolerance)


def assert_parameters(tag, values, tolerance):
    for round in (0, META[tag]["rounds"] - 1):
        for actual, expected in zip(values[round], by_client(tag, f"r{round}/new"), strict=True):
            for slot, row in expected.items():
                assert_close(actual[slot], row, rtol=0, atol=tolerance)


@pytest.mark.parametrize("tag", META)
def test_parameters_learned_weights_and_momenta(tag):
    states, values, _ = replay(tag)
    assert_parameters(tag, values, 1e-5)
    if tag in LEARNED:
        assert_learned(tag, states, "value", "", rtol=0, atol=2e-5)
        assert_learned(tag, states, "momentum", "_mom", rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("tag", LEARNED)
def test_with_the_weights_of_the_released_solver_all_agree_to_2e_6(tag, monkeypatch):
    recorded = iter([DATA[f"{tag}/r{round}/w_slsqp"] for round in range(META[tag]["rounds"])])
    monkeypatch.setattr("fedhca2.aggregation.fedhca2.solve", lambda gram, c: next(recorded))
    states, values, shared = replay(tag)
    for round, row in enumerate(shared):
        assert_close(row, torch.from_numpy(DATA[f"{tag}/r{round}/U"]), rtol=0, atol=2e-6)
    assert_learned(tag, states, "value", "", rtol=0, atol=2e-6)
    assert_parameters(tag, values, 2e-6)
