"""`fedhca2 flower` and `fedhca2 privacy`: a federation over a network, and what its noise costs."""

import logging
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from threading import Timer
from typing import Annotated, Any, Literal

import click
import typer
from click.core import ParameterSource
from rich.markup import escape
from typer import Argument, Option

from fedhca2.cli import lazy, options
from fedhca2.cli.app import command, new_group, open_console, print_json
from fedhca2.cli.run import conclude
from fedhca2.errors import Fault, UserError, list_faults
from fedhca2.run_folder.folder import default_folder

flower = new_group("flower", "Deploy", "Run a federation over a network with Flower.")
privacy = new_group("privacy", "Deploy", "Plan differential privacy, and show what a site has spent.")

Keys = Annotated[Path, Option(help="The coordinator's folder, written by `fedhca2 flower keys`.")]
Names = Annotated[list[str], Argument(help="Names of the sites.")]
Address = Annotated[str, Option(metavar="HOST:PORT", help="Address of the SuperLink.")]
Listen = Annotated[str, Option(metavar="HOST:PORT", help="Public address that sites connect to.")]
Quota = Annotated[int | None, Option(min=1, metavar="BYTES", help="Upload limit per message.", show_default="2 GiB")]


@command(flower)
def keys(
    folder: Annotated[Path, Argument(help="New folder to write to.")],
    sites: Annotated[str, Option(help="Comma-separated site names.")],
    hosts: Annotated[
        str,
        Option(help="Comma-separated host names and IP addresses for the certificate.", show_default="loopback only"),
    ] = "",
    days: Annotated[int, Option(min=1, help="Validity of the certificates in days.")] = 365,
) -> None:
    """Create a test CA, the SuperLink's certificate, and keys for every site."""
    lazy.link.make_keys(folder, _split(sites), _split(hosts), days)
    typer.echo(f"Wrote {folder}/. Move ca.key off this machine. Copy only sites/NAME to each site.")


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@command(flower)
def register(names: Names, superlink: Address, keys: Keys) -> None:
    """Register sites with the SuperLink."""
    link = lazy.superlink.SuperLink(superlink, keys)
    for name in names:
        node = link.register(name, keys / "sites" / name / "node.pub")
        typer.echo(f"{name}: node {node}")


@command(flower)
def evict(names: Names, superlink: Address, keys: Keys) -> None:
    """Remove sites from the SuperLink."""
    link = lazy.superlink.SuperLink(superlink, keys)
    for name in names:
        typer.echo(f"{name}: evicted (node {', '.join(map(str, link.evict(name)))})")


@command(flower)
def link(
    keys: Keys,
    listen: Listen = "0.0.0.0:8000",
    superlink: Annotated[
        str, Option(metavar="HOST:PORT", help="Loopback address for the coordinator's commands.")
    ] = "127.0.0.1:8001",
    database: Annotated[Path | None, options.Unset(help="File that keeps registered keys across restarts.")] = None,
    quota: Quota = None,
) -> None:
    """Keep a SuperLink and its public proxy running for several runs."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    options = ["--database", str(database)] if database else []
    signal.signal(signal.SIGTERM, exit_in_time)
    with lazy.link.Link(keys, listen, superlink, quota=quota, options=options) as link:
        typer.echo(f"sites can connect to {link.public}; the SuperLink is at {link.superlink.address}", err=True)
        link.wait()


@command(flower)
def site(
    file: Annotated[Path, Argument(help="Settings of the site: client, tasks, data, state.")],
    superlink: Address,
    keys: Annotated[Path, Option(help="This site's folder with node.key, ca.crt and secret.")],
) -> None:
    """Run this machine as a site."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # timm reads it on import
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads otherwise keep cores busy that others need
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for name in ("httpx", "alembic", "flwr"):
        logging.getLogger(name).setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, exit_in_time)
    config = lazy.site_config.SiteConfig.load(file)
    try:
        lazy.worker.work(config, superlink, keys)
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


