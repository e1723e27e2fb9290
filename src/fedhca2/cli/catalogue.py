"""`fedhca2 experiments` and `methods`: what there is."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedhca2.cli.app import app, clear_errors


@app.command()
def experiments(
    words: Annotated[list[str] | None, typer.Argument(help="Only those that mention all of these.")] = None,
) -> None:
    """List the experiments that come with the package, and the table or figure each belongs to."""
    from fedhca2.configs import embedded_experiments

    table = Table(box=None, pad_edge=False)
    table.add_column("name for `fedhca2 run`", no_wrap=True)
    table.add_column("what it is")
    table.add_column("belongs to")
    shown = 0
    for listing in embedded_experiments():
        belongs = ", ".join(listing.belongs_to)
        text = f"{listing.name} {listing.title} {belongs}".lower()
        if all(word.lower() in text for word in words or ()):
            table.add_row(listing.name, listing.title, belongs)
            shown += 1
    console = Console()
    if shown:
        console.print(table)
    console.print(f"{shown} experiments", highlight=False)


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method's name, or where its file is: path/to/file.py:NAME.")
    ] = None,
) -> None:
    """List the methods with what they share and their settings, or explain one."""
    from fedhca2.errors import UserError
    from fedhca2.methods import resolve
    from fedhca2.reports.methods import method_page, methods_table

    with clear_errors():
        try:
            page = method_page(name, resolve(name)) if name else methods_table()
        except ValueError as error:
            raise UserError([str(error)]) from None
    Console(highlight=False).print(page)
