"""What late replies save: seconds to a loss with and without them, when one of three sites is five times slower.

    python benchmarks/late.py OUT [--rounds 8] [--set KEY=VALUE …]

Runs three sites of the experiment `demo` twice over Flower, with a process each. That of the site `home` is stopped
for four fifths of the time. The goal is what waiting for everybody reaches: the mean training loss of the sites. In the
second run a round ends when the fast sites have had time to answer. The learning rate is constant.
"""

import argparse
import os
import signal
import threading
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import median
from time import sleep

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.local import run_over_flower, sites_folder
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher

SLOW, TIMES = "home", 5
CLIENTS = [
    {"data": "outdoor", "split": ["semseg", "sal"]},
    {"name": SLOW, "data": "indoor", "tasks": ["semseg", "depth"]},
]

CONSTANT = ["training.schedule.warmup_epochs=0", "training.schedule.decay=1.0"]


class Slowed(threading.Thread):
    """Stops a site's process for four fifths of every second, from when all have joined until `ended` is set."""

    def __init__(self, out):
        super().__init__(daemon=True)
        self.site, self.run_folder, self.ended = str(sites_folder(out) / f"{SLOW}.yaml"), out, threading.Event()

    def processes(self):
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if self.site in words and "site" in words:
                yield int(entry.name)

    def send(self, number):
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def run(self):
        while not self.ended.is_set():
            if not (self.run_folder / "metrics.jsonl").exists() or not RunFiles(self.run_folder).of("profile"):
                sleep(0.5)
                continue
            self.send(signal.SIGSTOP)
            sleep(1 - 1 / TIMES)
            self.send(signal.SIGCONT)
            sleep(1 / TIMES)


def run_slowed(experiment, out):
    """Run over Flower with one slow site; a finished run is only read."""
    if not RunFiles(out).finished:
        slowed = Slowed(out)
        slowed.start()
        try:
            run_over_flower(experiment, out, watcher=Watcher(), engine="flower-local")
        finally:
            slowed.ended.set()
            slowed.join()
    return RunFiles(out)


def history(files):
    """After each round, the seconds since the first, in which sites start, and the mean of all sites' last losses."""
    losses, latest, points, seconds = {}, {}, [], 0.0
    for event in files.of("loss"):
        losses.setdefault(event["round"], {}).setdefault(event["client"], []).append(event["value"])
    late = {(late["round"], client): late["clients"][client] for late in files.of("late") for client in late["clients"]}
    for end in files.of("round"):
        number, seconds = end["round"], seconds + end["seconds"] * (end["round"] > 0)
        ready = {client: values for client, values in losses.get(number, {}).items() if client != SLOW or not late}
        behind = late.get((number, SLOW))
        if behind:
            ready[SLOW] = losses[number - int(behind["rounds"])][SLOW]
        latest |= {client: sum(values) for client, values in ready.items()}
        points.append((seconds, sum(latest.values()) / 3 if len(latest) == 3 else inf))
    return points


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    base = Experiment.load("demo", [f"rounds={options.rounds}", "evaluate_every=1", *CONSTANT, *options.set])
    experiment = base.replace(clients=tuple(CLIENTS), baseline=False)
    waiting = run_slowed(experiment, options.out / "waiting")
    fast = median(event["seconds"] for event in waiting.of("client") if event["client"] != SLOW)
    late = {"late": {"weight": 0.5, "seconds": 1.5 * fast}}
    counting = run_slowed(experiment.replace(participation=late, rounds=3 * options.rounds), options.out / "late")
    histories = {name: history(files) for name, files in (("waiting", waiting), ("late", counting))}
    goal = histories["waiting"][-1][1]
    print(f"a fast site's round: {fast:.1f} s; the goal: a mean loss of {goal:.3f}\n")
    print("| replies | rounds | seconds a round | seconds to the goal |\n| --- | ---: | ---: | ---: |")
    for name, points in histories.items():
        reached = [seconds for seconds, loss in points if loss <= goal]
        a_round = points[-1][0] / (len(points) - 1)
        print(f"| {name} | {len(points)} | {a_round:.1f} | {f'{reached[0]:.0f}' if reached else 'not reached'} |")


if __name__ == "__main__":
    main()
