"""The options of the commands in groups: `fedhca2 config`, `data`, `flower` and `privacy`."""

import os
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from fedhca2.cli.app import (
    AllowCode,
    Json,
    OutOption,
    Overrides,
    RunOut,
    UnsetOption,
    app,
    command,
    complete_experiments,
    new_group,
)

config = new_group("Show all settings, and the schema of experiment files.")
data = new_group("Check, view and render data sets.")
flower = new_group("Run a federation over a network with Flower.")
privacy = new_group("Plan differential privacy, and show what a site has spent.")
app.add_typer(config, name="config", rich_help_panel="Inspect")
app.add_typer(data, name="data", rich_help_panel="Data")
app.add_typer(flower, name="flower", rich_help_panel="Deploy")
app.add_typer(privacy, name="privacy", rich_help_panel="Deploy")


@command(config, "show")
def show(
    experiment: Annotated[
        str | None,
        Argument(
            help="Experiment whose values to show: a YAML file or a built-in experiment.",
            show_default="none",
            autocompletion=complete_experiments,
        ),
    ] = None,
    overrides: Overrides = None,
    words: Annotated[
        list[str] | None,
        Option(
            "--find",
            metavar="WORD",
            help="Show only settings that mention this word; repeatable.",
            show_default="all settings",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List every setting with its value, default, range and meaning."""


@command(config, "show")
def schema() -> None:
    """Print the JSON Schema for experiment files."""


Root = Annotated[Path, Argument(help="Folder of a data set, or an experiment for all its data sets.")]
LayoutName = Literal["pascal_context", "nyud"]
Layout = Annotated[LayoutName | None, Option(help="Layout of the folder.", show_default="detected")]


@command(data, "data")
def scenes(
    root: Annotated[Path, Argument(help="New or empty folder to write to.")],
    layout: Annotated[LayoutName, Option(help="Outdoor scenes as PASCAL-Context, or indoor ones as NYUD-v2.")],
    count: Annotated[int, Option(min=1, help="Training images.")] = 100,
    val: Annotated[
        int | None, Option(min=1, help="Validation images.", show_default="a quarter of the training images")
    ] = None,
    size: Annotated[str, Option(help="Height and width in multiples of 32: 256 or 448x576.")] = "256",
    seed: Annotated[int, Option(min=0, help="Seed of the scenes.")] = 0,
) -> None:
    """Render scenes as a PASCAL-Context or NYUD-v2 folder."""


@command(data, "data")
def check(root: Root, layout: Layout = None) -> None:
    """Read every image and label, and report problems; the exit code is 1 if there are any."""


@command(data, "data")
def info(
    root: Root,
    layout: Layout = None,
    count: Annotated[int, Option(min=1, help="Samples to draw.")] = 6,
    split: Annotated[Literal["train", "val"], Option(help="Split to take them from.")] = "train",
    out: Annotated[
        Path | None,
        OutOption(
            help="PNG file to write; with several data sets, the name of each is added.",
            show_default="ROOT's name with .png",
        ),
    ] = None,
    name: Annotated[
        str | None, Option(help="Data set to show, if the experiment has several.", show_default="all")
    ] = None,
) -> None:
    """Draw a few samples with their labels, one picture per data set."""


Keys = Annotated[Path, Option(help="The coordinator's folder, written by `fedhca2 flower keys`.")]
Names = Annotated[list[str], Argument(help="Names of the sites.")]
Address = Annotated[str, Option(metavar="HOST:PORT", help="Address of the SuperLink.")]
Listen = Annotated[str, Option(metavar="HOST:PORT", help="Public address that sites connect to.")]
Quota = Annotated[int | None, Option(min=1, metavar="BYTES", help="Upload limit per message.", show_default="2 GiB")]


@command(flower, "flower")
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


@command(flower, "flower")
def register(names: Names, superlink: Address, keys: Keys) -> None:
    """Register sites with the SuperLink."""


@command(flower, "flower")
def evict(names: Names, superlink: Address, keys: Keys) -> None:
    """Remove sites from the SuperLink."""


@command(flower, "flower")
def link(
    keys: Keys,
    listen: Listen = "0.0.0.0:8000",
    superlink: Annotated[
        str, Option(metavar="HOST:PORT", help="Loopback address for the coordinator's commands.")
    ] = "127.0.0.1:8001",
    database: Annotated[Path | None, UnsetOption(help="File that keeps registered keys across restarts.")] = None,
    quota: Quota = None,
) -> None:
    """Keep a SuperLink and its public proxy running for several runs."""


@command(flower, "flower")
def site(
    file: Annotated[Path, Argument(help="Settings of the site: client, tasks, data, state.")],
    superlink: Address,
    keys: Annotated[Path, Option(help="This site's folder with node.key, ca.crt and secret.")],
) -> None:
    """Run this machine as a site."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # timm reads it on import
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads otherwise keep cores busy that others need


@command(flower, "flower")
def serve(
    config: Annotated[
        str,
        Argument(
            metavar="EXPERIMENT_OR_RUN",
            help="Path of a YAML file, a built-in experiment, or the folder of a run to resume.",
            autocompletion=complete_experiments,
        ),
    ],
    keys: Keys,
    superlink: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="Address of a running SuperLink.", show_default="starts a SuperLink"),
    ] = None,
    listen: Listen = "0.0.0.0:8000",
    quota: Quota = None,
    overrides: Overrides = None,
    out: RunOut = None,
    deadline: Annotated[float, Option(help="Seconds per round; 0: no limit.")] = 3600,
    min_clients: Annotated[int | None, Option(help="Minimum replies per round.", show_default="all clients")] = None,
    retries: Annotated[int, Option(help="Retries per failed client and round.")] = 2,
    wire: Annotated[
        Literal["float32", "bfloat16"], Option(help="Number type in messages; bfloat16 halves the bytes.")
    ] = "float32",
    spool: Annotated[
        bool, Option("--spool", help="Keep replies in files, which saves memory with many clients.")
    ] = False,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Coordinate a run: wait for the sites, then run the rounds."""


@command(flower, "flower", "app")
def write_app(folder: Annotated[Path, Argument(help="New folder to write to.")]) -> None:
    """Write the Flower app for Flower's own `flwr run`."""


@command(privacy, "show")
def plan(
    epsilon: Annotated[float | None, Option(help="Total ε of all rounds.", show_default="computed")] = None,
    rounds: Annotated[
        int | None, Option(help="Rounds in which a client sends an update.", show_default="computed")
    ] = None,
    noise: Annotated[
        float | None, Option(help="Noise, as in the setting privacy.noise.", show_default="computed")
    ] = None,
    delta: Annotated[float, Option(help="δ of the (ε, δ) guarantee.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Compute the noise, the rounds or ε from the other two."""


@command(privacy, "flower")
def spent(file: Annotated[Path, Argument(help="Settings of the site.")], as_json: Json = False) -> None:
    """Show the privacy budget that a site has spent, per run and in total."""
