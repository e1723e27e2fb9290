"""`fedhca2 methods`."""

from typing import Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method's name, or where its file is: path/to/file.py:NAME.")
    ] = None,
) -> None:
    """List the methods with what they share and their settings, or explain one."""
    from fedhca2.experiment import ConfigError
    from fedhca2.methods import resolve
    from fedhca2.reports.methods import method_page, methods_table

    with clear_errors():
        try:
            page = method_page(name, resolve(name)) if name else methods_table()
        except ValueError as error:
            raise ConfigError([str(error)]) from None
    Console(highlight=False).print(page)
