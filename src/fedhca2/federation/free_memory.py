"""The free memory of GPUs and of this machine, as the system tells it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20
QUERY = ("--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits")


def gpus_free(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """The free bytes of each GPU that this process may use, by its UUID, in CUDA's order; empty without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    told = subprocess.run([program, *QUERY], capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    wanted = [row[0] for row in rows] if visible is None else [name.strip() for name in visible.split(",")]
    found = {}
    for name in wanted:  # an index, or the beginning of a UUID
        row = next((row for row in rows if name and (row[0] == name or row[1].startswith(name))), None)
        if row is None:
            break  # as CUDA does, which ignores what follows an unknown name
        found[row[1]] = int(row[2]) * MIB
    return found


def host_free(system: Path = Path("/")) -> int:
    """The free bytes of the machine, or of the container if that has less; unlimited if the system does not tell."""
    told = _table(system / "proc/meminfo")
    free = told["MemAvailable:"] * 1024 if told else sys.maxsize
    group = system / "sys/fs/cgroup"
    limit = (group / "memory.max").read_text("utf-8").strip() if (group / "memory.max").is_file() else "max"
    if limit == "max":
        return free
    held = _table(group / "memory.stat")  # files are cached there until somebody needs the memory
    used = int((group / "memory.current").read_text("utf-8")) - held["active_file"] - held["inactive_file"]
    return min(free, int(limit) - used)


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number; empty without the file."""
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return {line.split()[0]: int(line.split()[1]) for line in lines}
