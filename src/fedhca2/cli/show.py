"""`fedhca2 experiments`, `methods`, `completion` and `config`: show what there is, and what settings mean."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Option
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from fedhca2.cli import lazy, options
from fedhca2.cli.app import app, command, new_group, open_console, print_json
from fedhca2.configs import Setting, allowed_values, built_in_experiments, format_value, list_settings, schema_text
from fedhca2.errors import UserError
from fedhca2.words import counted

if TYPE_CHECKING:
    from fedhca2.config import Config
    from fedhca2.experiment import Experiment
    from fedhca2.methods import Method

config = new_group("config", "Inspect", "Show all settings, and the schema of experiment files.")


@command(app, panel="Inspect")
def experiments(
    words: Annotated[
        list[str] | None, Argument(help="List only experiments that mention all these words.", show_default="all")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the built-in experiments, and the table or figure that each belongs to."""
    table = Table(Column("name for `fedhca2 run`", no_wrap=True), "title", "belongs to", box=None, pad_edge=False)
    shown = []
    for listing in built_in_experiments():
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


@command(app, panel="Inspect")
def methods(
    name: Annotated[
        str | None,
        Argument(
            help="Name of a method, or path/to/file.py:NAME.",
            show_default="all",
            autocompletion=options.complete_methods,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the methods with what they share and their settings, or explain one."""
    try:
        chosen = {name: lazy.methods.resolve(name)} if name else lazy.methods.METHODS
    except ValueError as error:
        raise UserError("", str(error)) from None
    if as_json:
        records = [
            {"name": key, "reference": each.reference, "shares": shared_parts(each)}
            | {"settings": lazy.methods.settings_of(each)}
            for key, each in chosen.items()
        ]
        print_json(records)
    else:
        open_console(highlight=False).print(_method_page(name, chosen[name]) if name else _methods_table())


def _methods_table() -> Group:
    """Table of all methods: name, origin, shared parts, and settings with their defaults."""
    table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2, 1, 0))
    for name, method in lazy.methods.METHODS.items():
        lines = [escape(method.reference), f"shares {shared_parts(method)}"]
        settings = lazy.methods.settings_of(method).items()
        if own := [f"{key}={format_value(value)}" for key, value in settings if key not in lazy.methods.NORMS]:
            lines.append(f"[cyan]{escape('  '.join(own))}[/]")
        table.add_row(f"[bold]{name}[/]", "\n".join(lines))
    hint = "fedhca2 methods NAME explains the settings. All methods also take batch_norm and norms."
    return Group(table, Text(hint, style="dim"))


def _method_page(name: str, method: "Method") -> Group:
    """Describe one method: each component, and each of its settings with default, bounds and meaning."""
    pieces: list[Text | Table] = [
        Text.from_markup(f"[bold]{escape(name)}[/]  {escape(method.reference)}"),
        Text(f"shares {shared_parts(method)}"),
    ]
    for part, component in lazy.methods.components_of(method).items():
        if settings := [each for each in settings_in(component) if each.name != "kind"]:
            pieces += [Text(f"\n{part}: {settings[0].about}", style="bold"), _settings_table(settings)]
    norms = [each for each in settings_in(method) if each.name in lazy.methods.NORMS]
    return Group(*pieces, Text(), _settings_table(norms))


def _settings_table(settings: Sequence[Setting]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (18, 9, 17):
        table.add_column(min_width=width, overflow="fold")
    table.add_column()
    for each in settings:
        table.add_row(f"  {each.name}", f"[cyan]{each.value}[/]", each.values, escape(each.meaning))
    return table


def settings_in(config: "Config", group: str = "", usual: "Config | None" = None) -> Iterator[Setting]:
    """The settings of a method or of one of its components; defaults are the values of `usual` if it is of its kind."""
    about = (type(config).__doc__ or "").partition("\n")[0]
    for name, schema in type(config).model_json_schema()["properties"].items():
        default = getattr(usual if type(usual) is type(config) else config, name)
        meaning, value = schema.get("description", ""), format_value(getattr(config, name))
        yield Setting(group, name, allowed_values(schema), format_value(default), meaning, about, value)


def shared_parts(method: "Method") -> str:
    """The parts that leave the clients.

    >>> shared_parts(lazy.methods.METHODS["fedper"])
    'encoder'
    """
    every = {part: each.every for part, each in method.all_aggregators.items()}
    return ", ".join(part if n == 1 else f"{part} every {n} rounds" for part, n in every.items()) or "nothing"


@command(app, panel="Inspect")
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="Shell: bash, zsh or fish.")]) -> None:
    """Print a shell completion script."""
    script = get_completion_script(prog_name="fedhca2", complete_var="_FEDHCA2_COMPLETE", shell=shell)
    if shell == "bash":  # lets a value follow a key such as `rounds=` without a space
        script = script.replace("return 0", "[[ $COMPREPLY == *[=/] ]] && compopt -o nospace\n    return 0")
    typer.echo(script)


@command(config)
def show(
    experiment: Annotated[
        str | None,
        options.Experiment(
            help="Experiment whose values to show: a YAML file or a built-in experiment.", show_default="none"
        ),
    ] = None,
    overrides: options.Overrides = None,
    words: Annotated[
        list[str] | None,
        Option(
            "--find",
            metavar="WORD",
            help="Show only settings that mention this word; repeatable.",
            show_default="all settings",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List every setting with its value, default, range and meaning."""
    if overrides and not experiment:
        raise UserError("--set", "expected an experiment, got none")
    loaded = lazy.experiment.Experiment.load(experiment, overrides or []) if experiment else None
    settings = _settings_with_values(loaded) if loaded else list_settings()
    columns = ["key", *(["value"] if loaded else []), "values", "default", "meaning"]
    rows = [[str(getattr(setting, column)) for column in columns] for setting in settings]
    rows = [row for row in rows if all(word.lower() in " ".join(row).lower() for word in words or ())]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    wraps = {"value": 8, "values": 10, "default": 8, "meaning": 15} | ({} if loaded else {"key": 20})
    shown = [[escape(cell) for cell in row] for row in rows]
    note = "" if shown else "No setting mentions that"
    table = lazy.tables.TextTable(columns, shown, "", note, drop=["values", "default"], wraps=wraps)
    open_console(highlight=False).print(table)


def _settings_with_values(experiment: "Experiment") -> list[Setting]:
    """All settings of an experiment with their values, those of its method among them."""
    method, usual = experiment.resolved_method, lazy.methods.resolve(experiment.method_name)
    name = Setting("", "method", "a name", "fedhca2", "how clients are federated", "", experiment.method_name)
    rows = [name, *(each for each in settings_in(method, "method", usual) if each.name in lazy.methods.NORMS)]
    parts = lazy.methods.components_of(method)
    for part in ("encoder", "decoder", "head", "weights", "local"):
        if part in parts:
            rows += settings_in(parts[part], f"method.{part}", getattr(usual, part, None))
        else:
            rows.append(Setting("method", part, "nested settings", "", "stays with its client", value="null"))
    own = [each for each in list_settings(experiment.model_dump(mode="json")) if each.group or each.name != "method"]
    before = [each.key for each in own].index("baseline")
    return [*own[:before], *rows, *own[before:]]


@command(config)
def schema() -> None:
    """Print the JSON Schema for experiment files."""
    typer.echo(schema_text(), nl=False)
