"""The methods as Flower strategies, for your own ServerApp and ClientApp with your own model and training loop."""

from fedhca2.experiment.settings import GuardBounds
from fedhca2.flower.client import FlowerClient, LocalRound
from fedhca2.flower.strategy import Federated, FedHCA2

__all__ = ["FedHCA2", "Federated", "FlowerClient", "GuardBounds", "LocalRound"]
