"""Time and memory of the server's step for Swin-T clients, relative to a plain copy of their updates.

    python benchmarks/server.py                          # 6, 24 and, with 17 GB free, 100 clients with whole rows; 100
                                                         # and 1,000 with parts
    python benchmarks/server.py --clients 100 --values 5000000 --threads 2
    python benchmarks/server.py --clients 100 --sketch 16384
    python benchmarks/server.py --device cuda --clients 24

A step is everything the server does in FedHCA²'s second round: guard, learned weights, solver, aggregation. A copy
writes every client's rows over the same target, in memory that was written before. Rows of 1,000 clients are bfloat16
in files; there are 16 different ones, and each is mapped for many clients. Times are the least of several, measured
alternately.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import TypeVar

import torch
from row import Row, show
from torch import Tensor

from fedhca2.aggregation import MappedRow
from fedhca2.cores import host_free
from fedhca2.federation.guard import Guard
from fedhca2.federation.server import Deliveries, Server
from fedhca2.messages import Profile, Reply
from fedhca2.methods import resolve
from fedhca2.params import Layout, Slot
from fedhca2.run_folder.records import ServerRecord, ServerState, SlotKey

ENCODER = 27_520_698  # values of Swin-T
LAYERS = ((96, 96), (96, 192), (96, 384), (96, 768), (96, 384), (96,))  # weights of its decoder; each also has a bias
TASKS = ("semseg", "normals", "edge", "depth")  # every sixth client has all of them, others have one
MAPPED = 1000  # this many clients keep their rows in files
DISTINCT = 16
SKETCH = 16384
T = TypeVar("T")


def federation(clients: int, values: int) -> list[Profile]:
    """Clients as in the paper's first scenario, with encoders of `values` values and decoders to match."""
    share = values / ENCODER
    shapes = [(max(1, int(rows * share)), *rest) for rows, *rest in LAYERS]
    named = {f"layer{i}.{kind}": shape for i, shape in enumerate(shapes) for kind, shape in _pair(shape)}
    decoder = Layout(tuple(named), tuple(named.values()))
    profiles = []
    for i in range(clients):
        tasks = TASKS if i % 6 == 5 else TASKS[i % 4 : i % 4 + 1]
        layouts = {Slot("encoder"): Layout(("encoder.weight",), ((values,),))}
        layouts |= {Slot("decoder", task): decoder for task in tasks}
        profiles.append(Profile(f"client{i:04}", "scenes", tasks, 1, layouts))
    return profiles


def _pair(shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [("weight", shape), ("bias", shape[:1])]


def make_rows(profiles: list[Profile], device: str, folder: Path) -> list[dict[Slot, Tensor]]:
    """Make every client's update: a part common to all, plus its own part."""
    longest = max(layout.numel for profile in profiles for layout in profile.layouts.values())
    noise = 1e-3 * torch.randn(longest, generator=torch.Generator().manual_seed(0))

    def update(seed: int, numel: int) -> Tensor:
        return noise[:numel].roll(7919 * (seed + 1)).add_(noise[:numel], alpha=0.5)

    def map_row(seed: int, slot: Slot, numel: int) -> Tensor:
        path = folder / f"{seed % DISTINCT}.{slot.part}"
        if not path.exists():
            path.write_bytes(update(seed, numel).bfloat16().view(torch.uint8).numpy().data)
        return MappedRow.open(path, numel, torch.bfloat16)

    return [
        {
            slot: map_row(i, slot, layout.numel) if len(profiles) >= MAPPED else update(i, layout.numel).to(device)
            for slot, layout in profile.layouts.items()
        }
        for i, profile in enumerate(profiles)
    ]


def replies_of(profiles: list[Profile], rows: list[dict[Slot, Tensor]], state: ServerState) -> list[Reply]:
    """Make every client's reply; from the second round on with the products to learn weights from."""
    return [
        Reply(
            profile.client,
            state.round,
            own,
            {slot: (0.1,) * len(state.weights[SlotKey(profile.client, slot)].value) for slot in own if state.round},
        )
        for profile, own in zip(profiles, rows, strict=True)
    ]


def seconds(work: Callable[[], object], device: str) -> float:
    """Read the clock, or for one CPU thread the processor time, which other processes do not disturb."""
    clock = process_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter
    began = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def peak(work: Callable[[], T], device: str) -> tuple[T, float, float]:
    """Return the work's result and its peak memory in bytes: beyond what was in use before, and in total."""
    if device == "cuda":
        before_bytes = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = work()
        return result, torch.cuda.max_memory_allocated() - before_bytes, torch.cuda.max_memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    result = work()
    return result, _status("VmHWM") - before, _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(name))


