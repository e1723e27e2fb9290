"""odsF, OIS and AP of edge maps, computed like SEISM, but with exact matching and no randomness."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.cores import usable_cores
from fedhca2.labels import IGNORE
from fedhca2.metrics.metric import Sums

Counts = NDArray[np.int64]
Image = NDArray[np.float32]


def boundaries(labels: Tensor) -> Tensor:
    """Pixels that differ from their east, south or south-east neighbour; bool, shaped like `labels` [..., H, W].

    The last row only compares east, the last column only south, and the last corner is never a boundary.

    >>> boundaries(torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]])).int()
    tensor([[0, 1, 0],
            [0, 1, 1],
            [0, 0, 0]], dtype=torch.int32)
    """
    edge = torch.zeros_like(labels, dtype=torch.bool)
    here = labels[..., :-1, :-1]
    edge[..., :-1, :-1] = labels[..., 1:, 1:] != here
    edge[..., :, :-1] |= labels[..., :, 1:] != labels[..., :, :-1]
    edge[..., :-1, :] |= labels[..., 1:, :] != labels[..., :-1, :]
    return edge


def triangle(image: Image, radius: int) -> Image:
    """Smooth with the kernel [1 … r, r + 1, r … 1]/(r + 1)² along both axes, with symmetric borders.

    >>> triangle(np.array([[0, 4, 0, 0]], np.float32), 1)
    array([[1., 2., 1., 0.]], dtype=float32)
    """
    kernel = (radius + 1 - np.abs(np.arange(-radius, radius + 1))) / (radius + 1) ** 2
    for axis in (0, 1):
        image = scipy.ndimage.correlate1d(image, kernel, axis=axis, output=np.float32, mode="reflect")
    return image


def slope(image: Image) -> Image:
    r"""Tangent of the direction across the edge, $O_{yy}\operatorname{sign}(-O_{xy})/(O_{xx} + 10^{-5})$.

    It represents the angle atan(slope) mod π: a line through the pixel only needs the tangent.
    """
    smooth = triangle(image, radius=4)
    dy, dx = np.gradient(smooth)
    dxy, dyy = np.gradient(dy, axis=1), np.gradient(dy, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a vertical direction has no finite tangent
        across: Image = dyy * np.sign(-dxy) / (np.gradient(dx, axis=1) + np.float32(1e-5))
    return across


def _fade(length: int, border: int) -> Image:
    """Factors i/border at distance i from both ends of a row, and 1 further in."""
    ramp = np.minimum(np.arange(length) / border, 1) if border else np.ones(length)
    return (ramp * ramp[::-1]).astype(np.float32)


def suppress_non_maxima(image: Image, radius: int, border: int, smooth: bool) -> Image:
    """Keep a value if none up to `radius` away, straight across the edge, is 1 % larger; otherwise set it to 0.

    Within `border` pixels of the rim, the remaining values fade to 0. `smooth` applies `triangle(·, 1)` first.
    """
    from fedhca2.metrics.edge_kernels import suppress

    if min(image.shape) < 2:
        raise ValueError(f"expected an edge map of 2×2 or larger, got {image.shape[0]}×{image.shape[1]}")
    image = triangle(image, 1) if smooth else np.ascontiguousarray(image)
    ridge: Image = suppress(image, slope(image), radius)
    return ridge * _fade(len(ridge), border)[:, None] * _fade(ridge.shape[1], border)


@dataclass(frozen=True)
class EdgeRules:
    """How to interpret an edge map.

    `radius`, `border`, `smooth`: non-maximum suppression. `in_bytes`: its result is rounded to 8 bits.
    """

    radius: int = 4
    border: int = 5
    smooth: bool = True
    in_bytes: bool = True
    thresholds: tuple[float, ...] = tuple(k / 100 for k in range(1, 100))


PRESETS = {"seism": EdgeRules(), "invpt": EdgeRules(radius=1, smooth=False, in_bytes=False)}


def edge_rules(thresholds: int) -> EdgeRules:
    """SEISM's rules with a different number of thresholds, evenly spaced between 0 and 1.

    >>> edge_rules(3).thresholds, edge_rules(99) == PRESETS["seism"]
    ((0.25, 0.5, 0.75), True)
    """
    return EdgeRules(thresholds=tuple(k / (thresholds + 1) for k in range(1, thresholds + 1)))


def f_measure(counts: Counts) -> NDArray[np.float64]:
    r"""$F = 2PR/(P + R) = 2\,\text{matched}/(\text{predicted} + \text{true})$ of counts [..., 3]; 0 without any edge.

    >>> float(f_measure(np.array([2, 4, 4])))
    0.5
    """
    f: NDArray[np.float64] = 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)
    return f


def average_precision(counts: Counts) -> float:
    """Area under precision over recall, sampled at recalls 0, .01 … 1, and 0 beyond the largest recall reached."""
    matched, predicted, true = counts.T
    recall, first = np.unique(matched / np.maximum(true, 1), return_index=True)
    precision = (matched / np.maximum(predicted, 1))[first]
    return float(np.interp(np.arange(101) / 100, recall, precision, left=0, right=0).sum() / 100)


def crop(label: NDArray[np.uint8]) -> tuple[slice, slice]:
    """The part of a label without padding: the bounding box of the pixels that are not ignored."""
    valid = label != IGNORE
    rows, columns = np.flatnonzero(valid.any(axis=1)), np.flatnonzero(valid.any(axis=0))
    if not len(rows):
        return slice(0, 0), slice(0, 0)
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def levels(edges: NDArray[np.uint8], rules: EdgeRules) -> NDArray[np.uint8]:
    """The number of thresholds that each pixel reaches after non-maximum suppression."""
    ridge = suppress_non_maxima(edges.astype(np.float32) / np.float32(255), rules.radius, rules.border, rules.smooth)
    thresholds = np.array(rules.thresholds)
    if not rules.in_bytes:
        return np.searchsorted(thresholds, ridge.astype(np.float64), "right").astype(np.uint8)
    reached = np.searchsorted(thresholds, np.arange(256) / 255, "right").astype(np.uint8)
    return reached[(ridge * np.float32(255) + np.float32(0.5)).astype(np.uint8)]


def image_counts(edges: NDArray[np.uint8], label: NDArray[np.uint8], max_dist: float, rules: EdgeRules) -> Counts:
    """Counts [thresholds + 2, 3] of one image: each threshold's, the best one's, and (1, 0, 0) for the image itself.

    A threshold's are its matched, predicted and true pixels. Padding is where the label is 255; an image with only
    padding is not counted.
    """
    from fedhca2.metrics.edge_kernels import sweep, thin  # numba takes a second to import

    count, box = len(rules.thresholds), crop(label)
    if not label[box].size:
        return np.zeros((count + 2, 3), np.int64)
    truth = thin(label[box] == 1)
    reached = levels(np.ascontiguousarray(edges[box]), rules)
    matched, predicted = sweep(reached, truth, count, max_dist * float(np.hypot(*truth.shape)))
    at = np.stack((matched, predicted, np.full(count, truth.sum())), axis=1)
    return np.concatenate((at, at[f_measure(at).argmax()][None], [[1, 0, 0]]))


def _on_host(values: Tensor) -> Tensor:
    """Copy the values to the CPU; they are complete when their device has reached this point."""
    if not values.is_cuda:
        return values
    return torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)


class OdsF(Sums):
    """Best F in % of one threshold for the whole split (ODS), with OIS (the best per image) and AP as extras.

    `max_dist`: the largest distance of a match, relative to the image's diagonal. `workers` threads evaluate the images
    (default: one per core) while the caller continues; `compute` waits for them.
    """

    name = "ods_f"
    for_plain_maps = False  # which have no edges, and take minutes to thin

    def __init__(self, max_dist: float, rules: EdgeRules = PRESETS["seism"], workers: int | None = None) -> None:
        super().__init__(len(rules.thresholds) + 2, 3, dtype=torch.int64)
        self.max_dist, self.rules = max_dist, rules
        self.workers = workers or len(usable_cores())
        self.pool: ThreadPoolExecutor | None = None
        self.pending: list[Future[Counts]] = []

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add probabilities and labels [B, 1, H, W]."""
        self.pool = self.pool or ThreadPoolExecutor(self.workers)
        edges = _on_host((prediction[:, 0].float() * 255).to(torch.uint8))
        truths = _on_host(label[:, 0].to(torch.uint8))
        ready = torch.cuda.current_stream(prediction.device).record_event() if prediction.is_cuda else None

        def evaluate(image: Tensor, truth: Tensor) -> Counts:
            if ready is not None:
                ready.synchronize()
            return image_counts(image.numpy(), truth.numpy(), self.max_dist, self.rules)

        for image, truth in zip(edges, truths, strict=True):
            self.pending.append(self.pool.submit(evaluate, image, truth))

    def compute(self) -> dict[str, float]:
        """ODS, OIS, AP, and the threshold of the ODS."""
        for future in self.pending:
            self.add(torch.from_numpy(future.result()))
        self.pending.clear()
        if self.pool:
            self.pool.shutdown()
            self.pool = None
        sums = self.sums.numpy()
        if not sums[-1, 0]:
            return dict.fromkeys((self.name, "ois_f", "ap", "threshold"), float("nan"))
        f = f_measure(sums[:-2])
        return {
            self.name: 100 * float(f.max()),
            "ois_f": 100 * float(f_measure(sums[-2])),
            "ap": 100 * average_precision(sums[:-2]),
            "threshold": self.rules.thresholds[int(f.argmax())],
        }
