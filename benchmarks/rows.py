"""Inner products, mixtures, sketches and lengths of rows: plain torch relative to compiled kernels on the same data.

    python benchmarks/rows.py                     # processor time of one thread
    python benchmarks/rows.py --device cuda       # plain torch alone, which is the way of GPUs

Plain torch multiplies blocks of 65,536 columns in float64. Times are the least of several, measured alternately.
"""

import argparse
from collections.abc import Callable, Iterator
from time import perf_counter, process_time

import torch
from row import Row, show
from torch import Tensor

from fedhca2.aggregation.cpu_rows import CpuRows
from fedhca2.aggregation.rows import PlainRows, projection

SIZES = ((6, 28_000_000), (24, 5_000_000), (100, 1_000_000), (1000, 50_000))  # rows, and values of each


def tasks(rows: PlainRows, count: int, values: int) -> dict[str, Callable[[], object]]:
    """What the server asks of rows."""
    weights = torch.rand(1, count, count, dtype=torch.float64)
    part = min(values, 2_000_000 // count)  # as long as decoders are
    few = type(rows)([row[:part] for row in rows.data], rows.chunk)
    one, all_rows = [torch.empty(values, device=rows.device)], list(torch.empty(count, part, device=rows.device))
    sketch = 16384, *projection(values, 16384, seed=0)
    return {
        "products": lambda: rows.gram((0, values), differences=False),
        "one mixture": lambda: rows.mix(weights[:, :1], (0, values), one),
        f"{count} mixtures of {part:,} values": lambda: few.mix(weights, (0, part), all_rows),
        "sketches": lambda: rows.sketch(*sketch),
        "lengths": rows.squares,
    }


def seconds(work: Callable[[], object], device: str) -> float:
    """How long it takes: processor time, or the clock on a GPU."""
    clock = process_time if device == "cpu" else perf_counter
    began = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def compare(device: str = "cpu", repeats: int = 5) -> Iterator[Row]:
    """Measure all sizes."""
    torch.set_num_threads(1)
    for count, values in SIZES:
        rng = torch.Generator(device).manual_seed(0)
        data: list[Tensor] = [torch.randn(values, generator=rng, device=device) for _ in range(count)]
        ways = [PlainRows(data, 1 << 16), CpuRows(data)] if device == "cpu" else [PlainRows(data)]
        each = [tasks(way, count, values) for way in ways]
        for name in each[0]:
            times = [[seconds(work[name], device) for work in each] for _ in range(repeats)]
            plain, *compiled = (1000 * min(column) for column in zip(*times, strict=True))
            yield Row(f"{count} rows of {values:,}, {name}: plain torch", plain, "ms")
            for kernel in compiled:
                yield Row(f"{count} rows of {values:,}, {name}: compiled", kernel, "ms")
                yield Row(f"{count} rows of {values:,}, {name}: plain torch", plain / kernel, "times")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    show(compare(parser.parse_args().device))


if __name__ == "__main__":
    main()
