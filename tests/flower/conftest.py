"""Fixtures of the tests over Flower."""

import pytest
from federations import Federation, small_experiment

REGISTRY = "fedhca2.federation.flower.site_registry"


@pytest.fixture
def experiment():
    return small_experiment(rounds=2)


@pytest.fixture
def federation(experiment, tmp_path):
    """Makes a grid, the sites behind it, and the fleet in front of them, which has not met them."""

    def make(**terms):
        found = Federation(experiment, tmp_path)
        return found.grid, found.sites, found.fleet(**terms)

    return make


@pytest.fixture
def watchful(monkeypatch):
    """Checks the nodes all the time."""
    monkeypatch.setattr(f"{REGISTRY}.NODES_EVERY", 0.0)


@pytest.fixture
def lost_after(monkeypatch):
    """Sets after how many seconds a message without an answer is taken for lost."""
    return lambda seconds: monkeypatch.setattr(f"{REGISTRY}.LOST_AFTER", seconds)
