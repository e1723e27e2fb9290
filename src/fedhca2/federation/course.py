"""The course of one run on any fleet: from where it stands, through its rounds and checkpoints, to its result."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from fedhca2.experiment import ConfigError, Experiment
from fedhca2.federation.checkpoints import Checkpoints, KeptClients
from fedhca2.federation.fleet import Fleet
from fedhca2.federation.result import Result, Scores, overall_gain, spent_epsilon, versions
from fedhca2.federation.rounds import Outcome, Progress, Watcher, run_rounds
from fedhca2.federation.run_folder import RunFolder
from fedhca2.federation.server import Server
from fedhca2.federation.stopping import Interrupted, stop_between_rounds

START: Mapping[str, Any] = {"events": 0, "bytes_up": 0, "bytes_down": 0, "seconds": 0.0}


class KeptFleet(Fleet, KeptClients, Protocol):
    """Clients that carry out orders, and whose states can be kept."""


class Course:
    """Puts a run's folder where its last checkpoint was, and goes on from there."""

    def __init__(self, experiment: Experiment, folder: RunFolder, run: Path) -> None:
        """`run` is what to resume if it is interrupted: the folder, or the one that it is the baseline of."""
        self.experiment, self.folder, self.run = experiment, folder, run
        self._began = perf_counter()
        self._checkpoints = Checkpoints(folder.path / "checkpoints", experiment.checkpoints.keep)
        self.checkpoint = self._checkpoints.latest()
        notes = self.checkpoint.notes if self.checkpoint else START
        self._before = float(notes["seconds"])
        folder.rewind(notes)
        if self.checkpoint and self.checkpoint.progress.state.round > experiment.rounds:
            come = self.checkpoint.progress.state.round
            raise ConfigError([f"rounds: should be at least {come}, as the run has come, found fewer"])

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
                    self._checkpoints.save(progress, fleet, {**self.folder.position(), "seconds": self.seconds})
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
            self.folder.log("absent", round=self.experiment.rounds, clients=outcome.missing)
        result = Result(
            name=self.experiment.name,
            method=self.experiment.method_name,
            rounds=self.experiment.rounds,
            seed=self.experiment.seed,
            clients=outcome.scores,
            baseline=baseline,
            delta_m=_gain(outcome.scores, baseline or {}),
            seconds=self.seconds,
            bytes={"up": self.folder.bytes_up, "down": self.folder.bytes_down},
            versions=versions(),
            device=device,
            skipped=dict(skipped or {}),
            missing=dict(outcome.missing),
            epsilon=spent_epsilon(self.experiment),
        )
        self.folder.finish(result.to_dict())
        self._checkpoints.prune(1)
        return result


def _gain(scores: Scores, baseline: Scores) -> float | None:
    """Δm over the clients that were there to be evaluated both times."""
    both = [name for name in scores if name in baseline]
    if not both:
        return None
    return overall_gain({name: scores[name] for name in both}, {name: baseline[name] for name in both})
