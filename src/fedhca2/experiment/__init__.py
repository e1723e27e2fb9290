"""Experiments: config files, their checks, and building clients from them."""

from fedhca2.experiment.clients import ClientSpec
from fedhca2.experiment.experiment import Experiment
from fedhca2.experiment.settings import Diagnostics, SecureAggregation
from fedhca2.experiment.shards import (
    OpenData,
    Shard,
    assign_shards,
    class_names,
    new_shard,
    open_data,
    partition_as_data,
    require_usable,
    without_broken,
)
