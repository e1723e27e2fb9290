"""Experiments: config files, their checks, and what is built from them."""

from fedhca2.experiment.build import OpenData, Shard, assign_shards, build_client, build_clients, open_data
from fedhca2.experiment.clients import ClientSpec
from fedhca2.experiment.errors import ConfigError
from fedhca2.experiment.experiment import Experiment

__all__ = [
    "ClientSpec",
    "ConfigError",
    "Experiment",
    "OpenData",
    "Shard",
    "assign_shards",
    "build_client",
    "build_clients",
    "open_data",
]
