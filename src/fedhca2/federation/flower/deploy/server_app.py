"""The ServerApp, for `flwr run`: Flower starts it beside the SuperLink, and the run config says what to do."""

import logging
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.flower.engine import FlowerEngine
from fedhca2.federation.flower.network_settings import NetworkSettings
from fedhca2.federation.run import run_or_resume
from fedhca2.run_folder.records import ServerRecord, Watcher

log = logging.getLogger("fedhca2.server")
app = ServerApp()


class LogWatcher(Watcher):
    """Logs a line for every round."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Log what will be trained."""
        log.info("%s: %d clients, %d rounds", experiment.method_name, len(shards), experiment.rounds)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Log how long a round took, and who was left out."""
        away = "".join(f"; without {client}: {why}" for client, why in record.refused.items())
        log.info("round %d took %.1f s%s", round + 1, seconds, away)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run config, or continue it if its folder exists."""
    config = context.run_config
    terms = NetworkSettings(
        deadline=float(config["deadline"]) or None,
        min_clients=int(config["min-clients"]) or None,
        retries=int(config["retries"]),
        wire=config["wire"],
        spool=bool(config["spool"]),
    )
    out = Path(str(config["out"]))
    experiment = Experiment.load(str(config["experiment"]))
    run_or_resume(experiment, out, watcher=LogWatcher(), engine=FlowerEngine(grid, terms))
