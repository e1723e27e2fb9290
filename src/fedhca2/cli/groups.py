"""The options of the commands in groups: `fedhca2 config`, `data`, `flower` and `privacy`."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedhca2.cli.app import AllowCode, Json, Overrides, app, command, complete_experiments, new_group

config = new_group("Show the settings of experiments, and the schema of their files.")
data = new_group("Write, check and view data sets.")
flower = new_group("Run a federation over a network with Flower.")
privacy = new_group("Plan the noise for a privacy budget; show what a site has spent.")
for name, group in {"config": config, "data": data, "flower": flower, "privacy": privacy}.items():
    app.add_typer(group, name=name)


@command(config, "show")
def show(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="Also show the values in this experiment: a YAML file or an embedded one.",
            autocompletion=complete_experiments,
        ),
    ] = None,
    overrides: Overrides = None,
    words: Annotated[
        list[str] | None, typer.Option("--find", metavar="WORD", help="Only settings that mention this word.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/settings.md.")] = False,
    as_json: Json = False,
) -> None:
    """List every setting: its value in an experiment, its default, the values it may have, and its meaning."""


@command(config, "show")
def schema() -> None:
    """Print the JSON Schema of an experiment's file, with which editors check it."""


Root = Annotated[Path, typer.Argument(help="A data set's folder, or an experiment, for all of its data sets.")]
LayoutName = Literal["pascal_context", "nyud"]
Layout = Annotated[LayoutName | None, typer.Option(help="Its layout; detected by default.")]


@command(data, "data")
def scenes(
    layout: Annotated[LayoutName, typer.Option(help="Outdoor scenes as PASCAL-Context, indoor ones as NYUD-v2.")],
    root: Annotated[Path, typer.Option(help="A new or empty folder.")],
    count: Annotated[int, typer.Option(min=1, help="Number of training images.")] = 100,
    val: Annotated[
        int | None, typer.Option(min=1, help="Number of validation images; a quarter as many by default.")
    ] = None,
    size: Annotated[str, typer.Option(help="Height and width, as in 256 or 448x576; multiples of 32.")] = "256",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenes.")] = 0,
) -> None:
    """Render scenes and write them in the folder layout of one of the papers' archives."""


@command(data, "data")
def check(root: Root, layout: Layout = None) -> None:
    """Read every image and label, and report the contents and any faults; the exit code is 1 if there are faults."""


@command(data, "data")
def info(
    root: Root,
    layout: Layout = None,
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 6,
    split: Annotated[Literal["train", "val"], typer.Option(help="The split to take them from.")] = "train",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The picture to write, or of several data sets its name before theirs; by default ROOT's with .png."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of an experiment's data sets, this one; all by default.")] = None,
) -> None:
    """Paint a few samples with their labels into one picture for each data set."""


Keys = Annotated[Path, typer.Option(help="The coordinator's folder, which 'fedhca2 flower keys' wrote.")]
Names = Annotated[list[str], typer.Argument(help="The sites' names.")]
Address = Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink's address.")]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="The public address that sites connect to.")]
Quota = Annotated[
    int | None,
    typer.Option(min=1, metavar="BYTES", help="Bytes a site may send for each message it receives; 2 GiB."),
]


@command(flower, "flower")
def keys(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option(help="The clients' names, separated by commas.")],
    hosts: Annotated[str, typer.Option(help="The SuperLink's names and addresses, separated by commas.")] = "",
    days: Annotated[int, typer.Option(min=1, help="Days that certificates are valid.")] = 365,
) -> None:
    """Create a test CA, the SuperLink's certificate, and keys for every site."""


@command(flower, "flower")
def register(names: Names, superlink: Address, keys: Keys) -> None:
    """Register sites with the SuperLink, so that it admits them."""


@command(flower, "flower")
def evict(names: Names, superlink: Address, keys: Keys) -> None:
    """Make the SuperLink exclude sites."""


@command(flower, "flower")
def link(
    keys: Keys,
    listen: Listen = "0.0.0.0:8000",
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A loopback address for the coordinator's commands.")
    ] = "127.0.0.1:8001",
    database: Annotated[Path | None, typer.Option(help="A file that keeps registered keys across restarts.")] = None,
    quota: Quota = None,
) -> None:
    """Serve sites and runs until stopped, with a SuperLink on loopback and the proxy that sites connect to."""


@command(flower, "flower")
def site(
    file: Annotated[Path, typer.Argument(help="The site's own file: client, tasks, data, state.")],
    superlink: Address,
    keys: Annotated[Path, typer.Option(help="This site's own folder with node.key, ca.crt and secret.")],
) -> None:
    """Take part as a site until stopped."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # timm reads it on import
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads otherwise keep cores busy that others need


@command(flower, "flower")
def serve(
    config: Annotated[
        str,
        typer.Argument(
            help="A YAML file, an embedded experiment, or a run's folder to resume.",
            autocompletion=complete_experiments,
        ),
    ],
    keys: Keys,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The address of a running SuperLink; by default one is started."),
    ] = None,
    listen: Listen = "0.0.0.0:8000",
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


@command(flower, "flower", "app")
def write_app(folder: Annotated[Path, typer.Argument(help="A new folder.")]) -> None:
    """Write the Flower app for Flower's own `flwr run`."""


@command(privacy, "show")
def plan(
    epsilon: Annotated[float | None, typer.Option(help="The total ε of all rounds.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in which a client sends an update.")] = None,
    noise: Annotated[float | None, typer.Option(help="The noise, as in privacy.noise.")] = None,
    delta: Annotated[float, typer.Option(help="The δ for this ε.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Give two of --epsilon, --rounds and --noise to compute the third: the least noise, the most rounds, or the ε."""


@command(privacy, "flower")
def spent(
    file: Annotated[Path, typer.Argument(help="The site's own file.")],
    as_json: Json = False,
) -> None:
    """Show what a site's noised updates and scores have cost so far, from its own ledger: per run and in total."""
