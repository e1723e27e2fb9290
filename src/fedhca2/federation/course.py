"""The course of one run on any fleet: from where it stands, through its rounds and checkpoints, to its result."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Protocol

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.fleet import Fleet
from fedhca2.federation.rounds import Outcome, Watcher, run_rounds
from fedhca2.federation.server import Server
from fedhca2.federation.stopping import Interrupted, stop_between_rounds
from fedhca2.run_folder.checkpoints import KeptClients
from fedhca2.run_folder.records import Progress
from fedhca2.run_folder.result import Result, Scores, overall_gain, privacy_spent, versions
from fedhca2.run_folder.writer import RunFolder


class KeptFleet(Fleet, KeptClients, Protocol):
    """Clients that carry out orders, and whose states can be kept."""


class Course:
    """Goes on from a run's last checkpoint; UserError where its settings do not let it."""

    def __init__(self, experiment: Experiment, folder: RunFolder, run: Path) -> None:
        """`run` is what to resume if it is interrupted: the folder, or the one that it is the baseline of."""
        self.experiment, self.folder, self.run = experiment, folder, run
        self._began = perf_counter()
        self.checkpoint = folder.checkpoint
        self._before = float(self.checkpoint.notes["seconds"]) if self.checkpoint else 0.0
        come = self.checkpoint.progress.state.round if self.checkpoint else 0
        if come > experiment.rounds:
            raise UserError(
                [f"rounds: should be at least {come}, as far as the run has come, found {experiment.rounds}"]
            )

    @property
    def seconds(self) -> float:
        """How long the run has taken up to now, before it was interrupted too."""
        return self._before + perf_counter() - self._began

    def go(
        self, server: Server, fleet: KeptFleet, watcher: Watcher, progress: Progress | None, checkpoint_every: int
    ) -> Outcome:
        """All rounds that are still to come; stops between two of them when it is asked to."""
        experiment = self.experiment

        def choose(names: Iterable[str], round: int) -> list[str]:
            return experiment.participation.choose(names, round, experiment.seed)

        with stop_between_rounds() as stopping:

            def passed(progress: Progress) -> None:
                due = checkpoint_every and progress.state.round % checkpoint_every == 0
                if stopping.signal or due or progress.state.round == experiment.rounds:
                    self.folder.commit(progress, fleet, self.seconds)
                if stopping.signal:
                    raise Interrupted(stopping.signal, self.run, progress.state.round)

            return run_rounds(
                server,
                fleet,
                experiment.rounds,
                experiment.evaluate_every,
                watcher,
                choose=choose,
                progress=progress,
                passed=passed,
            )

    def conclude(
        self, outcome: Outcome, baseline: Scores | None, device: str, skipped: Mapping[str, list[str]] | None = None
    ) -> Result:
        """Write down what the run came to."""
        if outcome.missing:
            self.folder.events.log("absent", round=self.experiment.rounds, clients=outcome.missing)
        privacy = privacy_spent(self.experiment.privacy.noise, self.folder.events.updates)
        result = Result(
            name=self.experiment.name,
            method=self.experiment.method_name,
            rounds=self.experiment.rounds,
            seed=self.experiment.seed,
            clients=outcome.scores,
            baseline=baseline,
            delta_m=overall_gain(outcome.scores, baseline or {}, self.experiment.kinds),
            delta_m_by_client=overall_gain(outcome.scores, baseline or {}),
            seconds=self.seconds,
            bytes={"up": self.folder.events.bytes_up, "down": self.folder.events.bytes_down},
            versions=versions(),
            device=device,
            skipped=dict(skipped or {}),
            missing=dict(outcome.missing),
            epsilon=privacy["epsilon"] if privacy else None,
            privacy=privacy,
        )
        self.folder.finish(result.to_dict())
        return result
