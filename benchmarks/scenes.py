"""Processor time of rendering one 64×64 scene with all labels on one core: `python benchmarks/scenes.py [repeats]`."""

import sys
from collections.abc import Iterator
from time import process_time

import torch
from row import Row, show

from fedhca2.data.label_spaces import Domain
from fedhca2.data.scenes.rendering import render

DOMAINS: tuple[Domain, ...] = ("outdoor", "indoor")
SCENES = 16


def ms_an_image(domain: Domain, repeats: int) -> float:
    """Return the least milliseconds per image of a batch; the first call is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = process_time()
        render(domain, range(SCENES), size=(64, 64), seed=2)
        times.append(1000 * (process_time() - start) / SCENES)
    return min(times[1:])


def rows(quick: bool = False, repeats: int = 20) -> Iterator[Row]:
    """Measure both domains; if `quick`, once each."""
    torch.set_num_threads(1)
    for domain in DOMAINS:
        ms = ms_an_image(domain, 1 if quick else repeats)
        yield Row(f"rendering, {domain} 64×64", ms, "CPU-ms per image", at_most=10.0)


if __name__ == "__main__":
    show(rows(repeats=int(sys.argv[1]) if len(sys.argv) > 1 else 20))
