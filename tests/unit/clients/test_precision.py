"""Mixed precision on a CPU."""

import pytest
import torch

from fedhca2.messages import Order
from small import SMALL, clients, small


def trained(precision):
    """A client after a round, and its reply."""
    client = clients(small(training={**SMALL["training"], "precision": precision}))["home"]
    return client, client.perform(Order(0, upload={"encoder": "updates"}, evaluate=True))


def test_bf16_on_a_cpu_computes_in_fewer_bits_and_keeps_parameters_whole():
    (_, full), (client, half) = trained("fp32"), trained("bf16")
    assert half.losses != full.losses
    assert half.losses == pytest.approx(full.losses, rel=0.02)
    assert {tensor.dtype for tensor in client.personal.model.parameters()} == {torch.float32}
    assert {row.dtype for row in half.rows.values()} == {torch.float32}
