"""Bytes of a round in one process, as rows; `python benchmarks/wire.py` has the table with Flower in it.

What must cross in FedHCA² is every client's update up, and down one encoder's update for all and each decoder's own. A
hundredth is allowed for what is around them. Whole models are what the papers send: θ and Δ up, a model down.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from row import Row, show
from wire import MB, experiment, parameters, second_round

from fedhca2.federation.flower.server_app import LogWatcher
from fedhca2.federation.run import run

AROUND = 1.01


def rows(quick: bool = False) -> Iterator[Row]:
    """Six Swin-T clients, second round; if `quick`, two."""
    count = 2 if quick else 6
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run(experiment(count), out, LogWatcher())
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


if __name__ == "__main__":
    show(rows())
