"""MaT-FL's clustering against its released code, through the streamed inner products."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.aggregation import Member, Rows
from fedhca2.federation.server import Server
from fedhca2.messages import Profile, Reply
from fedhca2.methods import Clustered, resolve
from fedhca2.params import Layout, Slot

DATA = np.load(Path(__file__).parent / "data" / "matfl.npz")


@pytest.mark.parametrize("clients", [6, 12])
@pytest.mark.parametrize("clusters", [2, 3])
def test_mixing_weights_are_those_of_the_released_code(clients, clusters):
    theta = torch.from_numpy(DATA[f"n{clients}/theta"])
    layout = Layout(("p0", "p1", "p2"), ((7, 5), (11,), (3, 2, 2)))
    members = [Member(str(i), "") for i in range(clients)]
    products = Rows(members, layout, list(theta)).products("differences")
    (blend,) = Clustered(clusters=clusters).mixing(products, members, layout).blends
    expected = torch.from_numpy(DATA[f"n{clients}/scores_cluster{clusters}"])
    assert_close(blend.weights[list(blend.gets)].float(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("clients", [6, 12])
def test_running_statistics_are_mixed_with_the_parameters(clients):
    """The released code has both in one vector: here its first tensor is sent as running statistics."""
    theta = torch.from_numpy(DATA[f"n{clients}/theta"]).float()
    norms, own = Slot("encoder_norms"), Slot("encoder")
    layouts = {norms: Layout(("p0",), ((7, 5),)), own: Layout(("p1", "p2"), ((11,), (3, 2, 2)))}
    names = [f"c{i:02}" for i in range(clients)]
    method = resolve("matfl", {"batch_norm": "average"})
    server = Server(method, [Profile(name, "", ("edge",), 1, layouts) for name in names])
    split = layouts[norms].numel
    replies = [Reply(name, 0, {norms: row[:split], own: row[split:]}) for name, row in zip(names, theta, strict=True)]
    _, deliveries, _ = server.step(server.start(), replies)
    actual = torch.stack([torch.cat([deliveries[name][slot].addends[0].row for slot in layouts]) for name in names])
    assert_close(actual, torch.from_numpy(DATA[f"n{clients}/scores_cluster2"]) @ theta, rtol=1e-5, atol=1e-6)
