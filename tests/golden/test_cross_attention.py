"""Eq. 12-14 against the released code: attention, decoders after a step, and the gradient of β."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.aggregation import Member, Rows, cross_attention
from fedhca2.methods import CrossAttention
from fedhca2.params import Layout, add_scaled, layer_products

DATA = np.load(Path(__file__).parent / "data" / "cross_attention.npz")
META = json.loads(str(DATA["meta"]))
STEPS = [("small_realistic", "brand"), *(("small_K2", b) for b in ("b0", "b0p1", "b1", "brand"))]


def array(name):
    return torch.from_numpy(DATA[name])


def layout_of(tag):
    return Layout(tuple(META[tag]["names"]), tuple(map(tuple, META[tag]["shapes"])))


def attended(tag):
    layout = layout_of(tag)
    updates = list(array(f"{tag}/delta"))
    members = [Member(str(i), "") for i in range(len(updates))]
    rows = Rows(members, layout, updates)
    (blend,) = CrossAttention().mixing(rows.products("rows"), members, layout).blends
    return blend.weights, rows.mix(blend.weights)


@pytest.mark.parametrize(("tag", "b"), STEPS)
def test_decoders_after_a_step(tag, b):
    _, mixed = attended(tag)
    beta = array(f"{tag}/{b}/beta").double().clamp(0, 1)
    trained = array(f"{tag}/last") + array(f"{tag}/delta")
    actual = [
        add_scaled(row, added, scale, layout_of(tag)) for row, added, scale in zip(trained, mixed, beta, strict=True)
    ]
    assert_close(torch.stack(actual), array(f"{tag}/{b}/out"), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tag", META)
def test_attention_its_pure_function_and_the_gradient_of_beta(tag):
    weights, mixed = attended(tag)
    assert_close(weights, array(f"{tag}/attn"), rtol=1e-6, atol=1e-7)
    layout, beta = layout_of(tag), array(f"{tag}/brand/beta")
    pure = torch.cat([cross_attention(piece) for piece in array(f"{tag}/delta").split(layout.sizes, dim=1)], dim=1)
    assert_close(torch.stack(mixed), pure, rtol=1e-6, atol=1e-7)
    outer = array(f"{tag}/brand/gout")
    products = [layer_products(added, row, layout) for added, row in zip(mixed, outer, strict=True)]
    inside = (beta >= 0) & (beta <= 1)
    assert_close(torch.stack(products) * inside, array(f"{tag}/brand/grad_beta").double(), rtol=1e-4, atol=1e-6)
