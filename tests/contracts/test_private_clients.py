"""Clipping and noise work with every method."""

import pytest
import torch

from fedhca2.federation.guard import Guard
from fedhca2.federation.server import Server
from fedhca2.messages import Order
from small import MECHANISMS, clients, small

CLIP, NOISE = 0.01, 0.02


def what_the_server_knows(client, deliveries):
    """Rows by slot: the initial ones, then what a client sent last or was sent instead."""
    rows = dict(client.exchange.published) or client.rows(client.layouts)
    if client.objective.anchor != "received":
        for slot, delivery in deliveries.items():
            if delivery.base == "nothing":
                rows[slot] = sum(addend.scale[0] * addend.row for addend in delivery.addends)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("method", MECHANISMS)
def test_every_method_takes_part_with_clipped_and_noised_rows(method):
    experiment = small(method=method, privacy={"clip": CLIP, "noise": NOISE})
    members = clients(experiment)
    server = Server(experiment.resolved_method, [client.profile for client in members.values()])
    state, deliveries = server.start(), {name: {} for name in members}
    for number in range(2):
        uploads = experiment.resolved_method.uploads(number)
        published = {name: what_the_server_knows(client, deliveries[name]) for name, client in members.items()}
        replies = {
            name: client.perform(Order(number, deliveries[name], upload=uploads)) for name, client in members.items()
        }
        state, sent, record = Guard(server).step(state, replies.values())
        deliveries = {name: sent.get(name, {}) for name in members}
        assert record.refused == {}
        for name, reply in replies.items():
            changes = [
                row if uploads[slot.part] == "updates" else row - published[name][slot]
                for slot, row in reply.rows.items()
            ]
            numel = sum(change.numel() for change in changes)
            length = float(torch.cat(changes).norm()) if changes else 0.0
            assert length <= CLIP * (1 + 1.1 * NOISE * numel**0.5)
