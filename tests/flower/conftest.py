"""Fixtures of the tests over Flower."""

import pytest
from federations import small_experiment


@pytest.fixture
def experiment():
    return small_experiment(rounds=2)


@pytest.fixture
def watchful(monkeypatch):
    """Checks the nodes all the time."""
    monkeypatch.setattr("fedhca2.federation.flower.site_registry.NODES_EVERY", 0.0)
