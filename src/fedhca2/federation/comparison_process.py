"""The process of one run of a comparison: `python -m` this module, with an order on standard input."""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from threading import Thread
from typing import Any

from fedhca2.cores import stay_on


def main() -> int:
    """Carry out the run described in the first line of input; when the input ends, stop after a checkpoint."""
    order = json.loads(sys.stdin.readline())
    stay_on(order["cores"])  # before torch counts them
    sys.argv = order["command"]  # what the user typed, for the run's result
    Thread(target=_end_with_parent, daemon=True).start()
    from fedhca2.errors import UserError
    from fedhca2.federation.memory_room import GPU_FAULT, exit_code
    from fedhca2.federation.stopping import Interrupted

    try:
        _run(order)
    except Interrupted as interrupted:
        return 128 + interrupted.signal
    except Exception as error:
        code = exit_code(error)
        if not isinstance(error, UserError | OSError) and code is None:
            raise
        if code == GPU_FAULT:  # if it is this run's own, the log should say where
            traceback.print_exc(file=sys.stdout)
        print(f"error: {'; '.join(str(error).splitlines())}", flush=True)
        return code or 2
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _run(order: dict[str, Any]) -> None:
    from fedhca2.experiment import Experiment
    from fedhca2.federation.comparison_runs import ComparisonRun, run_one
    from fedhca2.run_folder.records import Watcher

    class Lines(Watcher):
        """Prints a line per round, and reports the memory taken so far."""

        def __init__(self, memory: Path, free: int | None) -> None:
            self.memory, self.free = memory, free
            self.context: int | None = None

        def started(self, experiment: Any, shards: object) -> None:
            self.rounds = experiment.rounds
            print(f"round 0 of {self.rounds}", flush=True)

        def aggregated(self, round: int, record: object, seconds: float) -> None:
            print(f"round {round + 1} of {self.rounds}, {seconds:.1f} s", flush=True)
            self.report()

        def report(self) -> None:
            """Write what this process has taken: the most so far, so that others know what they need."""
            import torch

            from fedhca2.federation.memory_room import Report

            reserved = 0
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                gpu = max(range(torch.cuda.device_count()), key=torch.cuda.max_memory_reserved)
                reserved = torch.cuda.max_memory_reserved(gpu)
                if self.free is not None:
                    self.context = self.free - torch.cuda.mem_get_info(gpu)[0] - torch.cuda.memory_reserved(gpu)
                    self.free = None  # from here on others may start on this GPU
            Report(reserved, self.context, _most_resident()).write(self.memory)

    lines = Lines(Path(order["memory"]), order["free"])
    run_one(ComparisonRun(Experiment.parse(order["experiment"]), Path(order["folder"]), None), lines)
    lines.report()


def _most_resident() -> int:
    """The most bytes that this process has had in memory, or 0 if the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text("utf-8").splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    sys.exit(main())
