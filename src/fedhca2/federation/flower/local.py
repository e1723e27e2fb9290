"""A whole federation on this machine over Flower: one process per site, or a simulation with Ray."""

import json
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Literal, get_args

import httpx
import torch
import yaml
from flwr.app import ConfigRecordValues, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file

from fedhca2.clients import DeviceSlot
from fedhca2.clients.evaluation import sample_labels, sample_predictions
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data, partition_as_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.flower.deploy.consent import EMBEDDED_WEIGHTS, TOLD_KINDS
from fedhca2.federation.flower.deploy.link import Link, make_keys
from fedhca2.federation.flower.deploy.processes import start
from fedhca2.federation.flower.deploy.site import MODEL_FILE
from fedhca2.federation.flower.deploy.site_config import SiteLimits
from fedhca2.federation.flower.deploy.superlink import LinkLostError, RunEndedError
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.fleet import FlowerEngine, check_resumable, check_spread, read_note
from fedhca2.federation.flower.wait import NetworkSettings, TooFewClientsError
from fedhca2.federation.membership import shards_after
from fedhca2.federation.run import run_or_resume
from fedhca2.imports import require_paths
from fedhca2.run_folder.folder import PARTITION, require_own_files
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher
from fedhca2.run_folder.result import Result
from fedhca2.run_folder.writer import RunFolder, check_fresh
from fedhca2.whole_files import private_folder

Engine = Literal["flower-local", "flower-ray"]
log = logging.getLogger("fedhca2.server")


def run_over_flower(
    experiment: Experiment, out: Path, *, watcher: Watcher, engine: Engine, baseline: Path | None = None
) -> Result:
    """Run an experiment on this machine over Flower."""
    check_fresh(out)  # before anything is started
    check_spread(experiment)
    return _launch(engine, experiment, out, watcher, baseline)


def resume_over_flower(out: Path, *, watcher: Watcher, overrides: Sequence[str] | None = None) -> Result:
    """Continue a run over Flower on its original engine, without overrides."""
    if overrides:
        fault = f"expected none, since a resumed run over Flower keeps its settings, got {overrides[0]}"
        raise UserError("--set", fault)
    require_own_files(sites_folder(out))
    check_resumable(out)  # before anything is started
    engine = read_note(out)["engine"]
    if engine not in get_args(Engine):
        command = shlex.join(["fedhca2", "flower", "serve", str(out)])
        raise UserError(out, f"over Flower, resume it with: {command} --keys DIR")
    return _launch(engine, RunFiles(out).experiment(), out, watcher, None)


