"""The memory that the runs of a comparison have and need, and the GPUs they share."""

from collections.abc import Sequence

import torch

from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import ComparisonRun
from fedhca2.federation.free_memory import gpus_free, host_free
from fedhca2.federation.in_process import choose_devices
from fedhca2.federation.memory_room import NOTHING, Memory, Room, expected, read_report
from fedhca2.federation.run_process import memory_file


def gpus_of(experiment: Experiment) -> list[list[str]]:
    """The places for runs: every GPU by its UUID, or all that the experiment names together; none on a CPU."""
    devices = [device for device in choose_devices(experiment.devices) if device.type == "cuda"]
    found = list(gpus_free()) if devices else []
    if len(found) != torch.cuda.device_count():
        return []  # it is not known which is which
    if experiment.devices:
        return [[found[device.index or 0] for device in devices]] if devices else []
    return [[name] for name in found]


class RunMemory:
    """What runs are expected to take, from the reports of all of them, and what is free for them."""

    def __init__(self, runs: Sequence[ComparisonRun], gpus: Sequence[Sequence[str]]) -> None:
        self.runs, self.gpus = runs, gpus
        self.before = self._free()

    def needs(self, runs: Sequence[ComparisonRun]) -> list[Memory | None]:
        """What these runs are expected to take; None while nothing is known."""
        found = [(run.experiment.method_name, read_report(memory_file(run))) for run in self.runs]
        reports = [(method, report) for method, report in found if report]
        return [expected(run.experiment.method_name, reports) for run in runs]

    def rooms(self, active: Sequence[tuple[ComparisonRun, int]]) -> tuple[list[Room], Room]:
        """The room on every GPU and on this machine beside the active runs, each with the number of its GPU."""
        free = self._free()
        self.before = [max(pair) for pair in zip(self.before, free, strict=True)]  # somebody else may have left
        needs = [need or NOTHING for need in self.needs([run for run, _ in active])]
        rooms = []
        for number, (before, now) in enumerate(zip(self.before, free, strict=True)):
            here = [need.gpu for need, (_, place) in zip(needs, active, strict=True) if place == number]
            rooms.append(Room(before, now, sum(here), len(here)))
        host = rooms.pop()
        return rooms, host._replace(taken=sum(need.host for need in needs), active=len(active))

    def _free(self) -> list[int]:
        """The free bytes of every GPU, or of none on a CPU, and of this machine in the end."""
        found = gpus_free() if self.gpus else {}
        return [*([min(found[name] for name in group) for group in self.gpus] or [0]), host_free()]
