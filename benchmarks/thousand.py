"""A thousand clients as a user runs them: `python benchmarks/thousand.py`, four to six minutes on two cores."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from row import Row, show
from scaling import GB, MOST_MEMORY

MINUTES = 10
MINUTES_ON_GPU = 3


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure `scenes_1000`; if `quick`, two of its rounds."""
    fewer, on_gpu = ["--set", "rounds=2"] if quick else [], torch.cuda.is_available()
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedhca2", "run", "scenes_1000", "--out", str(Path(folder) / "run"), *fewer]
        began = perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds = perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / GB
    bound = None if quick else 60.0 * (MINUTES_ON_GPU if on_gpu else MINUTES)
    yield Row(f"a thousand clients, {2 if quick else 20} rounds and the page", seconds, "s", at_most=bound)
    # On a GPU, most of it are CUDA's libraries.
    yield Row("… memory", memory, "GB", at_most=None if on_gpu else MOST_MEMORY)


if __name__ == "__main__":
    show(rows())
