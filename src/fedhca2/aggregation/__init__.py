"""Aggregation: inner products of rows in, mixing weights out. It knows no models and no tasks."""

from fedhca2.aggregation.aggregator import (
    Aggregator,
    Blend,
    Measure,
    Member,
    Mixing,
    is_shared,
    mixing_of,
    try_aggregator,
)
from fedhca2.aggregation.common_update import CommonUpdate, Robust
from fedhca2.aggregation.fedhca2 import (
    ConflictAverse,
    CrossAttention,
    HyperWeights,
    Weights,
    attention,
    conflict_averse,
    conflict_averse_mixing,
    conflict_averse_weights,
    cross_attention,
)
from fedhca2.aggregation.means import (
    Attentive,
    Clustered,
    GroupMean,
    Mean,
    Pull,
    Voting,
    attentive_weights,
    clusters_of,
    group_weights,
    mean_weights,
    pull_weights,
    voting_weights,
)
from fedhca2.aggregation.rows import MappedRow, Rows
from fedhca2.aggregation.solver import relative_gap
from fedhca2.aggregation.weightings import Weighted

__all__ = [
    "Aggregator",
    "Attentive",
    "Blend",
    "Clustered",
    "CommonUpdate",
    "ConflictAverse",
    "CrossAttention",
    "GroupMean",
    "HyperWeights",
    "MappedRow",
    "Mean",
    "Measure",
    "Member",
    "Mixing",
    "Pull",
    "Robust",
    "Rows",
    "Voting",
    "Weighted",
    "Weights",
    "attention",
    "attentive_weights",
    "clusters_of",
    "conflict_averse",
    "conflict_averse_mixing",
    "conflict_averse_weights",
    "cross_attention",
    "group_weights",
    "is_shared",
    "mean_weights",
    "mixing_of",
    "pull_weights",
    "relative_gap",
    "try_aggregator",
    "voting_weights",
]
