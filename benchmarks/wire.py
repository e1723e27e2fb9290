"""Bytes and seconds of a round with six Swin-T clients: in one process, and over Flower on loopback.

    python benchmarks/wire.py              # bytes, and seconds in one process
    python benchmarks/wire.py --loopback   # also over a SuperLink and six sites with TLS, float32 and bfloat16

Images are tiny and few, so that a round is what it costs to move rows. Bytes are those of the second round and later:
they go up after training, and down with the next orders.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.local import run_local
from fedhca2.federation.flower.server_app import LogWatcher
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.run import run

ROUNDS = 3
MB = 1e6


def experiment(rounds: int) -> Experiment:
    scenes = {"kind": "scenes", "size": [32, 32], "val": 1}
    return Experiment.parse(
        {
            "name": "wire",
            "rounds": rounds,
            "method": {"name": "fedhca2"},
            "training": {"batch_size": 1},
            "checkpoints": {"every": 0},
            "data": {
                "outdoor": {**scenes, "domain": "outdoor", "train": 5},
                "indoor": {**scenes, "domain": "indoor", "train": 1},
            },
            "clients": [
                {"data": "outdoor", "split": ["semseg", "human_parts", "sal", "normals", "edge"]},
                {"name": "home", "data": "indoor", "tasks": ["semseg", "depth", "normals", "edge"]},
            ],
        }
    )


def events(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def second_round(out: Path) -> tuple[float, float, float]:
    """Megabytes up and down, and seconds, of the second round."""
    found = events(out)
    clients = [event for event in found if event["event"] == "client" and event["round"] == 1]
    seconds = next(event["seconds"] for event in found if event["event"] == "round" and event["round"] == 1)
    return sum(c["bytes_up"] for c in clients) / MB, sum(c["bytes_down"] for c in clients) / MB, seconds


def whole_models(out: Path) -> tuple[float, float]:
    """What θ and Δ up and a whole model down would be: encoder and decoders, without heads."""
    sizes = [
        sum(count for slot, count in event["parameters"].items() if slot.startswith(("encoder", "decoder")))
        for event in events(out)
        if event["event"] == "profile"
    ]
    return 2 * 4 * sum(sizes) / MB, 4 * sum(sizes) / MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loopback", action="store_true", help="also over Flower; some minutes on two cores")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    table = Table("", "MB up", "MB down", "s", title="second round of six Swin-T clients, FedHCA²")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "in-process"
        run(experiment(options.rounds), out, LogWatcher())
        up, down, seconds = second_round(out)
        whole_up, whole_down = whole_models(out)
        table.add_row("whole models: θ and Δ up, θ down", f"{whole_up:.0f}", f"{whole_down:.0f}", "")
        table.add_row("in one process", f"{up:.0f}", f"{down:.0f}", f"{seconds:.1f}")
        for wire in ("float32", "bfloat16") if options.loopback else ():
            out = Path(folder) / wire
            run_local(experiment(options.rounds), out, LogWatcher(), Terms(wire=wire))
            up, down, seconds = second_round(out)
            table.add_row(f"loopback, {wire}", f"{up:.0f}", f"{down:.0f}", f"{seconds:.1f}")
        ratio = (whole_up + whole_down) / (up + down)
    Console().print(table)
    Console().print(f"whole models are {ratio:.1f} times the bytes of the last row")


if __name__ == "__main__":
    main()
