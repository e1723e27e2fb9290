"""Flower's simulation with Ray: clients spread over several GPUs of one machine."""

import os
from pathlib import Path

from flwr.app import ConfigRecordValues, Context
from flwr.serverapp import Grid, ServerApp

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import RunWatcher
from fedhca2.federation.flower.client_app import make_app
from fedhca2.federation.flower.engine import FlowerEngine
from fedhca2.federation.flower.local import collecting, sites_folder, write_sites
from fedhca2.federation.flower.network_settings import NetworkSettings
from fedhca2.federation.run import run_or_resume
from fedhca2.run_folder.result import Result


def run_ray(
    experiment: Experiment, out: Path, watcher: RunWatcher, terms: NetworkSettings, baseline: Path | None = None
) -> Result:
    """Run an experiment in a simulation, or go on with it if its folder is there; a client gets one CPU, or one GPU."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads it when it is imported
    try:
        import ray
    except ImportError:
        raise UserError(
            ["--engine flower-ray: should have ray, found none; pip install 'fedhca2[flower-ray]'"]
        ) from None
    import torch
    from flwr.simulation import run_simulation

    terms = terms.model_copy(update={"named": False})  # the simulation's nodes have no keys
    files = list(write_sites(experiment, sites_folder(out)).values())
    server = ServerApp()
    collect = collecting(experiment, out)
    results: list[Result] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        engine = FlowerEngine(grid, terms, "flower-ray", collect)
        results.append(run_or_resume(experiment, out, watcher=watcher, engine=engine, baseline=baseline))

    gpus = torch.cuda.device_count()
    resources: dict[str, ConfigRecordValues] = {"num_cpus": 1, "num_gpus": 1.0 if gpus else 0.0}
    try:
        run_simulation(server, make_app(files=files), len(files), backend_config={"client_resources": resources})
    finally:
        ray.shutdown()
    if not results:
        raise RuntimeError("the simulation ended without a result; its log says why")
    return results[0]
