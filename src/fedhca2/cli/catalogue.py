"""`fedhca2 experiments` and `methods`: list what is available."""

from collections.abc import Mapping
from dataclasses import asdict
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedhca2.cli import completion
from fedhca2.cli.app import Json, app, clear_errors, open_console, print_json
from fedhca2.words import counted

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fedhca2.config import Config
    from fedhca2.methods import Method

BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}
EVERYWHERE = ("batch_norm",)


@app.command()
def experiments(
    words: Annotated[
        list[str] | None, typer.Argument(help="List only experiments that mention all of these words.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the experiments that come with the package, and the table or figure each belongs to."""
    from fedhca2.configs import embedded_experiments

    table = Table(box=None, pad_edge=False)
    table.add_column("name for `fedhca2 run`", no_wrap=True)
    table.add_column("title")
    table.add_column("belongs to")
    shown = []
    for listing in embedded_experiments():
        belongs = ", ".join(listing.belongs_to)
        text = f"{listing.name} {listing.title} {belongs}".lower()
        if all(word.lower() in text for word in words or ()):
            table.add_row(listing.name, listing.title, belongs)
            shown.append(asdict(listing))
    if as_json:
        print_json(shown)
        return
    console = open_console()
    if shown:
        console.print(table)
    console.print(counted(len(shown), "experiment"), highlight=False)


@app.command()
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method's name or location: path/to/file.py:NAME.", autocompletion=completion.methods),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods with the parts they share and their settings, or explain one."""
    from fedhca2.errors import UserError
    from fedhca2.methods import METHODS, resolve, settings_of

    with clear_errors():
        try:
            chosen = {name: resolve(name)} if name else METHODS
        except ValueError as error:
            raise UserError([str(error)]) from None
    if as_json:
        about = {key: (method.reference, shared_parts(method), settings_of(method)) for key, method in chosen.items()}
        keys = ("reference", "shares", "settings")
        print_json([{"name": key, **dict(zip(keys, told, strict=True))} for key, told in about.items()])
    else:
        open_console(highlight=False).print(method_page(name, chosen[name]) if name else methods_table())


def methods_table() -> Group:
    """Table of all methods: name, origin, shared parts, and settings with their defaults."""
    from fedhca2.methods import METHODS, settings_of

    table = Table.grid(padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, method in METHODS.items():
        lines = [escape(method.reference), f"shares {shared_parts(method)}"]
        settings = {key: value for key, value in settings_of(method).items() if key not in EVERYWHERE}
        if settings:
            lines.append(
                f"[cyan]{escape('  '.join(f'{key}={as_in_config(value)}' for key, value in settings.items()))}[/]"
            )
        table.add_row(f"[bold]{name}[/]", "\n".join(lines))
    hint = "fedhca2 methods NAME explains the settings. All methods also take batch_norm."
    return Group(table, Text(hint, style="dim"))


def method_page(name: str, method: "Method") -> Group:
    """Describe one method: each component, and each of its settings with default, bounds and meaning."""
    from fedhca2.methods import Method, components_of

    pieces: list[Text | Table] = [
        Text.from_markup(f"[bold]{escape(name)}[/]  {escape(method.reference)}"),
        Text(f"shares {shared_parts(method)}"),
    ]
    for part, component in components_of(method).items():
        fields = {key: field for key, field in type(component).model_fields.items() if key != "kind"}
        if fields:
            about = (type(component).__doc__ or "").split("\n")[0]
            pieces += [Text(f"\n{part}: {about}", style="bold"), _settings(component, fields)]
    return Group(*pieces, Text(), _settings(method, {key: Method.model_fields[key] for key in EVERYWHERE}))


def _settings(component: "Config", fields: Mapping[str, "FieldInfo"]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (18, 9, 17):
        table.add_column(min_width=width, overflow="fold")
    table.add_column()
    for key, field in fields.items():
        default = as_in_config(getattr(component, key))
        table.add_row(f"  {key}", f"[cyan]{default}[/]", allowed(field), escape(field.description or ""))
    return table


def shared_parts(method: "Method") -> str:
    """The parts that leave the clients.

    >>> from fedhca2.methods import METHODS
    >>> shared_parts(METHODS["fedper"])
    'encoder'
    """
    parts = {"encoder": method.encoder, "decoder": method.decoder, "head": method.head}
    shared = [part if held.every == 1 else f"{part} every {held.every} rounds" for part, held in parts.items() if held]
    return ", ".join(shared) or "nothing"


def allowed(field: "FieldInfo") -> str:
    """The values that a field accepts.

    >>> from fedhca2.methods import METHODS
    >>> allowed(type(METHODS["fedhca2"].encoder).model_fields["c"])
    '≥ 0, < 1'
    """
    if get_origin(field.annotation) is Literal:
        return " | ".join(map(str, get_args(field.annotation)))
    if field.annotation is bool:
        return "true | false"
    bounds = [
        text.format(as_in_config(getattr(limit, name)))
        for limit in field.metadata
        for name, text in BOUNDS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join(bounds)


def as_in_config(value: Any) -> str:
    """Format a value as in a config."""
    if isinstance(value, (bool, NoneType)):
        return "null" if value is None else str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_in_config, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