def measure(
    clients: int, values: int, threads: int, device: str = "cpu", repeats: int = 5, sketch: int | None = None
) -> list[Row]:
    """Measure time, ratio and memory for one number of clients."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        profiles = federation(clients, values)
        rows = make_rows(profiles, device, Path(folder))
        server = Server(resolve("fedhca2", {"encoder": {"sketch": sketch}}), profiles)
        state = Guard(server).step(server.start(), replies_of(profiles, rows, server.start()))[0]
        replies = replies_of(profiles, rows, state)
        updates = [row for own in rows for row in own.values()]
        target = torch.zeros(values, dtype=updates[0].dtype, device=device)

        def copy() -> None:
            for row in updates:
                target[: row.numel()].copy_(row)
                if isinstance(row, MappedRow):
                    row.release()

        def step() -> tuple[ServerState, Deliveries, ServerRecord]:
            return Guard(server).step(state, replies)

        (_, sent, _), extra, whole = peak(step, device)
        mixed = {
            addend.row.data_ptr(): addend.row for own in sent.values() for d in own.values() for addend in d.addends
        }
        result = sum(row.nbytes for row in mixed.values())
        del sent, mixed
        times = [(seconds(copy, device), seconds(step, device)) for _ in range(repeats)]
    copied, stepped = (min(column) for column in zip(*times, strict=True))
    nbytes = sum(row.nbytes for row in updates)
    name = f"server, N = {clients}" + (f", {100 * values / ENCODER:.2g} % of each row" if values < ENCODER else "")
    name += f", sketches of {sketch:,}" if sketch else ""
    name += f", {device}" if device != "cpu" else f", {threads} thread{'s' * (threads > 1)}"
    limit = 50.0 if device == "cuda" and clients <= 24 else None
    timings = [
        Row(f"{name}: copy", 1000 * copied, "ms"),
        Row(f"{name}: step", 1000 * stepped, "ms", limit),
    ]
    if clients >= MAPPED:
        return [*timings, Row(f"{name}: resident at most", whole / 1e9, "GB", 4.0)]
    extra_share = max(0.0, extra - result) / nbytes
    return [
        *timings,
        Row(f"{name}: step", stepped / copied, "copies", (2.0 if sketch else 4.0) if device == "cpu" else None),
        Row(f"{name}: memory beyond updates and what is sent", extra_share, "updates", 0.3),
        Row(f"{name}: memory beyond updates", extra / nbytes, "updates", 0.3),
    ]


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure all rows; if `quick`, only for six clients."""
    threads = sorted({1, len(os.sched_getaffinity(0))})
    sizes = [(6, ENCODER, 5)] if quick else [(6, ENCODER, 5), (24, ENCODER, 3), (100, ENCODER // 10, 3)]
    for clients, values, repeats in sizes:
        for count in threads:
            yield from measure(clients, values, count, repeats=repeats)
    if quick:
        return
    yield from measure(100, ENCODER // 10, 1, repeats=3, sketch=SKETCH)
    if host_free() > 1.5 * 100 * ENCODER * 4:
        yield from measure(100, ENCODER, 1, repeats=3, sketch=SKETCH)
    yield from measure(MAPPED, ENCODER // 200, threads[-1], repeats=1, sketch=SKETCH)
    yield from measure(MAPPED, ENCODER // 200, threads[-1], repeats=1)
    if torch.cuda.is_available():
        for clients in (6, 24, 100):
            yield from measure(clients, ENCODER, 1, "cuda")


def main() -> None:
    """Print the table, or only one size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only six clients")
    parser.add_argument("--clients", type=int, help="only this number of clients")
    parser.add_argument("--values", type=int, default=ENCODER, help="values per encoder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sketch", type=int, help="estimate inner products from sketches of this size")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    if options.clients:
        measured: Iterable[Row] = measure(
            options.clients, options.values, options.threads, options.device, options.repeats, options.sketch
        )
    else:
        measured = rows(options.quick)
    shown = show(measured)
    if options.json:
        options.json.write_text(json.dumps([row.to_dict() for row in shown], indent=2))


if __name__ == "__main__":
    main()
