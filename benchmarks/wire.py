"""Bytes and seconds of a round with Swin-T clients, in one process and over Flower on loopback with TLS.

    python benchmarks/wire.py                                   # bytes, and seconds in one process
    python benchmarks/wire.py --loopback float32 bfloat16       # also over a SuperLink with one process per site

A client trains on one image of 32 x 32, so a round costs what moving and aggregating rows costs; the slowest client's
working time is shown too. Bytes are those of the second round: down with its orders and up with its replies.
Distinct bytes are those that differ between clients' orders.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from row import Row

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.local import run_local
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.run import run
from fedhca2.run_folder.records import Watcher

SINGLE = [("semseg", 0), ("sal", 0), ("normals", 0), ("edge", 0), ("semseg", 1)]
MB = 1e6
AROUND = 1.01  # times the required bytes: names, shapes and scalars are sent too


def experiment(clients: int) -> Experiment:
    """Single-task clients, and one with four tasks."""
    scenes = {"kind": "scenes", "size": [32, 32], "val": 1}
    single = [{"name": f"{task}-{n}", "data": "outdoor", "tasks": [task]} for task, n in SINGLE[: clients - 1]]
    home = {"name": "home", "data": "indoor", "tasks": ["semseg", "depth", "normals", "edge"]}
    data = {"indoor": {**scenes, "domain": "indoor", "train": 1}}
    if single:
        data["outdoor"] = {**scenes, "domain": "outdoor", "train": len(single)}
    return Experiment.parse(
        {
            "name": "wire",
            "rounds": 2,
            "method": {"name": "fedhca2"},
            "training": {"batch_size": 1},
            "checkpoints": {"every": 0},
            "data": data,
            "clients": [*single, home],
        }
    )


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    events = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == kind]


def second_round(out: Path) -> tuple[float, float, float, float]:
    """Return bytes up and down, seconds, and the slowest client's working seconds."""
    clients = [event for event in events(out, "client") if event["round"] == 1]
    seconds = next(event["seconds"] for event in events(out, "round") if event["round"] == 1)
    at_work = max(client["seconds"] for client in clients)
    return sum(c["bytes_up"] for c in clients), sum(c["bytes_down"] for c in clients), seconds, at_work


def parameters(out: Path, part: str) -> list[int]:
    """Return every client's number of parameters in a part."""
    profiles = [event["parameters"] for event in events(out, "profile")]
    return [sum(count for slot, count in own.items() if slot.split(".")[0] == part) for own in profiles]


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the second round of six Swin-T clients in one process; if `quick`, of two.

        The required bytes are every client's update up, and down one encoder update for all and each decoder's own. The
    papers send whole models: θ and Δ up, a model down.
    """
    count = 2 if quick else 6
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run(experiment(count), out, watcher=Watcher())
        encoders, decoders = parameters(out, "encoder"), parameters(out, "decoder")
        up, down, seconds, at_work = second_round(out)
    whole = 4 * (sum(encoders) + sum(decoders))
    distinct = down - 4 * (len(encoders) - 1) * encoders[0]
    needed = 4 * (encoders[0] + sum(decoders))
    name = f"wire, {count} Swin-T clients"
    yield Row(f"{name}: up", up / MB, "MB", AROUND * whole / MB)
    yield Row(f"{name}: down, distinct", distinct / MB, "MB", AROUND * needed / MB)
    yield Row(f"{name}: both, of whole models", (up + distinct) / (3 * whole), "of their bytes")
    yield Row(f"{name}: round in one process", seconds, "s")
    yield Row(f"{name}: slowest client in it", at_work, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loopback", nargs="*", default=[], choices=["float32", "bfloat16"])
    parser.add_argument("--clients", type=int, default=6, choices=range(1, 7))
    options = parser.parse_args()
    title = f"second round of {options.clients} Swin-T clients, FedHCA²"
    table = Table("", "MB up", "MB down", "distinct", "s", "s at work", "load", title=title)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "in-process"
        run(experiment(options.clients), out, watcher=Watcher())
        encoders, decoders = parameters(out, "encoder"), parameters(out, "decoder")
        whole = 4 * (sum(encoders) + sum(decoders)) / MB
        table.add_row("θ and Δ up, a model down", f"{2 * whole:.0f}", f"{whole:.0f}", f"{whole:.0f}", "", "", "")
        moved = 0.0
        for wire in ("in one process", *options.loopback):
            if wire in options.loopback:
                out = Path(folder) / wire
                run_local(experiment(options.clients), out, Watcher(), NetworkSettings(wire=wire))
            up, down, *seconds = second_round(out)
            distinct = down - (len(encoders) - 1) * (2 if wire == "bfloat16" else 4) * encoders[0]
            moved = up + distinct
            numbers = (f"{value / MB:.0f}" for value in (up, down, distinct))
            table.add_row(wire, *numbers, *(f"{each:.1f}" for each in seconds), f"{os.getloadavg()[0]:.1f}")
    Console().print(table)
    Console().print(f"whole models are {3 * whole * MB / moved:.1f} times the distinct bytes of the last row")


if __name__ == "__main__":
    main()
