"""The command itself: how it loads and reports errors, and the options and completion that several commands share."""

import codecs
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from click import Context, HelpFormatter, get_current_context
from rich.console import Console
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import ArgumentInfo

from fedhca2.configs import built_in_names, method_names, setting_keys
from fedhca2.errors import UserError
from fedhca2.federation.stopping import Interrupted
from fedhca2.run_folder.folder import CONFIG, MODELS
from fedhca2.version import __version__

warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\)")  # Pillow's warning before our error


def new_group(help: str, **options: Any) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(help=help, no_args_is_help=True, suggest_commands=False, **options)  # click suggests


class InPanels(TyperGroup):
    """Commands in the order of their panels."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The names in the order in which help lists them."""
        panels = ("Run", "Compare", "Use", "Data", "Deploy", "Inspect")
        panel_of = {name: getattr(command, "rich_help_panel", "") for name, command in self.commands.items()}
        return sorted(super().list_commands(ctx), key=lambda name: panels.index(panel_of[name]))


class Described(TyperCommand):
    """A command with --traceback. Its help describes its arguments, which Typer 0.20 forgets with Click 8.5."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        help = "Print Python's traceback before the error line, to debug your own code."
        option = TyperOption(
            param_decls=["--traceback"], is_flag=True, default=False, expose_value=False, callback=_set_flag, help=help
        )
        self.params.append(option)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Give the arguments the help of their declarations again, and write the help."""
        declared = get_type_hints(unwrap(self.callback), include_extras=True) if self.callback else {}
        for parameter in self.params:
            for info in getattr(declared.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(info, ArgumentInfo):
                    parameter.help = info.help
        super().format_help(ctx, formatter)


app = new_group(
    "Federated multi-task learning for sites with different tasks.",
    name="fedhca2",
    cls=InPanels,
    epilog="Try:\n\n  fedhca2 run demo\n\n  fedhca2 compare demo --methods fedavg,fedhca2 --seeds 3\n\n"
    "  fedhca2 run my.yaml --dry-run",
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": lambda name: "out" if name == "output" else name},  # its old name
)


def command(
    group: typer.Typer, module: str, name: str | None = None, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command to a group, with the options of the decorated function.

    The function runs first. Then one of the same name in `fedhca2.cli.MODULE` gets the same options and does the work.
    The module is imported only then, since it imports what takes seconds.

    :param name: the command's name, if it is not the function's.
    :param panel: the panel of the command in the help of its group.
    """

    def add(options_of: Callable[..., None]) -> Callable[..., None]:
        @wraps(options_of)
        def carry_out(**options: Any) -> None:
            with report_errors():
                options_of(**options)
                if trusted := options.pop("allow_code", None):
                    import_module("fedhca2.imports").allow_code(trusted)
                getattr(import_module(f"fedhca2.cli.{module}"), options_of.__name__)(**options)

        return group.command(name, cls=Described, rich_help_panel=panel)(carry_out)

    return add


@contextmanager
def report_errors() -> Iterator[None]:
    """Report input errors as a line or two on standard error, with exit code 2 and no traceback.

    Ctrl-C is also one line, and a run that stopped on request says how to resume it; both exit with the signal's code.
    """
    try:
        yield
    except UserError as error:
        _print_traceback(error)
        for line in error.lines:
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
        raise typer.Exit(2) from None
    except Interrupted as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(128 + stopped.signal) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None


def _set_flag(ctx: Context, _: Any, requested: bool) -> None:
    ctx.meta["traceback"] = requested


def _print_traceback(error: BaseException) -> None:
    """Print the tracebacks of an error and of those that it was made from, if the user typed --traceback."""
    context = get_current_context(silent=True)
    if context is None or not context.meta.get("traceback"):
        return
    first: BaseException | None = error
    while first is not None:
        first.__suppress_context__ = False
        first = first.__cause__ or first.__context__
    traceback.print_exception(error)


def print_anywhere() -> None:
    """Replace letters that the terminal's encoding lacks, such as Δ, so that printing a result never fails."""
    codecs.register_error("plain", _replace_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _replace_letters(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(str.maketrans("Δ²↑↓×−–—", "D2^vx---"))
    greek = {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon"}
    for letter, plain in {**greek, "°": "deg", "→": "->", "±": "+-", "…": "..."}.items():
        text = text.replace(letter, plain)
    return text.encode("ascii", "replace").decode(), error.end


def open_console(**options: Any) -> Console:
    """A console with rich's options. Nothing is folded in a pipe or a file, unless COLUMNS asks for it."""
    console = Console(**options)
    if not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = 10_000
    return console


def print_json(values: Any) -> None:
    """Print plain data as strict JSON, in letters that every encoding has."""
    from fedhca2.run_folder.files import to_json  # numpy would delay every Tab

    typer.echo(to_json(values, indent=2))


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedhca2 {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Federated multi-task learning for sites with different tasks."""


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
    return (f"{before}{comma}{name}" for name in method_names() if name.startswith(last))


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


OutOption, UnsetOption = partial(Option, "--out", "-o"), partial(Option, show_default="none")
Json = Annotated[bool, Option("--json", help="Print machine-readable JSON to stdout; messages go to stderr.")]
AllowCode = Annotated[
    list[str] | None,
    UnsetOption(
        metavar="FILE_OR_MODULE",
        help="Trust code that the run's folder names and that has not run on this machine; repeatable.",
    ),
]
ExperimentName = Annotated[
    str,
    Argument(
        metavar="EXPERIMENT",
        help="Path of a YAML file, or a built-in experiment (see `fedhca2 experiments`).",
        autocompletion=complete_experiments,
    ),
]
Overrides = Annotated[
    list[str] | None,
    UnsetOption(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting; repeatable. Example: `--set rounds=5`.",
        autocompletion=complete_settings,
    ),
]
RunOut = Annotated[Path | None, OutOption(help="Run folder.", show_default="runs/NAME-DATE")]
