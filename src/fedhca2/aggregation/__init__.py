"""Aggregation: inner products of rows in, weights out, or columns in, columns out. It knows no models and no tasks."""

from fedhca2.aggregation.aggregator import Aggregator, Blend, Combined, Mixing
from fedhca2.aggregation.answers import is_shared, mixed_rows, mixing_of, renewed_rows, try_aggregator
from fedhca2.aggregation.combining import Combiner, EmrMerging, SignAgreement, TiesMerging, TrimmedMean
from fedhca2.aggregation.common_update import CommonUpdate, Extrapolated, Robust
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
    Graph,
    GroupMean,
    Mean,
    Pull,
    ServerAdam,
    ServerMomentum,
    StepMean,
    Stock,
    Voting,
    clusters_of,
    voting_weights,
)
from fedhca2.aggregation.rows import MappedRow, Measure, Member, Rows
from fedhca2.aggregation.solver import relative_gap
from fedhca2.aggregation.weightings import Weighted

__all__ = [
    "Aggregator",
    "Attentive",
    "Blend",
    "Clustered",
    "Combined",
    "Combiner",
    "CommonUpdate",
    "ConflictAverse",
    "CrossAttention",
    "EmrMerging",
    "Extrapolated",
    "Graph",
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
    "ServerAdam",
    "ServerMomentum",
    "SignAgreement",
    "StepMean",
    "Stock",
    "TiesMerging",
    "TrimmedMean",
    "Voting",
    "Weighted",
    "Weights",
    "attention",
    "clusters_of",
    "conflict_averse",
    "conflict_averse_mixing",
    "conflict_averse_weights",
    "cross_attention",
    "is_shared",
    "mixed_rows",
    "mixing_of",
    "relative_gap",
    "renewed_rows",
    "try_aggregator",
    "voting_weights",
]
