"""`fedhca2 experiments`, `methods`, `config` and `privacy plan`: show what there is, and what settings mean."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from fedhca2.cli.app import open_console, print_json
from fedhca2.clients.privacy import MIN_NOISE, audited_epsilon, noise_for, updates_for
from fedhca2.clients.privacy import epsilon as epsilon_of
from fedhca2.config import Config
from fedhca2.configs import Setting, allowed_values, built_in_experiments, format_value, list_settings, schema_text
from fedhca2.errors import Fault, UserError
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS, NORMS, Method, components_of, resolve, settings_of
from fedhca2.reports.tables import TextTable
from fedhca2.words import counted


def experiments(words: list[str] | None, as_json: bool) -> None:
    """List the experiments that come with the package, and the table or figure each belongs to."""
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


def methods(name: str | None, as_json: bool) -> None:
    """List the methods with the parts they share and their settings, or explain one."""
    try:
        chosen = {name: resolve(name)} if name else METHODS
    except ValueError as error:
        raise UserError("", str(error)) from None
    if as_json:
        records = [
            {"name": key, "reference": each.reference, "shares": shared_parts(each), "settings": settings_of(each)}
            for key, each in chosen.items()
        ]
        print_json(records)
    else:
        open_console(highlight=False).print(_method_page(name, chosen[name]) if name else _methods_table())


def _methods_table() -> Group:
    """Table of all methods: name, origin, shared parts, and settings with their defaults."""
    table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2, 1, 0))
    for name, method in METHODS.items():
        lines = [escape(method.reference), f"shares {shared_parts(method)}"]
        settings = {key: format_value(value) for key, value in settings_of(method).items() if key not in NORMS}
        if settings:
            lines.append(f"[cyan]{escape('  '.join(f'{key}={value}' for key, value in settings.items()))}[/]")
        table.add_row(f"[bold]{name}[/]", "\n".join(lines))
    hint = "fedhca2 methods NAME explains the settings. All methods also take batch_norm and norms."
    return Group(table, Text(hint, style="dim"))


def _method_page(name: str, method: Method) -> Group:
    """Describe one method: each component, and each of its settings with default, bounds and meaning."""
    pieces: list[Text | Table] = [
        Text.from_markup(f"[bold]{escape(name)}[/]  {escape(method.reference)}"),
        Text(f"shares {shared_parts(method)}"),
    ]
    for part, component in components_of(method).items():
        if settings := [each for each in settings_in(component) if each.name != "kind"]:
            pieces += [Text(f"\n{part}: {settings[0].about}", style="bold"), _settings_table(settings)]
    return Group(*pieces, Text(), _settings_table([each for each in settings_in(method) if each.name in NORMS]))


def _settings_table(settings: Sequence[Setting]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (18, 9, 17):
        table.add_column(min_width=width, overflow="fold")
    table.add_column()
    for each in settings:
        table.add_row(f"  {each.name}", f"[cyan]{each.value}[/]", each.values, escape(each.meaning))
    return table


def settings_in(config: Config, group: str = "", usual: Config | None = None) -> Iterator[Setting]:
    """The settings of a method or of one of its components; defaults are the values of `usual` if it is of its kind."""
    about = (type(config).__doc__ or "").partition("\n")[0]
    for name, schema in type(config).model_json_schema()["properties"].items():
        default = getattr(usual if type(usual) is type(config) else config, name)
        meaning, value = schema.get("description", ""), format_value(getattr(config, name))
        yield Setting(group, name, allowed_values(schema), format_value(default), meaning, about, value)


def shared_parts(method: Method) -> str:
    """The parts that leave the clients.

    >>> shared_parts(METHODS["fedper"])
    'encoder'
    """
    parts = {"encoder": method.encoder, "decoder": method.decoder, "head": method.head}
    shared = [part if each.every == 1 else f"{part} every {each.every} rounds" for part, each in parts.items() if each]
    return ", ".join(shared) or "nothing"


def show(experiment: str | None, overrides: list[str] | None, words: list[str] | None, as_json: bool) -> None:
    """List every setting: its value in an experiment, its default, the values it may have, and its meaning."""
    if overrides and not experiment:
        raise UserError("--set", "expected an experiment, got none")
    loaded = Experiment.load(experiment, overrides or []) if experiment else None
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
    open_console(highlight=False).print(TextTable(columns, shown, "", note, drop=["values", "default"], wraps=wraps))


def _settings_with_values(experiment: Experiment) -> list[Setting]:
    """All settings of an experiment with their values, those of its method among them."""
    method, usual = experiment.resolved_method, resolve(experiment.method_name)
    name = Setting("", "method", "a name", "fedhca2", "how clients are federated", "", experiment.method_name)
    rows = [name, *(each for each in settings_in(method, "method", usual) if each.name in NORMS)]
    parts = components_of(method)
    for part in ("encoder", "decoder", "head", "weights", "local"):
        if part in parts:
            rows += settings_in(parts[part], f"method.{part}", getattr(usual, part, None))
        else:
            rows.append(Setting("method", part, "nested settings", "", "stays with its client", value="null"))
    own = [each for each in list_settings(experiment.model_dump(mode="json")) if each.group or each.name != "method"]
    before = [each.key for each in own].index("baseline")
    return [*own[:before], *rows, *own[before:]]


def schema() -> None:
    """Print the JSON Schema of an experiment's file, with which editors check it."""
    typer.echo(schema_text(), nl=False)


def plan(epsilon: float | None, rounds: int | None, noise: float | None, delta: float, as_json: bool) -> None:
    """Compute the third of ε, rounds and noise from the two others: the least noise, the most rounds, or the ε."""
    bounds = {"--epsilon": (epsilon, 1e-9, 1e9), "--rounds": (rounds, 1, 1e9), "--noise": (noise, MIN_NOISE, 1e9)}
    bounds["--delta"] = (delta, 1e-30, 0.5)
    faults = [
        Fault(option, f"expected a value from {low:g} to {high:g}, got {value:g}")
        for option, (value, low, high) in bounds.items()
        if value is not None and not low <= value <= high
    ]
    if faults:
        raise UserError.of(faults)
    match epsilon, rounds, noise:
        case float(), int(), None:
            noise = noise_for(epsilon, rounds, delta)
        case float(), None, float():
            rounds = updates_for(epsilon, noise, delta)
        case None, int(), float():
            pass
        case values:
            count = sum(value is not None for value in values)
            raise UserError("plan", f"expected two of --epsilon, --rounds and --noise, got {count}")
    costs = {"epsilon": epsilon_of(noise, rounds, delta), "dp_accounting": audited_epsilon({noise: rounds}, delta)}
    figures = {"noise": noise, "rounds": rounds, "delta": delta, **costs}
    if as_json:
        print_json(figures)
    else:
        print_costs([figures])


def print_costs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print figures about privacy; unknown ones, as without the extra 'privacy', stay empty."""
    titles = {"delta": "δ", "epsilon": "ε", "dp_accounting": "ε by dp-accounting"}
    names = [titles.get(key, key) for key in rows[0]]
    filled = [["" if value is None else value for value in row.values()] for row in rows]
    cells = [[f"{value:.6g}" if isinstance(value, float) else escape(str(value)) for value in row] for row in filled]
    open_console().print(TextTable(names, cells, right=names, drop=[titles["dp_accounting"], "scores", "δ"]))
