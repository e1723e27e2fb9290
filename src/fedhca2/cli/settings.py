"""`fedhca2 settings`: every setting of an experiment, from the code."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from rich.console import Console
from rich.markup import escape

from fedhca2.cli.app import Json, app, clear_errors, print_json
from fedhca2.cli.catalogue import allowed, as_in_config

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fedhca2.config import Config

COLUMNS = ("key", "values", "default", "meaning")
INTRODUCTION = """\
# Settings

Every setting of an experiment: the values it may have, its default, its meaning. This page is made from the code by
`fedhca2 settings --markdown > docs/settings.md`; `fedhca2 settings WORD` searches it in the terminal.

In a YAML file the steps of a key are nested; on the command line they are joined by dots, with the number of an entry
of a list: `--set training.batch_size=4`, `--set clients.0.epochs=2`. The settings of methods are in
`fedhca2 methods NAME`.
"""


@dataclass(frozen=True)
class Setting:
    """One setting of a group; `default` is empty if it has to be given, and `about` says what the group is."""

    group: str
    name: str
    values: str
    default: str
    meaning: str
    about: str

    @property
    def key(self) -> str:
        """Its whole name."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def cells(self) -> list[str]:
        """What a table shows of it."""
        return [self.key, self.values, self.default, self.meaning]


@app.command()
def settings(
    words: Annotated[
        list[str] | None, typer.Argument(help="List only settings that mention all of these words.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/settings.md.")] = False,
    as_json: Json = False,
) -> None:
    """List the settings of an experiment: allowed values, default, meaning."""
    with clear_errors():
        from fedhca2.experiment import Experiment

        found = [
            setting
            for setting in settings_of(Experiment)
            if all(word.lower() in " ".join(setting.cells).lower() for word in words or ())
        ]
    if as_json:
        print_json([dict(zip(COLUMNS, setting.cells, strict=True)) for setting in found])
    elif markdown:
        typer.echo(to_markdown(found), nl=False)
    else:
        from fedhca2.reports.tables import TextTable

        rows = [[escape(cell) for cell in setting.cells] for setting in found]
        wraps = {"key": 20, "values": 10, "default": 8, "meaning": 20}
        Console(highlight=False).print(TextTable(COLUMNS, rows, drop=["values", "default"], wraps=wraps))


def to_markdown(found: Sequence[Setting]) -> str:
    """The page, with a table for each group of settings."""
    lines, group = [INTRODUCTION], None
    for setting in found:
        if setting.group != group:
            group = setting.group
            lines += ["", f"## {group or 'The experiment'}", "", *([setting.about, ""] if setting.about else [])]
            lines += ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
        cells = [f"`{setting.name}`", setting.values, setting.default, setting.meaning]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def settings_of(config: "type[Config]") -> list[Setting]:
    """All settings of a config: its own first, then those of its groups, each group where it is first used."""
    found, waiting, seen = list[Setting](), [("", config)], set[type]()
    while waiting:
        place, config = waiting.pop(0)
        if config in seen:
            continue
        seen.add(config)
        below: list[tuple[str, type[Config]]] = []
        for name, field in config.model_fields.items():
            if name == "kind" and (_fixed_kind(config) or hasattr(config, "made_by")):
                continue  # the group's title has it
            key = f"{place}.{name}" if place else name
            groups = [(f"{key}{step}", held) for step, held in _groups(field.annotation)]
            meaning = field.description or (_about(groups[0][1]) if len(groups) == 1 else "")
            found.append(Setting(place, name, _values(field, groups), _default(field, groups), meaning, _about(config)))
            below += groups
        waiting = below + waiting
    return found


def _about(config: "type[Config]") -> str:
    """What a group of settings is, from its docstring; of an adapted data set, all that its class says."""
    text = inspect.getdoc(getattr(config, "made_by", config)) or ""
    return text if hasattr(config, "made_by") else text.partition("\n")[0]


def _fixed_kind(config: "type[Config]") -> str | None:
    """The kind of a config that is of one kind alone."""
    kind = config.model_fields.get("kind")
    return str(kind.default) if kind and len(get_args(kind.annotation)) == 1 else None


def _groups(annotation: Any, step: str = "") -> "Iterator[tuple[str, type[Config]]]":
    """The configs within an annotation, each with the steps that lead to it: its place in a list, or its kind."""
    from fedhca2.config import Config
    from fedhca2.data import KINDS, DataConfig

    found = get_args(annotation)
    if annotation is DataConfig:
        yield from ((f"{step} ({kind})", config) for kind, config in KINDS.items())
    elif isinstance(annotation, type) and issubclass(annotation, Config):
        kind = _fixed_kind(annotation)
        yield (f"{step} ({kind})" if kind else step), annotation
    elif get_origin(annotation) is Annotated:
        yield from _groups(found[0], step)
    elif get_origin(annotation) in (list, tuple):
        yield from _groups(found[0], f"{step}.0")
    elif get_origin(annotation) in (dict, Mapping):
        yield from _groups(found[1], f"{step}.NAME")
    else:
        for part in found:
            yield from _groups(part, step)


def _values(field: "FieldInfo", below: Sequence[Any]) -> str:
    if below:
        return "settings of its own"
    return allowed(field) or _type(field.annotation)


def _type(annotation: Any) -> str:
    """A type in a user's words."""
    words = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true | false",
        type(None): "null",
        Any: "anything",
    }
    if annotation in words:
        return words[annotation]
    found = [part for part in get_args(annotation) if part is not ...]
    if get_origin(annotation) is Annotated:
        return _type(found[0])
    if get_origin(annotation) in (list, tuple):
        return f"list of {' and '.join(dict.fromkeys(map(_type, found)))}"
    if get_origin(annotation) in (dict, Mapping):
        return f"{_type(found[1])} by name"
    if found:
        return " | ".join(dict.fromkeys(str(part) if isinstance(part, str) else _type(part) for part in found))
    return getattr(annotation, "__name__", str(annotation)).lower()


def _default(field: "FieldInfo", below: Sequence[Any]) -> str:
    if field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    if below and default is not None:
        return ""
    return "none" if default in ((), {}, "") else as_in_config(default)
