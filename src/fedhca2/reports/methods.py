"""The catalogue of methods, as a table."""

from rich.table import Table

from fedhca2.methods import METHODS, Method, settings_of


def methods_table() -> Table:
    """Name, where it comes from, what is shared, and the settings with their defaults."""
    table = Table(title="Methods", title_justify="left", show_lines=True)
    for column in ("name", "reference", "shared", "settings"):
        table.add_column(column)
    for name, method in METHODS.items():
        settings = ", ".join(f"{key}={value}" for key, value in settings_of(method).items())
        table.add_row(name, method.reference, shared_parts(method), settings)
    return table


def shared_parts(method: Method) -> str:
    """Which parts leave the clients.

    >>> shared_parts(METHODS["fedper"])
    'encoder'
    """
    parts = {"encoder": method.encoder, "decoder": method.decoder, "head": method.head}
    shared = [part if held.every == 1 else f"{part} every {held.every} rounds" for part, held in parts.items() if held]
    return ", ".join(shared) or "nothing"
