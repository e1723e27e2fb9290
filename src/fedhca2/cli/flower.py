"""`fedhca2 flower`: a federation over a network."""

import logging
import os
import shlex
import signal
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource

from fedhca2.cli.app import AllowCode, Json, app, clear_errors, console_beside
from fedhca2.cli.completion import Overrides, experiments
from fedhca2.cli.run import BY_SIGNAL, conclude

flower = typer.Typer(
    name="flower", help="Run a federation over a network with Flower.", no_args_is_help=True, suggest_commands=False
)
app.add_typer(flower)

Keys = Annotated[Path, typer.Option(help="The coordinator's folder, which 'fedhca2 flower keys' wrote.")]
SiteFolder = Annotated[Path, typer.Option("--keys", help="This site's own folder with node.key, ca.crt and secret.")]
Names = Annotated[list[str], typer.Argument(help="The sites' names.")]
Address = Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="The SuperLink's address.")]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="The public address that sites connect to.")]
Quota = Annotated[
    int | None,
    typer.Option(min=1, metavar="BYTES", help="Bytes a site may send for each message it receives; 2 GiB."),
]
PUBLIC = "0.0.0.0:8000"
PATIENCE = 8.0  # seconds for a command to shut down cleanly


@flower.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option(help="The clients' names, separated by commas.")],
    hosts: Annotated[str, typer.Option(help="The SuperLink's names and addresses, separated by commas.")] = "",
    days: Annotated[int, typer.Option(min=1, help="Days that certificates are valid.")] = 365,
) -> None:
    """Create a test CA, the SuperLink's certificate, and keys for every site."""
    with clear_errors():
        from fedhca2.federation.flower.deploy.keys import make_keys

        make_keys(folder, _listed(sites), _listed(hosts), days)
    typer.echo(f"{folder}/: keep ca.key elsewhere; take only sites/NAME to each site")


@flower.command()
def register(
    names: Names,
    superlink: Address,
    keys: Keys,
) -> None:
    """Register sites with the SuperLink, so that it admits them."""
    with clear_errors():
        from fedhca2.federation.flower.deploy.superlink import SuperLink

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
    """Make the SuperLink exclude sites."""
    with clear_errors():
        from fedhca2.federation.flower.deploy.superlink import SuperLink

        link = SuperLink.at(superlink, keys)
        for name in names:
            typer.echo(f"{name}: no longer node {', '.join(map(str, link.evict(name)))}")


