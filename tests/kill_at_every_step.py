"""Kill a run at every disk operation, and resume it: `OMP_NUM_THREADS=1 python kill_at_every_step.py FOLDER [STRIDE]`.

A step is a call that syncs, renames, removes or makes something; with a stride of 4 every fourth of them is a death.
Children are forked from a process that has rendered the scenes already, so that each starts at once.
"""

import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import torch

from kill_run import child, run_or_resume, wait_for_end
from small_run import SETTINGS, resume_small, run_small, same_runs, small

STEPS = ("fsync", "link", "rename", "replace", "unlink", "mkdir", "rmdir")
ALONE = SETTINGS["clients"][2:]
EXPERIMENT = small("local", rounds=1, evaluate_every=0, clients=ALONE, checkpoints={"memory": 0})
MORE = ["rounds=2", "clients=[{name: home, data: indoor, tasks: [semseg, depth], epochs: 2}]"]


def is_killed_at(work, last):
    """Whether some work was killed before its `last` step."""

    def run():
        left = iter(range(last))
        for name in STEPS:
            setattr(os, name, kill_after(getattr(os, name), left))
        work()

    return wait_for_end(child(run)) == signal.SIGKILL


def kill_after(call, left):
    def step(*args, **options):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)

    return step


def continue_run(out):
    """Do two rounds instead of one; once that is in the config, without overrides."""
    if "rounds: 2" not in (out / "config.yaml").read_text():
        resume_small(out, MORE)
    run_or_resume(out)


def compare(out, straight):
    left = [path.name for path in out.rglob(".*") if path.name != ".lock"]
    if left or not same_runs(out, straight):
        sys.exit(f"{out} differs from the straight run, or has {left}")


def kill_everywhere(folder, name, work, stride, start=None):
    """Kill the work at its first step, then at later ones, let it finish each time, and compare."""

    def prepare(target):
        return shutil.copytree(start, target) if start else target

    straight = prepare(folder / name)
    wait_for_end(child(lambda: work(straight)))
    steps = 0
    while True:
        out = prepare(folder / f"{name}-{steps}")
        if not is_killed_at(lambda: work(out), steps):  # noqa: B023
            break
        wait_for_end(child(lambda: work(out)))  # noqa: B023
        compare(out, straight)
        shutil.rmtree(out)
        steps += stride
    print(f"{name}: killed {steps // stride} times in {steps} steps, each time equal to the straight run")
    return straight


def main(folder, stride):
    run_small(EXPERIMENT, folder / "warm")  # scenes are rendered here, once
    finished = kill_everywhere(folder, "begin", partial(run_or_resume, experiment=EXPERIMENT), stride)
    kill_everywhere(folder, "go-on", continue_run, stride, finished)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1)
