"""Processor time of odsF for one image, all 99 thresholds: `python benchmarks/edges.py [repeats]`."""

import sys
from collections.abc import Iterator
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from row import Row, show
from scipy.ndimage import gaussian_filter

from fedhca2.metrics.edges import PRESETS, boundaries, image_counts

SIZES = (("PASCAL", (375, 500), 0.0075, 80.0), ("NYUD", (425, 560), 0.011, None))


def scene(height: int, width: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Make a map of about 40 regions, and edges as a network predicts them: wide, uneven, shifted, some false."""
    seeds = rng.uniform(0, 1, (40, 2)) * (height, width)
    grid = np.moveaxis(np.mgrid[:height, :width], 0, -1)
    grid = grid + np.stack([gaussian_filter(rng.normal(0, 60, (height, width)), 12) for _ in range(2)], axis=-1)
    regions = ((grid[:, :, None] - seeds) ** 2).sum(-1).argmin(-1)
    truth = boundaries(torch.from_numpy(regions)).numpy()
    texture = gaussian_filter(rng.normal(0, 1, (height, width)), 2)
    strength = gaussian_filter(rng.uniform(0, 1, (height, width)), 20)
    strength = (strength - strength.min()) / np.ptp(strength)
    logits = 14 * gaussian_filter(np.roll(truth, (1, 1), (0, 1)).astype(float), 2) * (0.3 + strength) + 6 * texture - 3
    return (255 / (1 + np.exp(-logits))).astype(np.uint8), truth.astype(np.uint8)


def rows(quick: bool = False, repeats: int = 5) -> Iterator[Row]:
    """Measure images of both data sets' sizes; if `quick`, one of each."""
    rng = np.random.default_rng(0)
    for name, size, max_dist, at_most in SIZES:
        images = [scene(*size, rng) for _ in range(1 if quick else repeats)]
        image_counts(*images[0], max_dist, PRESETS["seism"])
        start = process_time()
        for image in images:
            image_counts(*image, max_dist, PRESETS["seism"])
        ms = 1000 * (process_time() - start) / len(images)
        yield Row(f"odsF, {name} {size[0]}×{size[1]}", ms, "CPU-ms per image", at_most)


if __name__ == "__main__":
    show(rows(repeats=int(sys.argv[1]) if len(sys.argv) > 1 else 5))
