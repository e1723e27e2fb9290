"""Starts the engines of `fedhca2 run` that are more than this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import httpx

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import RunWatcher
from fedhca2.federation.flower.engine import check_resumable, read_note
from fedhca2.federation.flower.fleet import TooFewClientsError
from fedhca2.federation.flower.network_settings import NetworkSettings
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Result
from fedhca2.run_folder.writer import RunFolder

Engine = Literal["flower-local", "flower-ray"]


def run_on(engine: Engine, experiment: Experiment, out: Path, watcher: RunWatcher, baseline: Path | None) -> Result:
    """Run an experiment on this machine over Flower."""
    RunFolder.new(out)  # before anything is started
    return _launch(engine, experiment, out, watcher, baseline)


def resume_on(out: Path, watcher: RunWatcher, overrides: Sequence[str] | None = None) -> Result:
    """Go on with a run over Flower on the engine that it began on, without overrides."""
    if overrides:
        raise UserError([f"--set: a run over Flower goes on as it was, found {overrides[0]}"])
    check_resumable(out)  # before anything is started
    engine = read_note(out)["engine"]
    if engine not in get_args(Engine):
        raise UserError([f"{out}: go on with: fedhca2 flower serve {out} --keys DIR"])
    return _launch(engine, RunFiles(out).experiment(), out, watcher, None)


def _launch(engine: Engine, experiment: Experiment, out: Path, watcher: RunWatcher, baseline: Path | None) -> Result:
    from fedhca2.federation.flower.local import run_local
    from fedhca2.federation.flower.ray import run_ray
    from fedhca2.federation.flower.superlink import RunEndedError

    engines = {"flower-local": run_local, "flower-ray": run_ray}
    try:
        return engines[engine](experiment, out, watcher, NetworkSettings(), baseline)
    except (TooFewClientsError, RunEndedError, httpx.HTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError([f"{reason}; go on with: fedhca2 resume {out}"]) from None
