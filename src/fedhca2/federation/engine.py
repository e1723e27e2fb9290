"""The engine within this process: it opens the data sets here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data, without_broken
from fedhca2.federation.in_process import InProcessRun, choose_devices
from fedhca2.federation.membership import shards_after
from fedhca2.federation.pooled import PooledRun
from fedhca2.objectives import Pooled
from fedhca2.run_folder.folder import PARTITION
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.writer import RunFolder


@dataclass(frozen=True)
class InProcessEngine:
    """Opens the data sets here."""

    file_names: ClassVar[Sequence[str]] = (PARTITION,)
    settings_stay: ClassVar[bool] = False

    def open(self, experiment: Experiment, folder: RunFolder) -> InProcessRun:
        """Open the data, assign images, and check the clients' saved states; a resumed run keeps its assignment."""
        check_in_process(experiment)
        data, files = open_data(experiment), RunFiles(folder.path)
        shards = shards_after(experiment, data, files) if files.begun else assign_shards(experiment, data)
        shards, skipped = without_broken(experiment, data, shards)
        fleet = PooledRun if isinstance(experiment.resolved_method.local, Pooled) else InProcessRun
        return fleet(experiment, folder, data, shards, skipped)


def check_in_process(experiment: Experiment) -> None:
    """Raise UserError if an experiment cannot run in this process."""
    choose_devices(experiment.devices)
    if experiment.secure_aggregation:
        fault = "hides rows from a remote server, and there is none here"
        raise UserError("secure_aggregation", f"{fault}; expected null, or --engine flower-local")
