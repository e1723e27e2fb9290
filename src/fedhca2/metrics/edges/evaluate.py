"""One image: from a raw edge map and its label to counts at every threshold."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedhca2.metrics.edges.nms import suppress_non_maxima
from fedhca2.metrics.edges.sweep import sweep
from fedhca2.metrics.edges.thin import thin

if TYPE_CHECKING:
    from fedhca2.metrics.edges.ods_f import EdgeRules


def boundaries(label_map: NDArray[np.uint8] | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Pixels that differ from their east, south or south-east neighbour.

    >>> boundaries(np.array([[1, 1, 2], [1, 1, 2], [3, 3, 3]])).astype(int)
    array([[0, 1, 0],
           [1, 1, 1],
           [0, 0, 0]])
    """
    ahead = np.pad(label_map, ((0, 1), (0, 1)), mode="edge")
    east, south, south_east = ahead[:-1, 1:], ahead[1:, :-1], ahead[1:, 1:]
    differs: NDArray[np.bool_] = (label_map != east) | (label_map != south) | (label_map != south_east)
    return differs


def levels(edges: NDArray[np.uint8], rules: "EdgeRules") -> NDArray[np.uint8]:
    """How many thresholds each pixel reaches after non-maximum suppression."""
    ridge = suppress_non_maxima(edges.astype(np.float32) / np.float32(255), rules.radius, rules.border, rules.smooth)
    thresholds = np.array(rules.thresholds)
    side: Literal["left", "right"] = "left" if rules.strict else "right"
    if not rules.in_bytes:
        return np.searchsorted(thresholds, ridge.astype(np.float64), side).astype(np.uint8)
    reached = np.searchsorted(thresholds, np.arange(256) / 255, side).astype(np.uint8)
    return reached[(ridge * np.float32(255) + np.float32(0.5)).astype(np.uint8)]


def counts(
    edges: NDArray[np.uint8], label: NDArray[np.uint8], max_dist: float, rules: "EdgeRules"
) -> NDArray[np.int64]:
    """Matched, predicted and true pixels [thresholds, 3] of an image without padding."""
    truth = thin(label == 1 if rules.ground_truth == "edges" else boundaries(label))
    count = len(rules.thresholds)
    matched, predicted = sweep(levels(edges, rules), truth, count, max_dist * float(np.hypot(*label.shape)))
    return np.stack((matched, predicted, np.full(count, truth.sum())), axis=1)
