"""`fedhca2 methods`."""

from rich.console import Console

from fedhca2.cli.app import app


@app.command()
def methods() -> None:
    """List the methods with what they share and their settings."""
    from fedhca2.reports.methods import methods_table

    Console().print(methods_table())
