"""`fedhca2 config`: every setting of an experiment, from the code, and the schema of its file."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from rich.markup import escape

from fedhca2.cli.app import Json, app, clear_errors, open_console, print_json
from fedhca2.cli.catalogue import allowed, as_in_config
from fedhca2.cli.completion import Overrides, experiments

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fedhca2.config import Config
    from fedhca2.experiment import Experiment

INTRODUCTION = """\
# Settings

Every setting of an experiment: the values it may have, its default, its meaning. This page is made from the code by
`fedhca2 config show --markdown > docs/settings.md`; `fedhca2 config show --find WORD` searches it in the terminal, and
`fedhca2 config show EXPERIMENT` prints what an experiment sets, with its method's settings.

In a YAML file the steps of a key are nested; on the command line they are joined by dots, with the number of an entry
of a list: `--set training.batch_size=4`, `--set clients.0.epochs=2`. The settings of methods are in
`fedhca2 methods NAME`. [At the keyboard](shell.md) has the schema for editors and completion for shells.
"""

config = typer.Typer(
    help="Show the settings of experiments, and the schema of their files.",
    no_args_is_help=True,
    suggest_commands=False,
)
app.add_typer(config, name="config")


@dataclass(frozen=True)
class Setting:
    """One setting of a group; `default` is empty if it has to be given, and `about` says what the group is.

    `value` is that of an experiment, or empty where no experiment is meant.
    """

    group: str
    name: str
    values: str
    default: str
    meaning: str
    about: str
    value: str = ""

    @property
    def key(self) -> str:
        """Its whole name."""
        return f"{self.group}.{self.name}" if self.group else self.name


@config.command()
def show(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="Also show the values in this experiment: a YAML file or an embedded one.", autocompletion=experiments
        ),
    ] = None,
    overrides: Overrides = None,
    words: Annotated[
        list[str] | None, typer.Option("--find", metavar="WORD", help="Only settings that mention this word.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/settings.md.")] = False,
    as_json: Json = False,
) -> None:
    """List every setting: its value in an experiment, its default, the values it may have, and its meaning."""
    with clear_errors():
        from fedhca2.errors import UserError
        from fedhca2.experiment import Experiment

        if overrides and not experiment:
            raise UserError(["--set: needs an experiment, found none"])
        if markdown and experiment:
            raise UserError([f"--markdown: prints the page for all experiments, found {experiment!r}"])
        if markdown and (words or as_json):
            raise UserError(
                [f"--markdown: expected no {'--find' if words else '--json'} beside it, since it prints a page"]
            )
        loaded = Experiment.load(experiment, overrides or []) if experiment else None
        every = values_in(loaded) if loaded else settings_of(Experiment)
    columns = ["key", *(["value"] if loaded else []), "values", "default", "meaning"]
    rows = [[str(getattr(setting, column)) for column in columns] for setting in every]
    found = [row for row in rows if all(word.lower() in " ".join(row).lower() for word in words or ())]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in found])
    elif markdown:
        typer.echo(to_markdown(every), nl=False)
    else:
        from fedhca2.reports.tables import TextTable

        wraps = {"value": 8, "values": 10, "default": 8, "meaning": 15} | ({} if loaded else {"key": 20})
        shown = [[escape(cell) for cell in row] for row in found]
        open_console(highlight=False).print(TextTable(columns, shown, drop=["values", "default"], wraps=wraps))


@config.command()
def schema() -> None:
    """Print the JSON Schema of an experiment's file, with which editors check it."""
    with clear_errors():
        from fedhca2.experiment.schema import experiment_schema
    typer.echo(_in_lines(experiment_schema(), levels=2))


def _in_lines(values: Any, levels: int) -> str:
    """JSON with a line for each entry of the outer levels, so that a change of the schema shows where it is."""
    if not levels or not isinstance(values, dict):
        return json.dumps(values, allow_nan=False)
    return (
        "{\n" + ",\n".join(f"{json.dumps(key)}: {_in_lines(each, levels - 1)}" for key, each in values.items()) + "\n}"
    )


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
            found.append(_setting(place, name, field, groups, config))
            below += groups
        waiting = below + waiting
    return found


def values_in(experiment: "Experiment") -> list[Setting]:
    """All settings of an experiment with their values, those of its method among them."""
    from fedhca2.experiment.experiment import DEFAULT_METHOD
    from fedhca2.methods import resolve

    usual, method = resolve(experiment.method_name), experiment.resolved_method
    named = Setting("", "method", "a name", DEFAULT_METHOD, "how clients are federated", "", experiment.method_name)
    hidden = ("method.reference", "method.rounds")
    found = [named, *(each for each in _held(method, "method", usual) if each.key not in hidden)]
    own = [each for each in _held(experiment, "", None) if each.key != "method"]
    place = [each.key for each in own].index("baseline")
    return [*own[:place], *found, *own[place:]]


def _held(config: "Config", place: str, usual: "Config | None") -> Iterator[Setting]:
    """The settings of a config, with their values; the defaults are those of `usual` where it has them."""
    for name, field in type(config).model_fields.items():
        key, value = f"{place}.{name}" if place else name, getattr(config, name)
        inside = list(_inside(value))
        for step, held in inside:
            yield from _held(held, f"{key}{step}", getattr(usual, name, None) if not step else None)
        if not inside:
            about = _setting(place, name, field, list(_groups(field.annotation)), type(config))
            default = _plain(getattr(usual, name)) if type(usual) is type(config) else about.default
            yield replace(about, value=_plain(value), default=default)


def _inside(value: Any) -> "Iterator[tuple[str, Config]]":
    """The configs within a value, each with the step that leads to it."""
    from fedhca2.config import Config

    if isinstance(value, Config):
        yield "", value
    steps = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple) else ()
    yield from ((f".{step}", held) for step, held in steps if isinstance(held, Config))


def _plain(value: Any) -> str:
    return "none" if value in ((), {}, "") else as_in_config(value)


def _setting(place: str, name: str, field: "FieldInfo", groups: Sequence[Any], config: "type[Config]") -> Setting:
    meaning = field.description or (_about(groups[0][1]) if len(groups) == 1 else "")
    meaning = meaning or (_about(config) if name == "kind" else "")
    return Setting(place, name, _values(field, groups), _default(field, groups), meaning, _about(config))


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
        return "nested settings"
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
    return "" if below and default is not None else _plain(default)
