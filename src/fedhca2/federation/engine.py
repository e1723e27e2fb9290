"""What a run asks of an engine: a fleet of clients, wherever they run."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.rounds import Fleet, Outcome, Watcher
from fedhca2.federation.server import Server
from fedhca2.run_folder.checkpoints import KeptClients
from fedhca2.run_folder.records import Progress
from fedhca2.run_folder.writer import RunFolder


class RunWatcher(Watcher, Protocol):
    """Whoever wants to know how a run goes, from its start."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """A run begins; its Local baseline, where it has one, is a run of its own before it."""


class RunFleet(Fleet, KeptClients, Protocol):
    """The clients of one run, put where the run stands. Opening it has changed nothing in the run's folder."""

    progress: Progress | None  # where the run stands; nothing before its first round
    checkpoint_first: bool  # keep the clients before their first round
    checkpoint_every: int  # rounds between two checkpoints; 0: only at the end
    skipped: Mapping[str, list[str]]  # files that could not be read, by client

    @property
    def device(self) -> str:
        """What the result says that the run was trained on."""

    def begin(self, watcher: RunWatcher) -> AbstractContextManager[Watcher]:
        """Start the run, in a folder that has been rewound; gives the watcher that hears of its rounds."""

    def server(self) -> Server:
        """The server for these clients."""

    def finish(self, outcome: Outcome) -> Outcome:
        """Keep the trained models; returns the outcome, with the clients that stayed away."""


class Fleets(Protocol):
    """Opens the fleet of a run and that of its baseline, with the same data."""

    @property
    def files(self) -> Mapping[str, Any]:
        """What the run's folder keeps for its engine: plain data by the name of the file."""

    def open(self, experiment: Experiment, folder: RunFolder, *, baseline: bool) -> RunFleet:
        """The clients where the run stands; UserError if it cannot go on."""


class Engine(Protocol):
    """Where clients run."""

    file_names: ClassVar[Sequence[str]]  # of the files that its fleets keep in the run's folder
    settings_stay: ClassVar[bool]  # a run that is resumed goes on with exactly the settings that it began with

    def prepare(self, experiment: Experiment, out: Path, *, resumed: bool) -> Fleets:
        """Look at what the experiment needs and change nothing; UserError if something is not there."""
