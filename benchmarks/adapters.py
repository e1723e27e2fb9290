"""What a frozen backbone and adapters cost and give: python benchmarks/adapters.py CONFIG OUT [--set KEY=VALUE …]

Trains the config's encoder whole, with adapters of two ranks, with those of the smaller shared in part, and frozen,
each by the config's method and by Local. The table has megabytes sent per client and round, seconds per round, peak
memory of the GPU, and Δm over Local with the whole encoder: of the method, and of Local, which shows what the encoder
alone costs. The last column is the method's Δm over Local with the same encoder: what sharing gives.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import torch
from results_adding import cost_of

from fedhca2 import Experiment, run
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import overall_gain

VARIANTS = {
    "whole": {},
    "LoRA, rank 8": {"adapters": {"kind": "lora", "rank": 8}},
    "LoRA, rank 8, A shared": {"adapters": {"kind": "lora", "rank": 8, "share": "down"}},
    "LoRA, rank 8, A frozen": {"adapters": {"kind": "lora", "rank": 8, "train": "up"}},
    "LoRA, rank 32": {"adapters": {"kind": "lora", "rank": 32, "alpha": 32}},
    "frozen": {"frozen": True},
}


def with_encoder(experiment, changes):
    """The experiment with these settings of the encoder; only what trains whole has stochastic depth."""
    values = experiment.to_dict()
    values["model"]["encoder"] |= {**changes, **({"drop_path": 0.0} if changes else {})}
    return Experiment.parse(values)


def measure(values, out):
    """Run once, or read what is there: scores, megabytes up per client and round, seconds per round, GPU memory."""
    experiment, peak = Experiment.parse(values), None
    if not RunFiles(out).finished:
        began = perf_counter()
        run(experiment, out)
        print(f"{out}: {perf_counter() - began:.0f} s", flush=True)
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    cost = cost_of(RunFiles(out))
    return RunFiles(out).result.clients, cost["megabytes_up"], cost["seconds_per_round"], peak


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    experiment = Experiment.load(options.config, [*options.set, "baseline=false"])
    # Each run has its own process, since workspaces of the one before would stay on the GPU.
    alone = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    print("| encoder | MB up | s a round | GiB | Δm | Δm of Local | Δm by sharing |\n| --- |" + " ---: |" * 6)
    whole = None
    for name, changes in VARIANTS.items():
        changed = with_encoder(experiment, changes)
        out = options.out / name.replace(", rank ", "-").replace(", A ", "-").lower()
        scores, up, seconds, peak = alone.submit(measure, changed.to_dict(), out).result()
        local, *_ = alone.submit(measure, changed.with_method("local").to_dict(), Path(f"{out}-local")).result()
        whole = whole or local
        pairs = ((scores, whole), (local, whole), (scores, local))
        gains = [overall_gain(one, other, experiment.task_set, experiment.kinds) for one, other in pairs]
        memory = "" if peak is None else f"{peak:.2f}"
        shown = " | ".join(f"{gain:+.2f} %" for gain in gains)
        print(f"| {name} | {up:.2f} | {seconds:.1f} | {memory} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
