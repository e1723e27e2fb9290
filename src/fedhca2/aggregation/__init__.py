"""Aggregation: inner products of rows in, weights out, or columns in, columns out. It knows no models and no tasks.

The aggregators themselves are public in `fedhca2.methods`.
"""

from fedhca2.aggregation.aggregator import (
    Aggregator,
    Mixing,
    is_shared,
    mix_rows,
    mixing_of,
    renew_rows,
    try_aggregator,
)
from fedhca2.aggregation.fedhca2 import Weights, conflict_averse, conflict_averse_weights, cross_attention
from fedhca2.aggregation.means import Mean
from fedhca2.aggregation.rows import MappedRow, Measure, Member, Rows
