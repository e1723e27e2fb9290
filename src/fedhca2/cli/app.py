"""The command itself: how its commands and groups are added, how it reports errors, and how it prints."""

import codecs
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import unwrap
from typing import Annotated, Any, get_type_hints

import typer
from click import Context, HelpFormatter, get_current_context
from rich.console import Console
from typer import Option
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import ArgumentInfo

from fedhca2.cli import lazy
from fedhca2.errors import UserError
from fedhca2.federation.stopping import Interrupted
from fedhca2.version import __version__

warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\)")  # Pillow's warning before our error


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
        flag: dict[str, Any] = {"is_flag": True, "default": False, "expose_value": False}
        flag["callback"] = lambda context, _, requested: context.meta.update(traceback=requested)
        help = "Print Python's traceback before the error line, to debug your own code."
        self.params.append(TyperOption(param_decls=["--traceback"], help=help, **flag))

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Give the arguments the help of their declarations again, and write the help."""
        declared = get_type_hints(unwrap(self.callback), include_extras=True) if self.callback else {}
        for parameter in self.params:
            for info in getattr(declared.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(info, ArgumentInfo):
                    parameter.help = info.help
        super().format_help(ctx, formatter)


app = typer.Typer(
    name="fedhca2",
    help="Federated multi-task learning for sites with different tasks.",
    cls=InPanels,
    epilog="Try:\n\n  fedhca2 run demo\n\n  fedhca2 compare demo --methods fedavg,fedhca2 --seeds 3\n\n"
    "  fedhca2 run my.yaml --dry-run",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": lambda name: "out" if name == "output" else name},  # its old name
)


def new_group(name: str, panel: str, help: str) -> typer.Typer:
    """Add a group of commands."""
    group = typer.Typer(help=help, no_args_is_help=True, suggest_commands=False)
    app.add_typer(group, name=name, rich_help_panel=panel)
    return group


def command(
    group: typer.Typer, name: str | None = None, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to a group as a command.

    :param name: the command's name, if it is not the function's.
    :param panel: the panel of the command in the help of its group.
    """

    def add(work: Callable[..., None]) -> Callable[..., None]:
        @wraps(work)
        def carry_out(**options: Any) -> None:
            with report_errors():
                if trusted := options.get("allow_code"):
                    lazy.imports.allow_code(trusted)
                work(**options)

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
    typer.echo(lazy.files.to_json(values, indent=2))


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedhca2 {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Federated multi-task learning for sites with different tasks."""
