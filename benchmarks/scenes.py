"""Processor time of rendering one 64×64 scene with all labels on one core: `python benchmarks/scenes.py [repeats]`."""

import sys
from time import process_time

import torch

from fedhca2.data.scenes import Domain, render

BOUND_MS = 10.0
SCENES = 16


def ms_an_image(domain: Domain, repeats: int) -> list[float]:
    """Milliseconds for each image of a batch, sorted; the first call is left out."""
    found = []
    for _ in range(repeats + 1):
        start = process_time()
        render(domain, range(SCENES), size=(64, 64), seed=2)
        found.append(1000 * (process_time() - start) / SCENES)
    return sorted(found[1:])


def main() -> None:
    """Print the least and the median of several runs for both domains."""
    torch.set_num_threads(1)
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    domains: tuple[Domain, ...] = ("outdoor", "indoor")
    for domain in domains:
        ms = ms_an_image(domain, repeats)
        least, median = ms[0], ms[len(ms) // 2]
        share = f"{least / BOUND_MS:.2f} of the bound of {BOUND_MS:.0f} ms"
        print(f"{domain}: {least:.1f} ms an image, median {median:.1f}; {share}")


if __name__ == "__main__":
    main()
