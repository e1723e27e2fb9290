"""`fedhca2 flower` and `fedhca2 privacy`: a federation over a network, and what its noise costs."""

import fedhca2.federation.flower  # noqa: F401  (first: without Flower, it says what to install)

# isort: split
import logging
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from threading import Timer
from typing import Any

import click
import httpx
import typer
from click.core import ParameterSource
from pydantic import ValidationError

from fedhca2.cli.app import open_console, print_json
from fedhca2.cli.run import conclude
from fedhca2.cli.show import print_costs
from fedhca2.clients.privacy import audited_epsilon
from fedhca2.errors import Fault, UserError, list_faults
from fedhca2.experiment import Experiment
from fedhca2.federation.flower.deploy.link import Link, coordinator_link, make_keys
from fedhca2.federation.flower.deploy.site_config import Ledger, SiteConfig, cost
from fedhca2.federation.flower.deploy.superlink import LinkLostError, RunEndedError, SuperLink
from fedhca2.federation.flower.deploy.superlink import write_app as write_bundle
from fedhca2.federation.flower.deploy.worker import work
from fedhca2.federation.flower.fleet import FlowerEngine, check_resumable
from fedhca2.federation.flower.wait import NetworkSettings, TooFewClientsError
from fedhca2.federation.run import resume, run
from fedhca2.reports.console import ConsoleWatcher
from fedhca2.run_folder.folder import default_folder
from fedhca2.run_folder.reader import RunFiles


def keys(folder: Path, sites: str, hosts: str, days: int) -> None:
    """Create a test CA, the SuperLink's certificate, and keys for every site."""
    make_keys(folder, _split(sites), _split(hosts), days)
    typer.echo(f"Wrote {folder}/. Move ca.key off this machine. Copy only sites/NAME to each site.")


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def register(names: list[str], superlink: str, keys: Path) -> None:
    """Register sites with the SuperLink, so that it admits them."""
    link = SuperLink(superlink, keys)
    for name in names:
        node = link.register(name, keys / "sites" / name / "node.pub")
        typer.echo(f"{name}: node {node}")


def evict(names: list[str], superlink: str, keys: Path) -> None:
    """Remove sites from the SuperLink."""
    link = SuperLink(superlink, keys)
    for name in names:
        typer.echo(f"{name}: evicted (node {', '.join(map(str, link.evict(name)))})")


def link(keys: Path, listen: str, superlink: str, database: Path | None, quota: int | None) -> None:
    """Serve sites and runs until stopped, with a SuperLink on loopback and the proxy that sites connect to."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    options = ["--database", str(database)] if database else []
    signal.signal(signal.SIGTERM, exit_in_time)
    with Link(keys, listen, superlink, quota=quota, options=options) as link:
        typer.echo(f"sites can connect to {link.public}; the SuperLink is at {link.superlink.address}", err=True)
        link.wait()


def site(file: Path, superlink: str, keys: Path) -> None:
    """Take part as a site until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for name in ("httpx", "alembic", "flwr"):
        logging.getLogger(name).setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, exit_in_time)
    config = SiteConfig.load(file)
    try:
        work(config, superlink, keys)
    except (KeyboardInterrupt, SystemExit) as stopped:
        os._exit(_exit_code(stopped))  # threads may wait for the network, and everything important is on disk


def exit_in_time(*_: object, grace_s: float = 8.0) -> None:
    """Exit cleanly at a SIGTERM, or force it if that takes too long: a library may have caught the exit."""
    code = 128 + signal.SIGTERM
    last = Timer(grace_s, os._exit, [code])
    last.daemon = True
    last.start()
    sys.exit(code)


def _exit_code(stopped: BaseException) -> int:
    return 128 + (signal.SIGTERM if isinstance(stopped, SystemExit) else signal.SIGINT)


