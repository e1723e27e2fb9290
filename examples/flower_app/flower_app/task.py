"""The clients' data, model and training loop: replace them with yours."""

import torch
from torch import nn

CLIENTS = {"home": ("depth", "edge"), "ward": ("depth",), "street": ("edge",)}
WIDTH = 16


def load_data(client, samples=256, seed=0):
    """Waves over 16 points, with their heights as depth, and whether they rise as edge."""
    rng = torch.Generator().manual_seed(seed * 100 + list(CLIENTS).index(client))
    points = torch.linspace(0, 6, 16)
    phase, rate = torch.rand(2, samples, 1, generator=rng)
    clean = torch.sin((1 + rate) * points + 6 * phase)
    labels = {"depth": clean, "edge": (clean.diff(dim=1, append=clean[:, -1:]) > 0).float()}
    noisy = clean + 0.3 * torch.randn(clean.shape, generator=rng)
    return noisy, {task: labels[task] for task in CLIENTS[client]}


class Model(nn.Module):
    """A backbone, and a decoder and a head for each task."""

    def __init__(self, tasks, seed=0):
        super().__init__()
        torch.manual_seed(seed)  # all clients start from the same backbone
        self.backbone = nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.decoders = nn.ModuleDict({task: nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for task in tasks})
        self.heads = nn.ModuleDict({task: nn.Linear(WIDTH, 16) for task in tasks})

    def forward(self, x):
        """The output of every task."""
        features = self.backbone(x)
        return {task: self.heads[task](self.decoders[task](features).relu()) for task in self.decoders}


LOSSES = {"depth": nn.functional.mse_loss, "edge": nn.functional.binary_cross_entropy_with_logits}


def losses(model, x, labels):
    """The loss of every task."""
    return {task: LOSSES[task](output, labels[task]) for task, output in model(x).items()}


def train(model, data, pull, steps=20):
    """Train, with the term that some methods add; returns the last losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        found = losses(model, *data)
        optimizer.zero_grad()
        (sum(found.values()) + pull()).backward()
        optimizer.step()
    return {task: loss.item() for task, loss in found.items()}


@torch.no_grad()
def test(model, data):
    """The losses on other data."""
    return {f"{task} loss": loss.item() for task, loss in losses(model, *data).items()}
