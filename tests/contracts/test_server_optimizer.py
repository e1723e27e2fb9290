"""Optimisers on the server: rounds in plain numpy, and the rows that the server keeps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from array_federation import ArrayFederation, Site
from torch.testing import assert_close

from fedhca2.methods import METHODS, resolve
from fedhca2.params import ENCODER
from fedhca2.run_folder.records import Progress, progress_as_state

SITES = [Site("outdoor", ("semseg",)), Site("outdoor", ("edge",)), Site("indoor", ("depth",))]
NAMES = ("fedavgm", "fedadam", "fedyogi", "fedadagrad")
ROUNDS = 5


def encoders(method):
    """Every round's mean of what clients sent, and the model that they got."""
    federation = ArrayFederation(method, SITES)
    means, models = [], []
    for _ in range(ROUNDS):

        def look(replies):
            means.append(torch.stack([reply.rows[ENCODER] for reply in replies]).double().mean(dim=0).numpy())
            return replies

        federation.round(look)
        models.append(federation.clients[0].rows[ENCODER])
        assert all(client.rows[ENCODER].equal(models[-1]) for client in federation.clients)
    return means, torch.stack(models), federation


def by_numpy(name, means, rate):
    """The models that the papers' formulas give from these means."""
    x, m, v, models = means[0], 0.0, 1e-3**2, [means[0]]
    for mean in means[1:]:
        change = mean - x
        if name == "fedavgm":
            m = 0.9 * m + change
            x = x + rate * m
        else:
            m = 0.9 * m + 0.1 * change
            v = {
                "fedadam": 0.99 * v + 0.01 * change**2,
                "fedyogi": v - 0.01 * change**2 * np.sign(v - change**2),
                "fedadagrad": v + change**2,
            }[name]
            x = x + rate * m / (np.sqrt(v) + 1e-3)
        models.append(x)
    return torch.from_numpy(np.stack(models))


@pytest.mark.parametrize("name", NAMES)
def test_rounds_in_numpy(name):
    settings = {"momentum": 0.9} if name == "fedavgm" else {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
    means, models, _ = encoders(resolve(name, {"rate": 0.05, **settings}))
    assert_close(models.double(), by_numpy(name, means, 0.05), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_server_keeps_as_many_rows_as_declared_whoever_takes_part(name):
    federation = encoders(METHODS[name])[2]
    count = METHODS[name].encoder.keeps_rows
    assert {len(rows) for rows in federation.state.rows.values()} == {count}
    rows_before = federation.state.rows
    federation.round(lambda replies: replies[1:])
    assert federation.state.rows.keys() == rows_before.keys()
    assert {row.dtype for rows in federation.state.rows.values() for row in rows} == {torch.float32}


def test_no_replies_change_no_row_of_the_server_and_huge_ones_leave_it_finite():
    federation = encoders(METHODS["fedadam"])[2]
    rows_before = federation.state.rows
    federation.round(lambda replies: [])
    assert federation.state.rows == rows_before

    def spoilt(replies):
        first = replies[0]
        return [replace(first, rows={slot: row + 1e30 for slot, row in first.rows.items()}), *replies[1:]]

    federation.round(spoilt)
    federation.round()
    assert all(row.isfinite().all() for rows in federation.state.rows.values() for row in rows)


def test_the_server_keeps_rows_of_each_layout():
    wide = Site("indoor", ("depth",), "wide")
    federation = ArrayFederation(METHODS["fedavgm"], [*SITES, wide, wide])
    federation.run(2)
    assert sorted(key.partition("/")[0] for key in federation.state.rows) == ["decoder", "encoder", "encoder"]
    assert len(progress_as_state(Progress(federation.state), {}).tensors) == 6
