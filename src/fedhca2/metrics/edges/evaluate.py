"""One image: from a raw edge map and its label to counts at every threshold."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedhca2.metrics.edges.boundaries import boundaries
from fedhca2.metrics.edges.nms import suppress_non_maxima
from fedhca2.metrics.edges.sweep import sweep
from fedhca2.metrics.edges.thin import thin

if TYPE_CHECKING:
    from fedhca2.metrics.edges.ods_f import EdgeRules


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
    drawn = label == 1 if rules.ground_truth == "edges" else boundaries(torch.from_numpy(label)).numpy()
    truth = thin(drawn)
    count = len(rules.thresholds)
    matched, predicted = sweep(levels(edges, rules), truth, count, max_dist * float(np.hypot(*label.shape)))
    return np.stack((matched, predicted, np.full(count, truth.sum())), axis=1)
