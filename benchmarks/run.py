"""Run all benchmarks and show each figure with its bound: `make bench`, or

    python benchmarks/run.py --json bench.json
    python benchmarks/run.py --only start-up server

Each part runs in its own process, so that no part sees another's threads and memory. A missed bound is reported but is
not a failure, since other work on the machine can cause it. A part that breaks is a failure, with exit code 1.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from row import Row

PARTS = {  # name: module with rows()
    "start-up": "startup",
    "rendering": "scenes",
    "odsF": "edges",
    "server": "server",
    "disk": "disk",
    "scaling": "scaling",
    "thousand": "thousand",
    "noise": "noise",
    "wire": "wire",
    "proxy": "proxy",
    "sites": "sites",
    "gpu": "gpu",
    "slots": "slots",
    "step": "step_parts",
    "attention": "window_attention",
}
ON_GPU = ("gpu", "slots", "step", "attention")
RowsByPart = dict[str, list[Row]]
WIDTH = 120  # of the table, if the output is a file
COLOURS = {None: "", True: "green", False: "red"}


class BrokenPartError(Exception):
    """A part that failed; its reason is on standard error."""


def measure_part(part: str, quick: bool) -> Iterator[Row]:
    """Yield a part's rows as its process measures them."""
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(PARTS[part], quick, there))
    process.start()
    there.close()
    while True:
        try:
            yield here.recv()
        except EOFError:
            break
    process.join()
    if process.exitcode:
        raise BrokenPartError(f"{part}: expected exit code 0, got {process.exitcode}")


def _measure(module: str, quick: bool, to: Connection) -> None:
    for row in import_module(module).rows(quick):
        to.send(row)


def machine() -> dict[str, str | int | float | None]:
    """Describe the machine; the load is that of the last minute before the measurements."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def add(table: Table, row: Row) -> None:
    """Add a row to the table."""
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    table.add_row(row.name, f"{row.value:.4g}", row.unit, row.bound, ratio, row.verdict, style=COLOURS[row.ok])


def measure_all(parts: Iterable[str], quick: bool, console: Console, title: str) -> tuple[RowsByPart, list[str]]:
    """Measure rows by part, in a table that grows with them; also return the errors."""
    table = Table("name", title=title)
    for name in ("value", "unit", "bound", "ratio", "verdict"):
        table.add_column(name, justify="right" if name in ("value", "ratio") else "left", no_wrap=name != "unit")
    rows_by_part: RowsByPart = {}
    wrong = []
    with Live(table, console=console, refresh_per_second=1, transient=True):
        for part in parts:
            rows_by_part[part] = []
            try:
                for row in measure_part(part, quick):
                    add(table, row)
                    rows_by_part[part].append(row)
            except BrokenPartError as error:
                wrong.append(str(error))
    console.print(table)
    return rows_by_part, wrong


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="measure once, and only small sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows and the machine to this file")
    options = parser.parse_args()
    console, about = Console(width=None if sys.stdout.isatty() else WIDTH), machine()
    parts = [part for part in options.only if part not in ON_GPU or about["gpu"]]
    title = "{cpu}, {cores} cores, load {load}, torch {torch}".format(**about)
    rows_by_part, wrong = measure_all(parts, options.quick, console, title)
    if parts != options.only:
        console.print(f"No GPU: skipping {', '.join(part for part in options.only if part in ON_GPU)}.")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        whole = {
            "machine": about,
            "parts": {part: [row.to_dict() for row in rows] for part, rows in rows_by_part.items()},
        }
        options.json.write_text(json.dumps(whole, indent=2, allow_nan=False) + "\n", "utf-8")
    for line in wrong:
        console.print(f"error: {line}", style="red")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
