"""The options that several commands share, and what Tab completes."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from click import Context
from typer import Argument, Option

from fedhca2.configs import built_in_names, read_schema, setting_keys
from fedhca2.run_folder.folder import CONFIG, MODELS


def complete_experiments(incomplete: str) -> Iterator[str]:
    """Built-in experiments, and YAML files."""
    yield from (name for name in built_in_names() if name.startswith(incomplete))
    for path in _list_entries(incomplete):
        if path.is_dir() and incomplete:
            yield f"{path}/"
        elif path.suffix in (".yaml", ".yml"):
            yield str(path)


def complete_runs(incomplete: str) -> Iterator[str]:
    """Folders of runs, at first those in runs/, and folders on the way there."""
    for path in _list_entries(incomplete or ("runs/" if Path("runs").is_dir() else "")):
        if (path / CONFIG).is_file():
            yield str(path)
        elif path.is_dir():
            yield f"{path}/"


def complete_clients(ctx: Context, incomplete: str) -> list[str]:
    """The clients of the run that the line names, by their trained models."""
    folders = [ctx.params.get("run"), *ctx.args]  # an option without a value ends the parsing of arguments
    models = [path for folder in folders if folder for path in Path(folder, MODELS).glob("*.safetensors")]
    return sorted(path.stem for path in models if path.stem.startswith(incomplete))


def complete_methods(incomplete: str) -> Iterator[str]:
    """Methods, also as the last of several with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    names = read_schema()["properties"]["methods"]["properties"]
    return (f"{before}{comma}{name}" for name in names if name.startswith(last))


def complete_trackers(incomplete: str) -> Iterator[str]:
    """Built-in trackers; a target follows."""
    return (f"{name}=" for name in ("tensorboard", "mlflow", "wandb") if name.startswith(incomplete))


def complete_settings(incomplete: str) -> Iterator[tuple[str, str]]:
    """Keys of settings with their meanings; a value follows."""
    return ((f"{key}=", meaning) for key, meaning in setting_keys().items() if key.startswith(incomplete))


def _list_entries(incomplete: str) -> list[Path]:
    """The visible entries of a folder whose path begins with this."""
    folder, start = os.path.split(incomplete)
    try:
        entries = sorted(Path(folder).iterdir())
    except OSError:
        return []
    return [path for path in entries if path.name.startswith(start) and not path.name.startswith(".")]


Out, Unset = partial(Option, "--out", "-o"), partial(Option, show_default="none")
RunFolder = partial(Argument, autocompletion=complete_runs)
Client, Methods = partial(Option, autocompletion=complete_clients), partial(Option, autocompletion=complete_methods)
Experiment = partial(Argument, autocompletion=complete_experiments)
Json = Annotated[bool, Option("--json", help="Print machine-readable JSON to stdout; messages go to stderr.")]
AllowCode = Annotated[
    list[str] | None,
    Unset(
        metavar="FILE_OR_MODULE",
        help="Trust code that the run's folder names and that has not run on this machine; repeatable.",
    ),
]
ExperimentName = Annotated[
    str,
    Experiment(metavar="EXPERIMENT", help="Path of a YAML file, or a built-in experiment (see `fedhca2 experiments`)."),
]
Overrides = Annotated[
    list[str] | None,
    Unset(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting; repeatable. Example: `--set rounds=5`.",
        autocompletion=complete_settings,
    ),
]
RunOut = Annotated[Path | None, Out(help="Run folder.", show_default="runs/NAME-DATE")]
RunsFolder = Annotated[Path, Argument(help="Folder that contains the runs, at any depth.")]
Trivial = Annotated[
    bool, Option("--trivial", help="Also list the score of a constant answer: the largest class, or the mean.")
]
