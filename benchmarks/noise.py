"""Processor time of noising a Swin-T client's update on one core: `python benchmarks/noise.py [repeats]`."""

import sys
from collections.abc import Callable, Iterator
from time import process_time

import torch
from row import Row, show

from fedhca2.clients.privacy import CHUNK, Noise, Privacy, privatise
from fedhca2.params import Slot

VALUES = 28_300_000
KEY = bytes(32)


def least(work: Callable[[], object], repeats: int) -> float:
    """Return the least processor seconds."""
    times = []
    for _ in range(repeats):
        start = process_time()
        work()
        times.append(process_time() - start)
    return min(times)


def rows(quick: bool = False, repeats: int = 3) -> Iterator[Row]:
    """Measure a whole update and the part spent on drawing; if `quick`, with a hundredth of the values."""
    count = VALUES // 100 if quick else VALUES
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    update = {Slot("encoder"): torch.randn(count, generator=torch.Generator().manual_seed(0))}
    source = Noise(KEY, 2.0**24)
    source.draw(CHUNK)  # compiles
    name = f"noise, {count / 1e6:.3g} M values"

    def draw() -> None:
        for _ in range(count // CHUNK):
            source.draw(CHUNK)

    def add_noise() -> None:
        privatise(update, Privacy(clip=1.0, noise=1.0), KEY, round=0)

    yield Row(f"{name}: clipped and noised", least(add_noise, repeats), "CPU-s", 3.0)
    yield Row(f"{name}: of which drawing", least(draw, repeats), "CPU-s")
    yield Row(f"{name}: torch.randn, 32 bits of seed", least(lambda: torch.randn(count), repeats), "CPU-s")
    torch.set_num_threads(threads)


if __name__ == "__main__":
    show(rows(repeats=int(sys.argv[1]) if len(sys.argv) > 1 else 3))