def _launch(engine: Engine, experiment: Experiment, out: Path, watcher: Watcher, baseline: Path | None) -> Result:
    require_paths("engine", experiment.own_code)
    run = run_local if engine == "flower-local" else run_ray
    try:
        terms = NetworkSettings(await_refused=False)  # these sites' settings cannot change
        return run(experiment, out, watcher, terms, baseline)
    except (TooFewClientsError, RunEndedError, LinkLostError, httpx.HTTPError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = f"; resume with: {shlex.join(['fedhca2', 'resume', str(out)])}" if RunFiles(out).begun else ""
        raise UserError("", reason + hint) from None


def run_local(
    experiment: Experiment, out: Path, watcher: Watcher, terms: NetworkSettings, baseline: Path | None = None
) -> Result:
    """Run an experiment with each client in its own process, or continue it if its folder exists.

    No process is left running, however it ends. Logs and the sites' states are next to the run's folder. If the
    SuperLink ends a Flower run early, the work continues in a new one: it does so when the clock jumps, since
    heartbeats, tokens and messages expire by wall-clock time.
    """
    names, sites, stalled = [spec.name for spec in experiment.specs], sites_folder(out), 0
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedhca2-flower-")))
        make_keys(home / "keys", names)
        files = write_sites(experiment, sites, continued=RunFiles(out).begun)
        link = stack.enter_context(Link(home / "keys", "127.0.0.1:0", logs=sites))
        link.register(names)
        for name in names:
            keys = home / "keys" / "sites" / name
            link.add(f"site {name}", partial(start_site, link.public, files[name], keys, home / name, sites))
        while True:
            before = RunFiles(out).checkpoints
            try:
                with link.superlink.run(terms.deadline) as grid:
                    registrations = link.superlink.registrations
                    engine = FlowerEngine(grid, terms, "flower-local", partial(collect, out), registrations)
                    return run_or_resume(experiment, out, watcher=watcher, engine=engine, baseline=baseline)
            except (RunEndedError, httpx.HTTPStatusError) as error:
                stalled = stalled + 1 if RunFiles(out).checkpoints == before else 0
                if stalled > 2:  # of the Flower runs in a row, none has completed a round
                    raise
                log.warning("%s; continuing in a new run from the last checkpoint", str(error).splitlines()[0])


def sites_folder(out: Path) -> Path:
    """The folder of a local federation's site states and logs."""
    return out.with_name(f"{out.name}.sites")


def write_sites(experiment: Experiment, folder: Path, *, continued: bool = False) -> dict[str, Path]:
    """Write a file for every client's site, with the images that the experiment's partition gives it.

    It allows everything the experiment asks for: whoever starts these sites owns all their data. The sites of a run
    that is `continued` get the images that they had.
    """
    opened, saved = open_data(experiment), RunFiles(folder)
    known = continued and saved.partition is not None
    shards = shards_after(experiment, opened, saved) if known else assign_shards(experiment, opened)
    partition = partition_as_data(experiment, opened, shards)
    files = {}
    lock_folder = private_folder(private_folder(folder) / "turns").resolve()
    (folder / PARTITION).write_text(json.dumps(partition), "utf-8")
    for spec in experiment.specs:
        data = experiment.data[spec.data]
        own = {key for key, value in data if data.kind not in TOLD_KINDS or isinstance(value, Path)} - {"partition"}
        paths = {key: str(Path(value).resolve()) for key, value in data if isinstance(value, Path)}
        settings = data.model_dump(mode="json", include=own) | paths
        images = folder.resolve() / f"{spec.name}.images.json"
        images.write_text(json.dumps({spec.name: partition[spec.name]["dealt"]}), "utf-8")
        site = {
            "client": spec.name,
            "tasks": list(spec.tasks),
            "state": str(folder.resolve() / "state"),
            "data": {**settings, "partition": {"kind": "lists", "file": str(images)}},
            "own_tasks": {name: task.model_dump(exclude_none=True) for name, task in experiment.tasks.items()},
            "methods": [experiment.method_name, "local"],
            "share": ["encoder", "decoder", "head"],
            "encoders": [spec.model.encoder.title, *(part.kind for part in spec.model.own_parts.values())],
            "scores": "all",
            "sums": {"rows": 2, "share": 1.0},
            "limits": dict.fromkeys(SiteLimits.model_fields, sys.maxsize),
            "turns": str(lock_folder),
        }
        weights = spec.model.encoder.weights
        if weights not in EMBEDDED_WEIGHTS:
            site["weights"] = weights if weights == "timm" else str(Path(weights).resolve())
        files[spec.name] = folder / f"{spec.name}.yaml"
        files[spec.name].write_text(yaml.safe_dump(site, sort_keys=False), "utf-8")
    return files


def start_site(public: str, site: Path, keys: Path, home: Path, logs: Path) -> Popen[bytes]:
    """Start a site's process."""
    command = ["fedhca2", "flower", "site", str(site), "--superlink", public, "--keys", str(keys)]
    return start(command, home, logs / f"{site.stem}.log")


def collect(out: Path, experiment: Experiment, run: str, folder: RunFolder) -> None:
    """Give a run's folder what it has after a run in one process: models, samples, the partition.

    The sites' data are on this machine, and each site has the images that the experiment's partition gives it.
    """
    data, cpu = open_data(experiment), DeviceSlot(torch.device("cpu"))
    shards = shards_after(experiment, data, RunFiles(sites_folder(out)))
    folder.save_partition(partition_as_data(experiment, data, shards))
    for plan in plan_clients(experiment, data, shards, cpu):
        trained = sites_folder(out) / "state" / f"{experiment.name}-{run}" / plan.spec.name / MODEL_FILE
        if not trained.exists():
            continue
        client = plan.build()
        samples = sample_labels(client) | sample_predictions(client, "before")
        client.personal.model.load_state_dict(load_file(trained))
        folder.save_model(client.name, client.personal.model)
        folder.save_samples(client.name, samples | sample_predictions(client, "after"))


def run_ray(
    experiment: Experiment, out: Path, watcher: Watcher, terms: NetworkSettings, baseline: Path | None = None
) -> Result:
    """Run an experiment in a simulation, or continue it if its folder exists; a client gets one CPU or one GPU."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads it on import
    try:
        import ray
    except ImportError:
        raise UserError("--engine flower-ray", "Ray is not installed; run: pip install 'fedhca2[flower-ray]'") from None
    from flwr.simulation import run_simulation

    terms = terms.model_copy(update={"named": False})  # the simulation's nodes have no keys
    files = list(write_sites(experiment, sites_folder(out), continued=RunFiles(out).begun).values())
    server = ServerApp()
    results: list[Result] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        engine = FlowerEngine(grid, terms, "flower-ray", partial(collect, out))
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
