"""The process of one run of a comparison: `python -m` this module, with an order on standard input."""

import json
import os
import signal
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from fedhca2.cores import stay_on


def main() -> int:
    """Carry out the run described in the first line of input; when the input ends, stop after a checkpoint."""
    order = json.loads(sys.stdin.readline())
    stay_on(order["cores"])  # before torch counts them
    Thread(target=_end_with_parent, daemon=True).start()
    from fedhca2.errors import UserError
    from fedhca2.federation.stopping import Interrupted

    try:
        _run(order)
    except Interrupted as interrupted:
        return 128 + interrupted.signal
    except (UserError, OSError) as error:
        print(f"error: {'; '.join(str(error).splitlines())}", flush=True)
        return 2
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _run(order: dict[str, Any]) -> None:
    from fedhca2.experiment import Experiment
    from fedhca2.federation.comparison_runs import ComparisonRun, run_one

    baseline = Path(order["baseline"]) if order["baseline"] else None
    run_one(ComparisonRun(Experiment.parse(order["experiment"]), Path(order["folder"]), baseline), _Lines())


class _Lines:
    """Prints a line per round."""

    def started(self, experiment: Any, shards: object) -> None:
        self.rounds = experiment.rounds
        print(f"round 0 of {self.rounds}", flush=True)

    def batch(self, *_: object) -> None: ...

    def replied(self, *_: object) -> None: ...

    def aggregated(self, round: int, record: object, seconds: float) -> None:
        print(f"round {round + 1} of {self.rounds}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
