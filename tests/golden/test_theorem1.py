"""Theorem 1 (supplementary, appendix A): what joint training does beyond averaging, measured and predicted.

E[Δθ_MTL − N·Δθ_FL] over the shuffles of the batches is (η²/2) Σ_{p≠q} Σ_{i≠j} H_i^(p) g_j^(q) up to O(η³).
"""

from itertools import permutations

import pytest
import torch

from fedhca2.aggregation import Mean, Member, Rows
from fedhca2.params import Layout

TASKS, BATCHES, WIDTH = 3, 3, 4


class Problem:
    """A tanh encoder shared by linear decoders, one per task, on a few batches."""

    def __init__(self, seed):
        rng = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(BATCHES, 5, 3, generator=rng, dtype=torch.float64)
        self.targets = torch.randn(BATCHES, TASKS, 5, generator=rng, dtype=torch.float64)
        self.encoder = torch.randn(3 * WIDTH, generator=rng, dtype=torch.float64)
        self.decoders = torch.randn(TASKS, WIDTH, generator=rng, dtype=torch.float64)

    def loss(self, encoder, decoder, task, batch):
        hidden = torch.tanh(self.inputs[batch] @ encoder.view(3, WIDTH))
        return (hidden @ decoder - self.targets[batch, task]).square().mean()

    def gradients(self, encoder, decoder, task, batch):
        encoder, decoder = encoder.clone().requires_grad_(), decoder.clone().requires_grad_()
        return torch.autograd.grad(self.loss(encoder, decoder, task, batch), (encoder, decoder))

    def jointly(self, order, rate, train_decoders):
        encoder, decoders = self.encoder, self.decoders
        for batch in order:
            gradients_of_tasks = [self.gradients(encoder, decoders[task], task, batch) for task in range(TASKS)]
            encoder = encoder - rate * sum(gradient for gradient, _ in gradients_of_tasks)
            if train_decoders:
                decoders = decoders - rate * torch.stack([gradient for _, gradient in gradients_of_tasks])
        return encoder - self.encoder

    def apart(self, order, rate, train_decoders):
        encoders = []
        for task in range(TASKS):
            encoder, decoder = self.encoder, self.decoders[task]
            for batch in order:
                of_encoder, of_decoder = self.gradients(encoder, decoder, task, batch)
                encoder = encoder - rate * of_encoder
                decoder = decoder - rate * of_decoder if train_decoders else decoder
            encoders.append(encoder - self.encoder)
        return encoders

    def predicted(self, rate):
        first = {
            (i, p): self.gradients(self.encoder, self.decoders[i], i, p)[0]
            for i in range(TASKS)
            for p in range(BATCHES)
        }
        total = torch.zeros_like(self.encoder)
        for i, p in first:
            others = sum(gradient for (j, q), gradient in first.items() if j != i and q != p)
            encoder = self.encoder.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self.loss(encoder, self.decoders[i], i, p), encoder, create_graph=True)
            total += torch.autograd.grad(gradient @ others, encoder)[0]
        return rate**2 / 2 * total


def averaged(updates):
    """The mean as the server computes it, kept in float64."""
    members = [Member(str(i), "") for i in range(len(updates))]
    layout = Layout(("encoder.weight",), ((len(updates[0]),),))
    rows = Rows(members, layout, updates)
    (blend,) = Mean().mixing(rows.products("nothing"), members, layout).blends
    return blend.weights[0] @ torch.stack(updates)


def ratio(problem, rate, train_decoders):
    """Measured over predicted, along the predicted direction."""
    orders = list(permutations(range(BATCHES)))
    measured = sum(
        problem.jointly(order, rate, train_decoders) - TASKS * averaged(problem.apart(order, rate, train_decoders))
        for order in orders
    ) / len(orders)
    predicted = problem.predicted(rate)
    return float(measured @ predicted / (predicted @ predicted))


@pytest.mark.parametrize("train_decoders", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_measured_difference_tends_to_the_predicted_one_linearly(seed, train_decoders):
    problem = Problem(seed)
    near, far = (abs(ratio(problem, rate, train_decoders) - 1) for rate in (1e-4, 1e-3))
    assert far < 0.01
    assert near == pytest.approx(far / 10, rel=0.1)
