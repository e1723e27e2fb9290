"""Kill a run repeatedly at random moments and resume it: `OMP_NUM_THREADS=1 python kill_run.py FOLDER SEED KILLS`.

Children are forked from a process that has made a run already, so that each starts at once.
"""

import gc
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from small_run import SETTINGS, resume_small, run_small, same_runs, small

PARTLY = {"participation": {"fraction": 0.5}, "checkpoints": {"memory": 0}}  # states and rows wait in files
EXPERIMENT = small(rounds=3, evaluate_every=2, baseline=True, clients=SETTINGS["clients"][1:], **PARTLY)


def child(work):
    """Start some work in its own process."""
    wait_for_threads()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def wait_for_end(pid):
    """Wait for a child; returns the signal that ended it, or 0."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code > 0:
        sys.exit("a run failed, see above")
    return -code


def wait_for_threads():
    """Wait until no thread of earlier work is left. One that is ending may hold a lock of MKL, for ever in a fork."""
    gc.collect()
    end = time.monotonic() + 10
    while (found := len([*Path("/proc/self/task").iterdir()])) > 1:
        if time.monotonic() > end:
            sys.exit(f"a process should have one thread when it forks (OMP_NUM_THREADS=1), found {found}")
        time.sleep(0.001)


def run_or_resume(out, experiment=EXPERIMENT):
    """Do what is left of a run."""
    if not (out / "config.yaml").exists():
        run_small(experiment, out)
    elif not (out / "result.json").exists():
        resume_small(out)


def kill_at_random(out, rng, longest):
    """Whether the work was killed before it finished."""
    pid = child(lambda: run_or_resume(out))
    time.sleep(rng.uniform(0, longest))
    os.kill(pid, signal.SIGKILL)
    return wait_for_end(pid) == signal.SIGKILL


def main(folder, seed, kills):
    rng = random.Random(seed)
    straight = folder / "straight"
    run_or_resume(straight)  # here, so that scenes are rendered and kernels compiled once
    began = time.monotonic()
    wait_for_end(child(lambda: run_or_resume(folder / "again")))
    longest = 0.3 * (time.monotonic() - began)
    done = runs = 0
    while done < kills:
        out = folder / f"run-{runs}"
        while not (out / "result.json").exists():
            dead = kill_at_random(out, rng, longest)
            done += dead
            longest *= 1.1 if dead else 0.6  # so that a run meets several deaths, however busy the machine is
        runs += 1
        for run, expected in ((out, straight), (out / "baseline", straight / "baseline")):
            if not same_runs(run, expected):
                sys.exit(f"{run} differs from the straight run")
    print(f"{done} kills over {runs} runs, each equal to the straight run")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