@command(flower)
def serve(
    config: Annotated[
        str,
        options.Experiment(
            metavar="EXPERIMENT_OR_RUN",
            help="Path of a YAML file, a built-in experiment, or the folder of a run to resume.",
        ),
    ],
    keys: Keys,
    superlink: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="Address of a running SuperLink.", show_default="starts a SuperLink"),
    ] = None,
    listen: Listen = "0.0.0.0:8000",
    quota: Quota = None,
    overrides: options.Overrides = None,
    out: options.RunOut = None,
    deadline: Annotated[float, Option(help="Seconds per round; 0: no limit.")] = 3600,
    min_clients: Annotated[int | None, Option(help="Minimum replies per round.", show_default="all clients")] = None,
    retries: Annotated[int, Option(help="Retries per failed client and round.")] = 2,
    wire: Annotated[
        Literal["float32", "bfloat16"], Option(help="Number type in messages; bfloat16 halves the bytes.")
    ] = "float32",
    spool: Annotated[
        bool, Option("--spool", help="Keep replies in files, which saves memory with many clients.")
    ] = False,
    allow_code: options.AllowCode = None,
    as_json: options.Json = False,
) -> None:
    """Coordinate a run: wait for the sites, then run the rounds."""
    console = open_console(stderr=as_json)
    values = {"min_clients": min_clients, "retries": retries, "wire": wire, "spool": spool}
    try:
        terms = lazy.wait.NetworkSettings.model_validate({"deadline": deadline or None, **values})
    except lazy.pydantic.ValidationError as error:
        faults = (Fault(f"--{where.replace('_', '-')}", message) for where, message in list_faults(error))
        raise UserError.of(faults) from None
    earlier_run = lazy.reader.RunFiles(Path(config))
    note = earlier_run.flower_note
    _refuse_idle(("overrides", "out") if note else (), "a resumed run keeps its settings and its folder")
    _refuse_idle(("listen", "quota") if superlink else (), "the link that --superlink names has its own")
    signal.signal(signal.SIGTERM, exit_in_time)
    experiment = earlier_run.experiment() if note else lazy.experiment.Experiment.load(config, overrides or [])
    folder = Path(config) if note else out or default_folder(experiment.name)
    if note:
        lazy.fleet.check_resumable(folder)  # before anything is stopped or started
    names = [spec.name for spec in experiment.specs]
    if terms.min_clients is not None and terms.min_clients > len(names):
        raise UserError("--min-clients", f"expected at most {len(names)}, all clients, got {terms.min_clients}")
    repeated = [words for name, words in _typed_options().items() if name not in ("config", "overrides", "out")]
    resume_command = shlex.join(["fedhca2", "flower", "serve", str(folder), *chain(*repeated)])
    lost = (
        lazy.wait.TooFewClientsError,
        lazy.superlink.RunEndedError,
        lazy.superlink.LinkLostError,
        lazy.httpx.HTTPError,
    )
    try:
        with lazy.link.coordinator_link(superlink, keys, names, listen, quota, folder) as (link, public):
            if public:
                typer.echo(f"sites can connect to {public}; the SuperLink is at {link.address}", err=as_json)
            if note:
                link.stop(int(note["flower_run"]))
            with lazy.console.ConsoleWatcher(console) as watcher, link.run(terms.deadline) as grid:
                engine = lazy.fleet.FlowerEngine(grid, terms, list_nodes=link.registrations)
                if note:
                    result = lazy.run.resume(folder, watcher=watcher, engine=engine)
                else:
                    result = lazy.run.run(experiment, folder, watcher=watcher, engine=engine)
    except (*lost, KeyboardInterrupt, SystemExit) as error:
        hint = f"; resume with: {resume_command}" if lazy.reader.RunFiles(folder).begun else ""
        if isinstance(error, Exception):
            raise UserError("", f"{error}{hint}") from None
        typer.echo(f"interrupted{hint}", err=True)
        raise typer.Exit(_exit_code(error)) from None
    conclude(console, result, folder, as_json)


