"""The command itself, and how all its parts report input errors."""

import codecs
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from fedhca2.version import __version__


def _allow(sources: list[str] | None) -> None:
    if sources:
        from fedhca2.imports import allow_code

        allow_code(sources)


AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="FILE_OR_MODULE",
        help="Code that a run's folder names and that you trust, if you have not run it on this machine.",
        callback=_allow,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; everything else goes to standard error.")]

app = typer.Typer(
    name="fedhca2",
    help="Federated multi-task learning for clients that do not share a task list.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)

WRONG_INPUT, INTERRUPTED = 2, 130
UNLIMITED = 10_000  # columns
warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\)")  # Pillow's warning before our error


PLAIN = str.maketrans(
    {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "Δ": "D", "²": "2", "°": "deg"}
    | {"↑": "^", "↓": "v", "→": "->", "±": "+-", "×": "x", "−": "-", "–": "-", "—": "-", "…": "..."}
)


def print_anywhere() -> None:
    """Replace letters that the terminal's encoding lacks, such as Δ, so that printing a result never fails."""
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    plain = error.object[error.start : error.end].translate(PLAIN)
    return plain.encode("ascii", "replace").decode(), error.end


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedhca2 {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated multi-task learning for clients that do not share a task list."""


def console_beside(as_json: bool) -> Console:
    """The console for people: standard error if standard output is for JSON."""
    return open_console(stderr=as_json)


def open_console(**options: Any) -> Console:
    """A console with rich's options. Nothing is folded in a pipe or a file, unless COLUMNS asks for it."""
    console = Console(**options)
    if not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = UNLIMITED
    return console


def print_json(values: Any) -> None:
    """Print plain data as strict JSON, in letters that every encoding has."""
    from fedhca2.run_folder.strict_json import to_json

    typer.echo(to_json(values, indent=2))


@contextmanager
def clear_errors() -> Iterator[None]:
    """Report input errors as a line or two on standard error, with exit code 2 and no traceback.

    Ctrl-C is also one line, unless something else handles it.
    """
    from fedhca2.errors import UserError

    try:
        yield
    except UserError as error:
        for line in error.lines:
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(WRONG_INPUT) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
        raise typer.Exit(WRONG_INPUT) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
