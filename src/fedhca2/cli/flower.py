"""`fedhca2 flower`: a federation over a network."""

import logging
import os
import signal
import sys
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors
from fedhca2.cli.run import BY_SIGNAL, conclude, stopped

flower = typer.Typer(name="flower", help="Run a federation over a network with Flower.", no_args_is_help=True)
app.add_typer(flower)

Keys = Annotated[Path, typer.Option(help="The folder that 'fedhca2 flower keys' wrote.")]
Names = Annotated[list[str], typer.Argument(help="The sites' names.")]
Address = Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="Where the SuperLink is.")]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="The public address, where sites come to.")]
Quota = Annotated[
    int | None,
    typer.Option(min=1, metavar="BYTES", help="How much a site may send for each message that it is given; 2 GiB."),
]
PUBLIC = "0.0.0.0:8000"
PATIENCE = 5.0  # seconds that a site has to end in order


@flower.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option(help="The clients' names, with commas between them.")],
    hosts: Annotated[str, typer.Option(help="Names and addresses of the SuperLink, with commas.")] = "",
    days: Annotated[int, typer.Option(min=1, help="How long certificates are good for.")] = 365,
) -> None:
    """Make a test CA, the SuperLink's certificate, and keys for every site."""
    with clear_errors():
        from fedhca2.federation.flower.keys import make_keys

        make_keys(folder, _listed(sites), _listed(hosts), days)
    typer.echo(f"{folder}/: keep ca.key apart; take sites/NAME to each site, and nothing else")


@flower.command()
def register(
    names: Names,
    superlink: Address,
    keys: Keys,
) -> None:
    """Tell the SuperLink which sites it lets in."""
    with clear_errors():
        from fedhca2.federation.flower.superlink import SuperLink

        link = SuperLink.at(superlink, keys)
        for name in names:
            node = link.register(name, keys / "sites" / name / "node.pub")
            typer.echo(f"{name}: node {node}")


@flower.command()
def evict(
    names: Names,
    superlink: Address,
    keys: Keys,
) -> None:
    """Have the SuperLink let sites in no more."""
    with clear_errors():
        from fedhca2.federation.flower.superlink import SuperLink

        link = SuperLink.at(superlink, keys)
        for name in names:
            typer.echo(f"{name}: no longer node {', '.join(map(str, link.evict(name)))}")


@flower.command()
def link(
    keys: Keys,
    listen: Listen = PUBLIC,
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="An address of loopback, for the coordinator's commands.")
    ] = "127.0.0.1:8001",
    database: Annotated[Path | None, typer.Option(help="A file that registered keys outlast a restart in.")] = None,
    quota: Quota = None,
) -> None:
    """Be there for sites and runs until stopped: a SuperLink on loopback, and the proxy that sites come to."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    with clear_errors(), stopped():
        from fedhca2.federation.flower.link import Link

        options = ["--database", str(database)] if database else []
        with Link(keys, listen, superlink, quota=quota, options=options) as found:
            found.keep()


@flower.command()
def site(
    file: Annotated[Path, typer.Argument(help="The site's own file: client, tasks, data, state.")],
    superlink: Address,
    keys: Keys,
) -> None:
    """Take part as one site, until stopped."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # timm reads it when it is imported
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for name in ("httpx", "alembic", "flwr"):
        logging.getLogger(name).setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, leave_in_time)
    with clear_errors():
        from fedhca2.federation.flower.site_config import SiteConfig
        from fedhca2.federation.flower.worker import SiteKeys, work

        config = SiteConfig.load(file)
        try:
            work(config, superlink, SiteKeys(keys))
        except (KeyboardInterrupt, SystemExit):
            os._exit(BY_SIGNAL + signal.SIGTERM)  # threads may wait for the network; what counts is on the disk


def leave_in_time(*_: object) -> None:
    """End in order, or without it where that takes long: a library may have caught the exit, and gone on."""
    code = BY_SIGNAL + signal.SIGTERM
    last = Timer(PATIENCE, os._exit, [code])
    last.daemon = True
    last.start()
    sys.exit(code)


@flower.command()
def serve(
    config: Annotated[str, typer.Argument(help="A YAML file, an embedded experiment, or a run's folder to resume.")],
    keys: Keys,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A SuperLink that runs already; by default one is started."),
    ] = None,
    listen: Listen = PUBLIC,
    quota: Quota = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; a new one under runs/ by default.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds for a round; 0: no end.")] = 3600,
    min_clients: Annotated[int | None, typer.Option(help="Replies that a round needs; by default all.")] = None,
    retries: Annotated[int, typer.Option(help="How often an order that failed is given again.")] = 2,
    wire: Annotated[str, typer.Option(help="float32, or bfloat16 for half the bytes.")] = "float32",
    spool: Annotated[bool, typer.Option("--spool", help="Keep replies in files: many clients, little memory.")] = False,
) -> None:
    """Coordinate a run: wait for the sites, and go through the rounds."""
    console = Console()
    with clear_errors(), stopped():
        import httpx

        from fedhca2.errors import UserError
        from fedhca2.experiment import Experiment
        from fedhca2.federation.flower.engine import FlowerEngine, check_resumable
        from fedhca2.federation.flower.fleet import TooFewClientsError
        from fedhca2.federation.flower.link import coordinator_link
        from fedhca2.federation.flower.superlink import RunEndedError
        from fedhca2.federation.run import resume, run
        from fedhca2.reports.console import ConsoleWatcher
        from fedhca2.run_folder.names import default_folder
        from fedhca2.run_folder.reader import RunFiles

        terms = network_settings(
            deadline=deadline or None, min_clients=min_clients, retries=retries, wire=wire, spool=spool
        )
        begun = RunFiles(Path(config))
        note = begun.flower_note
        experiment = begun.experiment(overrides) if note else Experiment.load(config, overrides or [])
        folder = Path(config) if note else out or default_folder(experiment.name)
        if note:
            check_resumable(folder)  # before anything is stopped or started
        names = [spec.name for spec in experiment.specs]
        try:
            with coordinator_link(superlink, keys, names, listen, quota, folder) as link:
                if not superlink:
                    typer.echo(f"sites can come to {listen}; the SuperLink is at {link.address}")
                if note:
                    link.stop(int(note["flower_run"]))
                with ConsoleWatcher(console) as watcher, link.run() as grid:
                    engine = FlowerEngine(grid, terms, look=link.registrations)
                    if note:
                        result = resume(folder, watcher=watcher, engine=engine)
                    else:
                        result = run(experiment, folder, watcher=watcher, engine=engine)
        except (TooFewClientsError, RunEndedError, httpx.HTTPError) as error:
            raise UserError([f"{error}; go on with: fedhca2 flower serve {folder} …"]) from None
    conclude(console, result, folder)


@flower.command("app")
def write_app(folder: Annotated[Path, typer.Argument(help="A new folder.")]) -> None:
    """Write the Flower app for `flwr run`, Flower's own way."""
    with clear_errors():
        from fedhca2.federation.flower.app_bundle import write_app as write

        write(folder)
    typer.echo(f"{folder}/pyproject.toml; start it with: flwr run {folder} CONNECTION")


def network_settings(**values: Any) -> Any:
    """NetworkSettings from options; what is wrong with them is a line each."""
    from pydantic import ValidationError

    from fedhca2.errors import UserError
    from fedhca2.experiment.errors import describe
    from fedhca2.federation.flower.network_settings import NetworkSettings

    try:
        return NetworkSettings.model_validate(values)
    except ValidationError as error:
        raise UserError([f"--{line.replace('_', '-', 1)}" for line in describe(error)]) from None


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
