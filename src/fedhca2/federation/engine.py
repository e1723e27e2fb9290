"""The interface of an engine: it opens a fleet of clients, wherever they run."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fedhca2.experiment import Experiment
from fedhca2.federation.rounds import Fleet, Outcome
from fedhca2.federation.server import Server
from fedhca2.run_folder.checkpoints import KeptClients
from fedhca2.run_folder.records import Progress, Watcher
from fedhca2.run_folder.writer import RunFolder


class RunFleet(Fleet, KeptClients, Protocol):
    """The clients of one run, restored to its current state. Opening it changes nothing in the run's folder."""

    progress: Progress | None  # the state of the run; None before its first round
    checkpoint_first: bool  # save the clients before their first round
    checkpoint_every: int  # rounds between checkpoints; 0: only at the end
    stops_at_once: bool  # whether a signal may end a round, since its clients keep what they have done
    skipped: Mapping[str, list[str]]  # unreadable files, by client

    @property
    def device(self) -> str:
        """The device that the result names."""

    def begin(self, watcher: Watcher) -> AbstractContextManager[Watcher]:
        """Start the run in a rewound folder; returns the watcher that follows its rounds. Everything ends with it."""

    def server(self) -> Server:
        """The server for these clients."""

    def finish(self, outcome: Outcome) -> Outcome:
        """Save the trained models, within `begin`; returns the outcome, with the clients that stayed away."""


class Fleets(Protocol):
    """Opens the fleet of a run and that of its baseline, with the same data."""

    @property
    def files(self) -> Mapping[str, Any]:
        """The engine's files in the run's folder: plain data by file name."""

    def open(self, experiment: Experiment, folder: RunFolder, *, baseline: bool) -> RunFleet:
        """Open the clients in the run's current state; raises UserError if the run cannot continue."""


class Engine(Protocol):
    """Where clients run."""

    file_names: ClassVar[Sequence[str]]  # of the files that its fleets keep in the run's folder
    settings_stay: ClassVar[bool]  # whether a resumed run must keep exactly the settings it started with

    def prepare(self, experiment: Experiment, out: Path, *, resumed: bool) -> Fleets:
        """Check what the experiment needs without changing anything; raises UserError if something is missing."""
