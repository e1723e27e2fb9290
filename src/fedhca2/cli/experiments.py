"""`fedhca2 experiments`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedhca2.cli.app import app


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
