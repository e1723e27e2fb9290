"""Methods as values, how a config names them, and everything needed to write your own."""

from fedhca2.aggregation import (
    Aggregator,
    Attentive,
    Blend,
    Clustered,
    CommonUpdate,
    ConflictAverse,
    CrossAttention,
    GroupMean,
    HyperWeights,
    Mean,
    Measure,
    Member,
    Mixing,
    Pull,
    Robust,
    Voting,
    Weighted,
)
from fedhca2.messages import Kind
from fedhca2.methods.catalogue import METHODS
from fedhca2.methods.method import Method
from fedhca2.methods.resolve import components_of, resolve, settings_of
from fedhca2.objectives import Attracted, Frozen, HeadsFirst, Objective, PersonalCopy, Proximal
from fedhca2.params import Layout

__all__ = [
    "METHODS",
    "Aggregator",
    "Attentive",
    "Attracted",
    "Blend",
    "Clustered",
    "CommonUpdate",
    "ConflictAverse",
    "CrossAttention",
    "Frozen",
    "GroupMean",
    "HeadsFirst",
    "HyperWeights",
    "Kind",
    "Layout",
    "Mean",
    "Measure",
    "Member",
    "Method",
    "Mixing",
    "Objective",
    "PersonalCopy",
    "Proximal",
    "Pull",
    "Robust",
    "Voting",
    "Weighted",
    "components_of",
    "resolve",
    "settings_of",
]