@command(flower, "app")
def write_app(folder: Annotated[Path, Argument(help="New folder to write to.")]) -> None:
    """Write the Flower app for Flower's own `flwr run`."""
    lazy.superlink.write_app(folder)
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


@command(privacy)
def plan(
    epsilon: Annotated[float | None, Option(help="Total ε of all rounds.", show_default="computed")] = None,
    rounds: Annotated[
        int | None, Option(help="Rounds in which a client sends an update.", show_default="computed")
    ] = None,
    noise: Annotated[
        float | None, Option(help="Noise, as in the setting privacy.noise.", show_default="computed")
    ] = None,
    delta: Annotated[float, Option(help="δ of the (ε, δ) guarantee.")] = 1e-5,
    as_json: options.Json = False,
) -> None:
    """Compute the noise, the rounds or ε from the other two."""
    bounds = {"--epsilon": (epsilon, 1e-9, 1e9), "--rounds": (rounds, 1, 1e9)}
    bounds |= {"--noise": (noise, lazy.privacy.MIN_NOISE, 1e9), "--delta": (delta, 1e-30, 0.5)}
    faults = [
        Fault(option, f"expected a value from {low:g} to {high:g}, got {value:g}")
        for option, (value, low, high) in bounds.items()
        if value is not None and not low <= value <= high
    ]
    if faults:
        raise UserError.of(faults)
    match epsilon, rounds, noise:
        case float(), int(), None:
            noise = lazy.privacy.noise_for(epsilon, rounds, delta)
        case float(), None, float():
            rounds = lazy.privacy.updates_for(epsilon, noise, delta)
        case None, int(), float():
            pass
        case values:
            count = sum(value is not None for value in values)
            raise UserError("plan", f"expected two of --epsilon, --rounds and --noise, got {count}")
    audited = lazy.privacy.audited_epsilon({noise: rounds}, delta)
    costs = {"epsilon": lazy.privacy.epsilon(noise, rounds, delta), "dp_accounting": audited}
    figures = {"noise": noise, "rounds": rounds, "delta": delta, **costs}
    if as_json:
        print_json(figures)
    else:
        _print_costs([figures])


@command(privacy)
def spent(file: Annotated[Path, Argument(help="Settings of the site.")], as_json: options.Json = False) -> None:
    """Show the privacy budget that a site has spent, per run and in total."""
    site = lazy.site_config.SiteConfig.load(file)
    entries, budget = lazy.site_config.Ledger.of(site).entries(), site.privacy
    runs = {run: [entry for entry in entries if entry.run == run] for run in dict.fromkeys(e.run for e in entries)}
    rows = [
        {
            "run": run,
            "updates": sum(entry.kind == "update" for entry in spent_in_run),
            "scores": sum(entry.kind == "scores" for entry in spent_in_run),
            "delta": budget.delta,
            "epsilon": lazy.site_config.cost(spent_in_run, budget.delta),
            "dp_accounting": lazy.privacy.audited_epsilon(Counter(entry.noise for entry in spent_in_run), budget.delta),
            "budget": budget.epsilon if run == "all runs" else None,
        }
        for run, spent_in_run in [*runs.items(), ("all runs", entries)]
    ]
    if as_json:
        print_json(rows)
    else:
        _print_costs(rows)


def _print_costs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print figures about privacy; unknown ones, as without the extra 'privacy', stay empty."""
    titles = {"delta": "δ", "epsilon": "ε", "dp_accounting": "ε by dp-accounting"}
    names = [titles.get(key, key) for key in rows[0]]
    filled = [["" if value is None else value for value in row.values()] for row in rows]
    cells = [[f"{value:.6g}" if isinstance(value, float) else escape(str(value)) for value in row] for row in filled]
    drop = [titles["dp_accounting"], "scores", "δ"]
    open_console().print(lazy.tables.TextTable(names, cells, right=names, drop=drop))