def serve(
    config: str,
    keys: Path,
    superlink: str | None,
    listen: str,
    quota: int | None,
    overrides: list[str] | None,
    out: Path | None,
    as_json: bool,
    **network: Any,
) -> None:
    """Coordinate a run: wait for the sites and run the rounds.

    :param network: the options that are fields of `NetworkSettings`.
    """
    console = open_console(stderr=as_json)
    terms = network_settings(**network | {"deadline": network["deadline"] or None})
    earlier_run = RunFiles(Path(config))
    note = earlier_run.flower_note
    _refuse_idle(("overrides", "out") if note else (), "a resumed run keeps its settings and its folder")
    _refuse_idle(("listen", "quota") if superlink else (), "the link that --superlink names has its own")
    signal.signal(signal.SIGTERM, exit_in_time)
    experiment = earlier_run.experiment() if note else Experiment.load(config, overrides or [])
    folder = Path(config) if note else out or default_folder(experiment.name)
    if note:
        check_resumable(folder)  # before anything is stopped or started
    names = [spec.name for spec in experiment.specs]
    if terms.min_clients is not None and terms.min_clients > len(names):
        raise UserError("--min-clients", f"expected at most {len(names)}, all clients, got {terms.min_clients}")
    repeated = [words for name, words in _typed_options().items() if name not in ("config", "overrides", "out")]
    resume_command = shlex.join(["fedhca2", "flower", "serve", str(folder), *chain(*repeated)])
    try:
        with coordinator_link(superlink, keys, names, listen, quota, folder) as (link, public):
            if public:
                typer.echo(f"sites can connect to {public}; the SuperLink is at {link.address}", err=as_json)
            if note:
                link.stop(int(note["flower_run"]))
            with ConsoleWatcher(console) as watcher, link.run(terms.deadline) as grid:
                engine = FlowerEngine(grid, terms, list_nodes=link.registrations)
                if note:
                    result = resume(folder, watcher=watcher, engine=engine)
                else:
                    result = run(experiment, folder, watcher=watcher, engine=engine)
    except (TooFewClientsError, RunEndedError, LinkLostError, httpx.HTTPError, KeyboardInterrupt, SystemExit) as error:
        hint = f"; resume with: {resume_command}" if RunFiles(folder).begun else ""
        if isinstance(error, Exception):
            raise UserError("", f"{error}{hint}") from None
        typer.echo(f"interrupted{hint}", err=True)
        raise typer.Exit(_exit_code(error)) from None
    conclude(console, result, folder, as_json)


def write_app(folder: Path) -> None:
    """Write the Flower app for Flower's own `flwr run`."""
    write_bundle(folder)
    typer.echo(f"{folder}/pyproject.toml; start it with: flwr run {shlex.quote(str(folder))} CONNECTION")


def _typed_options() -> dict[str, list[str]]:
    """The options that the user typed, as words of a command, by parameter."""
    context, typed = click.get_current_context(), dict[str, list[str]]()
    for option in context.command.params:
        name = option.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params.get(name)
            typed[name] = [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return typed


def _refuse_idle(names: Sequence[str], why: str) -> None:
    """Raise UserError if the user typed one of these options, which would have no effect."""
    for name, (option, *values) in _typed_options().items():
        if name in names:
            raise UserError(option, f"expected none, since {why}, got {values[0]}")


def network_settings(**values: Any) -> NetworkSettings:
    """Build NetworkSettings from options; each mistake is one line."""
    try:
        return NetworkSettings.model_validate(values)
    except ValidationError as error:
        faults = (Fault(f"--{where.replace('_', '-')}", message) for where, message in list_faults(error))
        raise UserError.of(faults) from None


def spent(file: Path, as_json: bool) -> None:
    """Show what a site's noised updates and scores have cost so far, from its own ledger: per run and in total."""
    site = SiteConfig.load(file)
    entries, budget = Ledger.of(site).entries(), site.privacy
    runs = {run: [entry for entry in entries if entry.run == run] for run in dict.fromkeys(e.run for e in entries)}
    rows = [
        {
            "run": run,
            "updates": sum(entry.kind == "update" for entry in spent_in_run),
            "scores": sum(entry.kind == "scores" for entry in spent_in_run),
            "delta": budget.delta,
            "epsilon": cost(spent_in_run, budget.delta),
            "dp_accounting": audited_epsilon(Counter(entry.noise for entry in spent_in_run), budget.delta),
            "budget": budget.epsilon if run == "all runs" else None,
        }
        for run, spent_in_run in [*runs.items(), ("all runs", entries)]
    ]
    if as_json:
        print_json(rows)
    else:
        print_costs(rows)
