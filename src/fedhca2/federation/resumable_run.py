"""One run on any engine: from where it stands, through its rounds and checkpoints, to its result."""

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import Fleets, RunWatcher
from fedhca2.federation.rounds import Outcome, run_rounds
from fedhca2.federation.stopping import Interrupted, stop_between_rounds
from fedhca2.run_folder.records import Progress
from fedhca2.run_folder.result import Result, Scores, overall_gain, privacy_spent, versions
from fedhca2.run_folder.writer import RunFolder


class ResumableRun:
    """A run that can go on from its last checkpoint: nothing about it has been refused, and no file has changed."""

    def __init__(
        self, experiment: Experiment, fleets: Fleets, folder: RunFolder, *, baseline_of: Path | None = None
    ) -> None:
        """`baseline_of` is the folder of the run whose baseline this is: the one to resume if it is interrupted."""
        self.experiment, self.folder, self.to_resume = experiment, folder, baseline_of or folder.path
        self._began = perf_counter()
        self._before = float(folder.checkpoint.notes["seconds"]) if folder.checkpoint else 0.0
        done = folder.checkpoint.progress.state.round if folder.checkpoint else 0
        if done > experiment.rounds:
            raise UserError(
                [f"rounds: should be at least {done}, as far as the run has come, found {experiment.rounds}"]
            )
        self.fleet = fleets.open(experiment, folder, baseline=baseline_of is not None)

    @property
    def seconds(self) -> float:
        """How long the run has taken up to now, before it was interrupted too."""
        return self._before + perf_counter() - self._began

    def train(self, watcher: RunWatcher, baseline: Scores | None) -> Result:
        """Every round that is still to come, in a folder that has been rewound; stops between two when asked to."""
        experiment, fleet = self.experiment, self.fleet

        def choose(names: Iterable[str], round: int) -> list[str]:
            return experiment.participation.choose(names, round, experiment.seed)

        with fleet.begin(watcher) as told:
            if fleet.checkpoint_first:
                self.folder.commit(Progress(), fleet, self.seconds)
            with stop_between_rounds() as stopping:

                def passed(progress: Progress) -> None:
                    done, every = progress.state.round, fleet.checkpoint_every
                    if stopping.signal or (every and done % every == 0) or done == experiment.rounds:
                        self.folder.commit(progress, fleet, self.seconds)
                    if stopping.signal:
                        raise Interrupted(stopping.signal, self.to_resume, done)

                outcome = run_rounds(
                    fleet.server(),
                    fleet,
                    experiment.rounds,
                    experiment.evaluate_every,
                    told,
                    choose=choose,
                    progress=fleet.progress,
                    passed=passed,
                )
        return self._conclude(fleet.finish(outcome), baseline)

    def _conclude(self, outcome: Outcome, baseline: Scores | None) -> Result:
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
            device=self.fleet.device,
            skipped=dict(self.fleet.skipped),
            missing=dict(outcome.missing),
            epsilon=privacy["epsilon"] if privacy else None,
            privacy=privacy,
        )
        self.folder.finish(result.to_dict())
        return result
