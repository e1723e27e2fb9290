"""What a federation costs as it grows: `python benchmarks/scaling.py [clients …]`, by default 10 to 1,000 clients.

Each run is scenes_1000 with another number of clients and three rounds, a tenth of the clients in each, in a process of
its own, which measures the processor time of its parts, its memory and the size of its folder. Processor time is less
disturbed by other work on the machine; training, evaluation and checkpoints use all cores.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from row import Row

NUMBERS = (10, 30, 100, 300, 1000)
KINDS = [("outdoor", "semseg"), ("outdoor", "sal"), ("indoor", "semseg"), ("indoor", "depth")]
ROUNDS = 3
PARTS = ("imports", "start-up", "train", "aggregate", "checkpoint", "evaluate", "page")
GB = 1e9
MOST_MEMORY = 2.0  # GB, without the clients at work


def measure(count: int) -> dict[str, Any]:
    """Run a federation of this many clients in this process; returns seconds by part, memory, bytes and disk."""
    clock = perf_counter()
    from rich.console import Console

    from fedhca2.experiment import Experiment
    from fedhca2.federation.engine import InProcessRun
    from fedhca2.federation.run import run
    from fedhca2.federation.server import Server
    from fedhca2.reports.console import ConsoleWatcher
    from fedhca2.run_folder.reader import RunFiles
    from fedhca2.run_folder.writer import RunFolder

    seconds = Counter[str]({"imports": process_time()})

    def add_timer(owner: type, name: str, part: str) -> None:
        call = getattr(owner, name)

        def timed_call(self: Any, *args: Any, **options: Any) -> Any:
            final = part == "train" and all(order.finish for order in args[0].values())
            start = process_time()
            try:
                return call(self, *args, **options)
            finally:
                seconds["evaluate" if final else part] += process_time() - start

        setattr(owner, name, timed_call)

    add_timer(InProcessRun, "perform", "train")
    add_timer(InProcessRun, "finish", "evaluate")
    add_timer(Server, "step", "aggregate")
    add_timer(RunFolder, "commit", "checkpoint")
    experiment = Experiment.load("scenes_1000", [f"clients={json.dumps(clients(count))}", f"rounds={ROUNDS}"])
    with tempfile.TemporaryDirectory() as folder, ConsoleWatcher(Console(quiet=True)) as watcher:
        out, started = Path(folder) / "run", watcher.started
        began = process_time()

        def note_start(*args: Any) -> None:
            seconds["start-up"] = process_time() - began
            started(*args)

        watcher.started = note_start  # type: ignore[method-assign]
        result = run(experiment, out, watcher=watcher)
        memory, disk = most_resident(), {part: size(out / part) for part in ("", "checkpoints", "models")}
        began = process_time()
        from fedhca2.reports.page.write import write_page

        page = write_page([RunFiles.open(out)], out / "report.html")
        seconds |= {"page": process_time() - began, "clock": perf_counter() - clock}
        sent = sum(result.bytes.values()) / ROUNDS
        figures = {"memory": memory, "with the page": most_resident(), "bytes": sent, "page": size(page)}
        return {"clients": count, "seconds": seconds, "disk": disk, **figures}


def clients(count: int) -> list[dict[str, Any]]:
    """As many clients of all kinds, as evenly as possible."""
    numbers = [count // len(KINDS) + (i < count % len(KINDS)) for i in range(len(KINDS))]
    return [
        {"name": f"{data}-{task}", "data": data, "tasks": [task], "copies": number, "epochs": 2}
        for (data, task), number in zip(KINDS, numbers, strict=True)
        if number
    ]


def size(path: Path) -> int:
    """The bytes of a file, or of all files in a folder, each once."""
    files = {file.stat().st_ino: file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file()}
    return sum(files.values())


def most_resident(process: int | str = "self") -> int:
    """The most bytes that a process, by default this one, has had in memory."""
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure_clients(count: int) -> dict[str, Any]:
    """Measure in a new process."""
    ended = subprocess.run([sys.executable, __file__, "--one", str(count)], capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{count} clients: {ended.stderr}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure a small and a larger federation; if `quick`, the small one."""
    for count in (10,) if quick else (10, 100):
        figures = measure_clients(count)
        for part in PARTS:
            yield Row(f"{count} clients, {part}", figures["seconds"][part], "CPU-s")
        yield Row(f"{count} clients, memory", figures["memory"] / GB, "GB", at_most=MOST_MEMORY)


def table(numbers: list[int]) -> None:
    """Print a line of a table for each number of clients as soon as it is measured."""
    columns = [
        "clients",
        *(f"{part}, CPU-s" for part in PARTS),
        "clock, s",
        "memory, GB",
        "with the page",
        "a round's bytes, MB",
    ]
    columns += ["disk, MB", "of it checkpoints", "models", "page, MB"]
    print("|", " | ".join(columns), "|")
    print("|", " | ".join("---" for _ in columns), "|")
    for count in numbers:
        figures = measure_clients(count)
        cells = [f"{count:,}", *(f"{figures['seconds'][part]:.1f}" for part in (*PARTS, "clock"))]
        cells += [f"{figures[key] / GB:.2f}" for key in ("memory", "with the page")]
        cells += [f"{figures['bytes'] / 1e6:.0f}", *(f"{bytes / 1e6:.0f}" for bytes in figures["disk"].values())]
        print("|", " | ".join([*cells, f"{figures['page'] / 1e6:.1f}"]), "|", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]))))
    else:
        table([int(word) for word in sys.argv[1:]] or list(NUMBERS))