@flower.command()
def link(
    keys: Keys,
    listen: Listen = PUBLIC,
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A loopback address for the coordinator's commands.")
    ] = "127.0.0.1:8001",
    database: Annotated[Path | None, typer.Option(help="A file that keeps registered keys across restarts.")] = None,
    quota: Quota = None,
) -> None:
    """Serve sites and runs until stopped, with a SuperLink on loopback and the proxy that sites connect to."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    with clear_errors(), leaving_in_time():
        from fedhca2.federation.flower.deploy.link import Link

        options = ["--database", str(database)] if database else []
        with Link(keys, listen, superlink, quota=quota, options=options) as link:
            typer.echo(f"sites can connect to {link.public}; the SuperLink is at {link.superlink.address}", err=True)
            link.wait()


@flower.command()
def site(
    file: Annotated[Path, typer.Argument(help="The site's own file: client, tasks, data, state.")],
    superlink: Address,
    keys: SiteFolder,
) -> None:
    """Take part as a site until stopped."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # timm reads it on import
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads otherwise keep cores busy that others need
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for name in ("httpx", "alembic", "flwr"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with clear_errors(), leaving_in_time():
        from fedhca2.federation.flower.deploy.site_config import SiteConfig
        from fedhca2.federation.flower.deploy.worker import SiteKeys, work

        config = SiteConfig.load(file)
        try:
            work(config, superlink, SiteKeys(keys))
        except (KeyboardInterrupt, SystemExit) as stopped:
            # Threads may wait for the network, and everything important is on disk.
            os._exit(BY_SIGNAL + (signal.SIGTERM if isinstance(stopped, SystemExit) else signal.SIGINT))


@contextmanager
def leaving_in_time() -> Iterator[None]:
    """Let SIGTERM end what happens in here as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, leave_in_time)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def leave_in_time(*_: object) -> None:
    """Exit cleanly, or force it if that takes too long: a library may have caught the exit and continued."""
    code = BY_SIGNAL + signal.SIGTERM
    last = Timer(PATIENCE, os._exit, [code])
    last.daemon = True
    last.start()
    sys.exit(code)


@flower.command()
def serve(
    config: Annotated[
        str,
        typer.Argument(
            help="A YAML file, an embedded experiment, or a run's folder to resume.", autocompletion=experiments
        ),
    ],
    keys: Keys,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The address of a running SuperLink; by default one is started."),
    ] = None,
    listen: Listen = PUBLIC,
    quota: Quota = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; a new one under runs/ by default.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds per round; 0: no limit.")] = 3600,
    min_clients: Annotated[int | None, typer.Option(help="Replies a round needs; by default all.")] = None,
    retries: Annotated[int, typer.Option(help="How often a failed order is repeated.")] = 2,
    wire: Annotated[str, typer.Option(help="float32, or bfloat16 for half the bytes.")] = "float32",
    spool: Annotated[
        bool, typer.Option("--spool", help="Keep replies in files, to save memory with many clients.")
    ] = False,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Coordinate a run: wait for the sites and run the rounds."""
    console = console_beside(as_json)
    with clear_errors(), leaving_in_time():
        import httpx

        from fedhca2.errors import UserError
        from fedhca2.experiment import Experiment
        from fedhca2.federation.flower.deploy.link import coordinator_link
        from fedhca2.federation.flower.deploy.superlink import LinkLostError, RunEndedError
        from fedhca2.federation.flower.engine import FlowerEngine, check_resumable
        from fedhca2.federation.flower.wait import TooFewClientsError
        from fedhca2.federation.run import resume, run
        from fedhca2.reports.console import ConsoleWatcher
        from fedhca2.run_folder.names import default_folder
        from fedhca2.run_folder.reader import RunFiles

        terms = network_settings(
            deadline=deadline or None, min_clients=min_clients, retries=retries, wire=wire, spool=spool
        )
        begun = RunFiles(Path(config))
        note = begun.flower_note
        _refuse_idle(("overrides", "out") if note else (), "a resumed run keeps its settings and its folder")
        _refuse_idle(("listen", "quota") if superlink else (), "the link that --superlink names has its own")
        experiment = begun.experiment() if note else Experiment.load(config, overrides or [])
        folder = Path(config) if note else out or default_folder(experiment.name)
        if note:
            check_resumable(folder)  # before anything is stopped or started
        names = [spec.name for spec in experiment.specs]
        if min_clients is not None and min_clients > len(names):
            raise UserError([f"--min-clients: should be at most {len(names)}, all clients, found {min_clients}"])
        again = shlex.join(["fedhca2", "flower", "serve", str(folder), *_given(("config", "overrides", "out"))])
        try:
            with coordinator_link(superlink, keys, names, listen, quota, folder) as (link, public):
                if public:
                    typer.echo(f"sites can connect to {public}; the SuperLink is at {link.address}", err=as_json)
                if note:
                    link.stop(int(note["flower_run"]))
                with ConsoleWatcher(console) as watcher, link.run(terms.deadline) as grid:
                    engine = FlowerEngine(grid, terms, look=link.registrations)
                    if note:
                        result = resume(folder, watcher=watcher, engine=engine)
                    else:
                        result = run(experiment, folder, watcher=watcher, engine=engine)
        except (TooFewClientsError, RunEndedError, LinkLostError, httpx.HTTPError) as error:
            hint = f"; resume with: {again}" if RunFiles(folder).begun else ""
            raise UserError([f"{error}{hint}"]) from None
        except (KeyboardInterrupt, SystemExit) as stopped:
            code = BY_SIGNAL + (signal.SIGTERM if isinstance(stopped, SystemExit) else signal.SIGINT)
            hint = f"; resume with: {again}" if RunFiles(folder).begun else ""
            typer.echo(f"interrupted{hint}", err=True)
            raise typer.Exit(code) from None
    conclude(console, result, folder, as_json)


@flower.command("app")
def write_app(folder: Annotated[Path, typer.Argument(help="A new folder.")]) -> None:
    """Write the Flower app for Flower's own `flwr run`."""
    with clear_errors():
        from fedhca2.federation.flower.deploy.app_bundle import write_app as write

        write(folder)
    typer.echo(f"{folder}/pyproject.toml; start it with: flwr run {shlex.quote(str(folder))} CONNECTION")


def _refuse_idle(options: Container[str], why: str) -> None:
    """Raise UserError if one of these options, which would have no effect, was given."""
    from fedhca2.errors import UserError

    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name in options and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError([f"{option.opts[0]}: expected none, since {why}, got {context.params[name]}"])


def _given(besides: Container[str]) -> list[str]:
    """The options that were given on the command line, except some."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        name, value = option.name or "", context.params.get(option.name or "")
        if name not in besides and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


def network_settings(**values: Any) -> Any:
    """Build NetworkSettings from options; each mistake is one line."""
    from pydantic import ValidationError

    from fedhca2.config_errors import describe
    from fedhca2.errors import UserError
    from fedhca2.federation.flower.network_settings import NetworkSettings

    try:
        return NetworkSettings.model_validate(values)
    except ValidationError as error:
        raise UserError([f"--{line.replace('_', '-', 1)}" for line in describe(error)]) from None


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
