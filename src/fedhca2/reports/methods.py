"""The catalogue of methods, and one method with all its settings, for a terminal of 80 columns."""

from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedhca2.config import Config
from fedhca2.methods import METHODS, Method, components_of, settings_of

BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}
EVERYWHERE = ("batch_norm",)


def methods_table() -> Group:
    """Of every method its name, where it comes from, what is shared, and its settings with their defaults."""
    table = Table.grid(padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, method in METHODS.items():
        lines = [escape(method.reference), f"shares {shared_parts(method)}"]
        settings = {key: value for key, value in settings_of(method).items() if key not in EVERYWHERE}
        if settings:
            lines.append(f"[cyan]{escape('  '.join(f'{key}={_plain(value)}' for key, value in settings.items()))}[/]")
        table.add_row(f"[bold]{name}[/]", "\n".join(lines))
    hint = "fedhca2 methods NAME says what the settings mean. All take batch_norm besides."
    return Group(table, Text(hint, style="dim"))


def method_page(name: str, method: Method) -> Group:
    """One method: each component, and each of its settings with default, bounds and meaning."""
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


def _settings(component: Config, fields: Mapping[str, FieldInfo]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (18, 9, 17):
        table.add_column(min_width=width, max_width=width)
    table.add_column()
    for key, field in fields.items():
        default = _plain(getattr(component, key))
        table.add_row(f"  {key}", f"[cyan]{default}[/]", allowed(field), escape(field.description or ""))
    return table


def shared_parts(method: Method) -> str:
    """Which parts leave the clients.

    >>> shared_parts(METHODS["fedper"])
    'encoder'
    """
    parts = {"encoder": method.encoder, "decoder": method.decoder, "head": method.head}
    shared = [part if held.every == 1 else f"{part} every {held.every} rounds" for part, held in parts.items() if held]
    return ", ".join(shared) or "nothing"


def allowed(field: FieldInfo) -> str:
    """Which values a field takes.

    >>> allowed(type(METHODS["fedhca2"].encoder).model_fields["c"])
    '≥ 0, < 1'
    """
    if get_origin(field.annotation) is Literal:
        return " | ".join(map(str, get_args(field.annotation)))
    if field.annotation is bool:
        return "true | false"
    bounds = [
        text.format(_plain(getattr(limit, name)))
        for limit in field.metadata
        for name, text in BOUNDS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join(bounds)


def _plain(value: Any) -> str:
    """As a config would say it."""
    if isinstance(value, (bool, NoneType)):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
