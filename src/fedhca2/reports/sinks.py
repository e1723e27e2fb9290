"""Where numbers can be sent while a run goes on or is followed: TensorBoard files, or W&B."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedhca2.experiment import ConfigError
from fedhca2.reports.run_files import Event
from fedhca2.reports.scalars import Scalar, scalars


class Sink(Protocol):
    """Takes numbers."""

    def add(self, scalar: Scalar) -> None:
        """Keep one number."""

    def close(self) -> None:
        """There are no more."""


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def add(self, scalar: Scalar) -> None:
        """Keep one number."""
        self._writer.add_scalar(scalar.tag, scalar.value, scalar.round)

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


class Wandb:
    """A run in a project of Weights & Biases."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(project=project, name=name, config=dict(config))
        self._run.define_metric("*", step_metric="round")

    def add(self, scalar: Scalar) -> None:
        """Keep one number, against its round: W&B's own steps may not go back, and clients' rounds do."""
        self._run.log({scalar.tag: scalar.value, "round": scalar.round})

    def close(self) -> None:
        """Send the rest."""
        self._run.finish()


def send(events: Iterable[Event], sinks: Sequence[Sink]) -> None:
    """Give every sink the numbers of these events."""
    for event in events:
        for scalar in scalars(event):
            for sink in sinks:
                sink.add(scalar)


class Sinks:
    """The sinks that a command was asked for; they are checked at once, and opened when there is something to send."""

    def __init__(self, tensorboard: Path | None, wandb: str | None) -> None:
        self.tensorboard, self.wandb = tensorboard, wandb
        missing = [name for name in ("tensorboard", "wandb") if getattr(self, name) and find_spec(name) is None]
        if missing:
            raise ConfigError([f"--{name}: needs another package: pip install 'fedhca2[{name}]'" for name in missing])

    def open(self, name: str, config: Mapping[str, Any]) -> list[Sink]:
        """Begin to write; a run's name and config are for W&B to show."""
        sinks: list[Sink] = [TensorBoard(self.tensorboard)] if self.tensorboard else []
        return [*sinks, Wandb(self.wandb, name, config)] if self.wandb else sinks
