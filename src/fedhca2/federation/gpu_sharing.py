"""What runs of a comparison share: the memory of GPUs and of this machine, and NVIDIA's MPS."""

import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedhca2.cores import host_free
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import ComparisonRun
from fedhca2.federation.in_process import choose_devices
from fedhca2.federation.memory_room import NOTHING, Memory, Room, expected, read_report
from fedhca2.federation.run_process import memory_file

log = logging.getLogger("fedhca2.gpus")
MIB = 1 << 20
PATIENCE = 30  # seconds for a program of NVIDIA to answer, start or stop
QUERY = ("--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits")


def gpus_free(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """The free bytes of each GPU that this process may use, by its UUID, in CUDA's order.

    It is empty if there is no nvidia-smi, or if it fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        answer = subprocess.run([program, *QUERY], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    wanted = [row[0] for row in rows] if visible is None else [name.strip() for name in visible.split(",")]
    free = {}
    for name in wanted:  # an index, or the beginning of a UUID
        row = next((row for row in rows if name and (row[0] == name or row[1].startswith(name))), None)
        if row is None:
            break  # as CUDA does, which ignores what follows an unknown name
        if row[2].isdecimal():  # some GPUs do not tell
            free[row[1]] = int(row[2]) * MIB
    return free


def gpus_of(experiment: Experiment) -> list[list[str]]:
    """The places for runs: every GPU by its UUID, or all that the experiment names together; none on a CPU."""
    devices = [device for device in choose_devices(experiment.devices) if device.type == "cuda"]
    names = list(gpus_free()) if devices else []
    if len(names) != torch.cuda.device_count():
        return []  # it is not known which is which
    if experiment.devices:
        return [[names[device.index or 0] for device in devices]] if devices else []
    return [[name] for name in names]


class RunMemory:
    """What runs are expected to take, from the reports of all of them, and what is free for them."""

    def __init__(self, runs: Sequence[ComparisonRun], gpus: Sequence[Sequence[str]]) -> None:
        self.runs, self.gpus = runs, gpus
        self._known: dict[str, int] = {}
        self._warned = False
        self.before = self._free()

    def needs(self, runs: Sequence[ComparisonRun]) -> list[Memory | None]:
        """What these runs are expected to take; None while nothing is known."""
        all_reports = [(run.experiment.method_name, read_report(memory_file(run))) for run in self.runs]
        reports = [(method, report) for method, report in all_reports if report]
        return [expected(run.experiment.method_name, reports) for run in runs]

    def rooms(self, active: Sequence[tuple[ComparisonRun, int]]) -> tuple[list[Room], Room]:
        """The room on every GPU and on this machine beside the active runs, each with the number of its GPU."""
        free = self._free()
        self.before = [max(pair) for pair in zip(self.before, free, strict=True)]  # another program may have ended
        needs = [need or NOTHING for need in self.needs([run for run, _ in active])]
        rooms = []
        for number, (before, now) in enumerate(zip(self.before, free, strict=True)):
            here = [need.gpu for need, (_, place) in zip(needs, active, strict=True) if place == number]
            rooms.append(Room(before, now, sum(here), len(here)))
        host = rooms.pop()
        return rooms, host._replace(taken=sum(need.host for need in needs), active=len(active))

    def _free(self) -> list[int]:
        """The free bytes of every GPU, or 0 on a CPU, followed by those of this machine.

        While nvidia-smi fails, the last known ones count.
        """
        now = gpus_free() if self.gpus else {}
        if self.gpus and not now and not self._warned:
            log.warning("nvidia-smi fails: what it last said about free memory counts until it answers again")
        self._warned = bool(self.gpus) and not now
        self._known |= now
        return [*([min(self._known.get(name, 0) for name in group) for group in self.gpus] or [0]), host_free()]


PROGRAM = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL = Path("/tmp/nvidia-mps")  # where CUDA looks for a daemon if the variables are not set
STOP_AT_END = 'cat; echo quit | "$0" && rm -rf "$1"'  # once the input ends, stop the daemon and remove its folder


@contextmanager
def shared_gpus(names: Sequence[str], usual: Path = USUAL) -> Iterator[tuple[Mapping[str, str], str]]:
    """Run MPS's daemon for GPUs with these UUIDs; yields the variables for its clients, and how GPUs are shared.

    The daemon is stopped at the end, also if this process is killed. A daemon that is already running is used and never
    stopped. Without the program, processes take turns.
    """
    program = shutil.which(PROGRAM)
    if {PIPE, LOG} & set(os.environ) or _is_alive(usual / f"{PROGRAM}.pid"):
        yield {}, "with the MPS daemon that is already running"
        return
    if program is None:
        yield {}, f"without MPS, since there is no {PROGRAM}: runs take turns"
        return
    # Only this user can read the folder, and the daemon may still write to it when it quits.
    with TemporaryDirectory(prefix="fedhca2-mps-", ignore_cleanup_errors=True) as folder:
        own = {PIPE: f"{folder}/pipe", LOG: f"{folder}/log"}
        for place in own.values():
            Path(place).mkdir()
        own["CUDA_VISIBLE_DEVICES"] = ",".join(names)  # the daemon renumbers its GPUs, but a UUID stays the same
        daemon = {**os.environ, **own}
        nowhere = subprocess.DEVNULL  # a daemon would keep pipes open
        began = partial(subprocess.call, [program, "-d"], env=daemon, timeout=PATIENCE, stdout=nowhere, stderr=nowhere)
        if fault := _fault(began):
            yield {}, f"without MPS, whose daemon did not start ({fault}): runs take turns"
            return
        # Its input ends with this process, however that ends; Ctrl-C does not reach it in a session of its own.
        stopper = subprocess.Popen(
            ["sh", "-c", STOP_AT_END, program, folder],
            env=daemon,
            stdin=subprocess.PIPE,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        try:
            yield own, "with MPS"
        finally:
            assert stopper.stdin is not None
            stopper.stdin.close()
            if fault := _fault(partial(stopper.wait, PATIENCE)):
                print(f"{PROGRAM}: could not be stopped ({fault}); its folder was {folder}", flush=True)


def _fault(call: Callable[[], int]) -> str:
    """Call a program; returns what went wrong, or an empty text."""
    try:
        code = call()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"exit code {code}" if code else ""


def _is_alive(pid_file: Path) -> bool:
    """Whether the process named in a file exists."""
    try:
        os.kill(int(pid_file.read_text("utf-8")), 0)
    except PermissionError:
        return True  # it is another user's
    except (OSError, ValueError):
        return False
    return True
