"""Start-up times, each measured in a new process: `python benchmarks/startup.py [repeats]`.

Clock time, the least of several, is what a user waits for. Processor time is less disturbed by other work on the
machine. The demo is run by the command itself, up to the first batch that a client has trained on.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter

from row import Row, show

SEEN = 42  # exit code of the demo's process after its first batch
DEMO = f"""
import os, sys
from fedhca2.cli import app
from fedhca2.reports.console import ConsoleWatcher
ConsoleWatcher.batch = lambda *_: os._exit({SEEN})
app(["run", "demo", "--set", "rounds=1", "--out", f"{{sys.argv[1]}}/{{os.getpid()}}"])
"""


def least(command: Sequence[str], repeats: int, code: int = 0) -> tuple[float, float]:
    """Return the least clock and processor seconds of a process that should exit with this code."""
    costs = []
    for _ in range(repeats):
        used, began = _processor(), perf_counter()
        ended = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        costs.append((perf_counter() - began, _processor() - used))
        if ended.returncode != code:
            raise RuntimeError(f"{command}: expected exit code {code}, got {ended.returncode}\n{ended.stderr}")
    clock, processor = zip(*costs, strict=True)
    return min(clock), min(processor)


def _processor() -> float:
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def pair(name: str, cost: tuple[float, float], at_most: float) -> Iterator[Row]:
    """Make the rows of both times; the bound applies to the clock."""
    yield Row(f"start-up, {name}", cost[0], "s", at_most)
    yield Row(f"start-up, {name}", cost[1], "CPU-s")


def rows(quick: bool = False, repeats: int = 7) -> Iterator[Row]:
    """Measure importing, help, and the demo up to its first batch; if `quick`, once each and without the demo."""
    repeats = 1 if quick else repeats
    yield from pair("import fedhca2", least(["-c", "import fedhca2"], repeats), 0.3)
    yield from pair("fedhca2 --help", least(["-m", "fedhca2", "--help"], repeats), 0.5)
    if not quick:
        with tempfile.TemporaryDirectory() as folder:
            yield from pair("demo to its first batch", least(["-c", DEMO, folder], min(3, repeats), SEEN), 4.0)


if __name__ == "__main__":
    show(rows(repeats=int(sys.argv[1]) if len(sys.argv) > 1 else 7))
