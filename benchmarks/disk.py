"""The server's step for a thousand clients whose rows wait on disk, relative to reading the same files once.

    python benchmarks/disk.py                                  # 1,000 clients with 2 % of each row: 1.1 GB
    python benchmarks/disk.py --values 6880174 --folder DIR    # a quarter of each row: 13.8 GB, deleted afterwards

Every client's encoder is a file of its own in bfloat16, as `fedhca2 flower serve --spool --wire bfloat16` keeps it. The
step is the encoders' alone, with sketches: guard, learned weights, solver, and two passes over the files. "Cold" files
are dropped from the page cache before; "warm" ones have just been read, and are in it if they fit. Times are on the
clock, since a process that waits for the disk takes no processor time.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import torch
from row import Row, show
from server import ENCODER, SKETCH, federation, peak, replies_of

from fedhca2.aggregation import MappedRow
from fedhca2.federation.guard import Guard
from fedhca2.federation.server import Server
from fedhca2.messages import Profile
from fedhca2.methods import resolve
from fedhca2.params import Slot

CLIENTS = 1000
ROW = Slot("encoder")
GB = 1e9


def encoders(clients: int, values: int) -> list[Profile]:
    """Clients that share their encoders alone."""
    whole = federation(clients, values)
    return [Profile(each.client, each.dataset, each.tasks, 1, {ROW: each.layouts[ROW]}) for each in whole]


def write_rows(folder: Path, clients: int, values: int) -> list[Path]:
    """Write every client's update to a file: a part common to all, plus its own part."""
    noise = (1e-3 * torch.randn(values, generator=torch.Generator().manual_seed(0))).bfloat16()
    paths = []
    for number in range(clients):
        row = noise.roll(7919 * (number + 1)).add_(noise, alpha=0.5)
        paths.append(folder / f"{number:04}")
        with paths[-1].open("wb") as file:
            file.write(row.view(torch.uint8).numpy().data)
            os.fsync(file.fileno())  # pages that wait for the disk cannot be dropped
    return paths


def drop(paths: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(paths: list[Path]) -> float:
    """Return the seconds to read files one after another."""
    room = bytearray(1 << 20)
    began = perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(room):
                pass
    return perf_counter() - began


def measure(clients: int, values: int, folder: Path) -> Iterator[Row]:
    """Measure both ways, from disk and from the page cache."""
    paths, profiles = write_rows(folder, clients, values), encoders(clients, values)
    size = clients * values * 2 / GB
    rows = [{ROW: MappedRow.open(path, values, torch.bfloat16)} for path in paths]
    server = Server(resolve("fedhca2", {"encoder": {"sketch": SKETCH}, "decoder": None}), profiles)
    start = Guard(server).step(server.start(), replies_of(profiles, rows, server.start()))[0]
    replies = replies_of(profiles, rows, start)
    name = f"{clients} rows in files, {size:.3g} GB ({100 * values / ENCODER:.2g} % of each)"

    def step() -> float:
        began = perf_counter()
        Guard(server).step(start, replies)
        return perf_counter() - began

    for state in ("cold", "warm"):
        drop(paths) if state == "cold" else read(paths)
        once = read(paths)
        drop(paths) if state == "cold" else read(paths)
        taken, _, resident = peak(step, "cpu")
        yield Row(f"{name}: reading them, {state}", size / once, "GB/s")
        yield Row(f"{name}: step, {state}", taken, "s")
        yield Row(f"{name}: step, {state}", taken / once, "readings", at_most=3.0 if state == "cold" else None)
    yield Row(f"{name}: resident at most", resident / GB, "GB", at_most=4.0)


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure a small part of each row."""
    with tempfile.TemporaryDirectory(prefix="fedhca2-disk-") as folder:
        yield from measure(100 if quick else CLIENTS, ENCODER // 50, Path(folder))


def main() -> None:
    """Print the table for one size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--values", type=int, default=ENCODER // 50, help="values per encoder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files are made, and deleted; a temporary one by default")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="fedhca2-disk-", dir=options.folder) as folder:
        show(measure(options.clients, options.values, Path(folder)))


if __name__ == "__main__":
    main()
