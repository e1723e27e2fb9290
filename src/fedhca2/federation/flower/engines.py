"""The engines of `fedhca2 run` that are not this process alone."""

from pathlib import Path
from typing import Literal

from fedhca2.experiment import ConfigError, Experiment
from fedhca2.federation.flower.fleet import TooFewClientsError
from fedhca2.federation.flower.run import read_note, reopen
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.result import Result
from fedhca2.federation.run import RunWatcher
from fedhca2.federation.run_folder import RunFolder

Engine = Literal["flower-local", "flower-ray"]


def run_on(engine: Engine, experiment: Experiment, out: Path, watcher: RunWatcher, baseline: Path | None) -> Result:
    """Run an experiment on this machine over Flower."""
    from fedhca2.federation.flower.local import run_local
    from fedhca2.federation.flower.ray import run_ray

    RunFolder.new(out)  # before anything is started
    engines = {"flower-local": run_local, "flower-ray": run_ray}
    try:
        return engines[engine](experiment, out, watcher, Terms(), baseline)
    except TooFewClientsError as error:
        raise ConfigError([f"{error}; go on with: fedhca2 resume {out}"]) from None


def resume_on(out: Path, watcher: RunWatcher) -> Result:
    """Go on with a run over Flower on the engine that it began on."""
    from fedhca2.federation.flower.local import resume_local
    from fedhca2.federation.flower.ray import run_ray

    reopen(out).close()  # before anything is started
    engine = read_note(out)["engine"]
    try:
        match engine:
            case "flower-local":
                return resume_local(out, watcher, Terms())
            case "flower-ray":
                return run_ray(Experiment.load(out / "config.yaml"), out, watcher, Terms())
            case _:
                raise ConfigError([f"{out}: go on with: fedhca2 flower serve {out} --superlink HOST:PORT --keys DIR"])
    except TooFewClientsError as error:
        raise ConfigError([f"{error}; go on with: fedhca2 resume {out}"]) from None
