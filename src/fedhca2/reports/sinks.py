"""Where numbers can be sent while a run is followed: TensorBoard files, or W&B."""

from pathlib import Path
from typing import Any, Protocol

from fedhca2.experiment import ConfigError
from fedhca2.reports.run_files import RunFiles
from fedhca2.reports.scalars import Scalar


class Sink(Protocol):
    """Takes numbers."""

    def add(self, scalar: Scalar) -> None:
        """Keep one number."""

    def close(self) -> None:
        """There are no more."""


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(["--tensorboard: needs another package: pip install 'fedhca2[tensorboard]'"]) from None
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, scalar: Scalar) -> None:
        """Keep one number."""
        self._writer.add_scalar(scalar.tag, scalar.value, scalar.round)

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


class Wandb:
    """A run in a project of Weights & Biases."""

    def __init__(self, project: str, run: RunFiles) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError(["--wandb: needs another package: pip install 'fedhca2[wandb]'"]) from None
        self._run: Any = wandb.init(project=project, name=run.path.name, config=run.config)

    def add(self, scalar: Scalar) -> None:
        """Keep one number, against its round: W&B's own steps may not go back, and clients' rounds do."""
        self._run.log({scalar.tag: scalar.value, "round": scalar.round})

    def close(self) -> None:
        """Send the rest."""
        self._run.finish()
