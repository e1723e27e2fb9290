"""MaT-FL's clustering against its released code, through the streamed inner products."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.aggregation import Clustered, Member, Rows
from fedhca2.params import Layout

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
