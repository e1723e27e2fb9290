"""`fedhca2 privacy`: the cost of noise, before a run and at a site."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedhca2.cli.app import Json, app, clear_errors, open_console, print_json

privacy = typer.Typer(
    help="Plan the noise for a privacy budget; show what a site has spent.",
    no_args_is_help=True,
    suggest_commands=False,
)
app.add_typer(privacy, name="privacy")

Row = dict[str, str | float | None]
ALL = "all runs"
TITLES = {"delta": "δ", "epsilon": "ε", "dp_accounting": "ε by dp-accounting"}


@privacy.command()
def plan(
    epsilon: Annotated[float | None, typer.Option(help="The total ε of all rounds.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in which a client sends an update.")] = None,
    noise: Annotated[float | None, typer.Option(help="The noise, as in privacy.noise.")] = None,
    delta: Annotated[float, typer.Option(help="The δ for this ε.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Give two of --epsilon, --rounds and --noise to compute the third: the least noise, the most rounds, or the ε."""
    with clear_errors():
        from fedhca2.clients.privacy import MIN_NOISE, audited_epsilon, noise_for, updates_for
        from fedhca2.clients.privacy import epsilon as epsilon_of
        from fedhca2.errors import UserError

        bounds = {"--epsilon": (epsilon, 1e-9, 1e9), "--rounds": (rounds, 1, 1e9), "--noise": (noise, MIN_NOISE, 1e9)}
        bounds["--delta"] = (delta, 1e-30, 0.5)
        lines = [
            f"{option}: should be from {low:g} to {high:g}, found {value:g}"
            for option, (value, low, high) in bounds.items()
            if value is not None and not low <= value <= high
        ]
        if lines:
            raise UserError(lines)
        match epsilon, rounds, noise:
            case float(), int(), None:
                noise = noise_for(epsilon, rounds, delta)
            case float(), None, float():
                rounds = updates_for(epsilon, noise, delta)
            case None, int(), float():
                pass
            case given:
                count = sum(value is not None for value in given)
                raise UserError([f"plan: should have two of --epsilon, --rounds and --noise, found {count}"])
        costs = {"epsilon": epsilon_of(noise, rounds, delta), "dp_accounting": audited_epsilon({noise: rounds}, delta)}
    _show({"noise": noise, "rounds": rounds, "delta": delta, **costs}, as_json)


@privacy.command()
def spent(
    file: Annotated[Path, typer.Argument(help="The site's own file.")],
    as_json: Json = False,
) -> None:
    """Show what a site's noised updates and scores have cost so far, from its own ledger: per run and in total."""
    with clear_errors():
        from fedhca2.clients.privacy import audited_epsilon
        from fedhca2.federation.flower.deploy.ledger import Ledger, cost
        from fedhca2.federation.flower.deploy.site_config import SiteConfig

        site = SiteConfig.load(file)
        entries, budget = Ledger.of(site).entries(), site.privacy
        runs = {run: [entry for entry in entries if entry.run == run] for run in dict.fromkeys(e.run for e in entries)}
        rows = [
            {
                "run": run,
                "updates": sum(entry.kind == "update" for entry in spent_in_run),
                "scores": sum(entry.kind == "scores" for entry in spent_in_run),
                "delta": budget.delta,
                "epsilon": cost(spent_in_run, budget.delta),
                "dp_accounting": audited_epsilon(Counter(entry.noise for entry in spent_in_run), budget.delta),
                "budget": budget.epsilon if run == ALL else None,
            }
            for run, spent_in_run in [*runs.items(), (ALL, entries)]
        ]
    _show(rows, as_json)


def _show(figures: Row | list[Row], as_json: bool) -> None:
    """Print figures as a table or as JSON; unknown ones, as without the extra 'privacy', stay empty."""
    if as_json:
        print_json(figures)
        return
    from fedhca2.reports.tables import TextTable

    rows = figures if isinstance(figures, list) else [figures]
    names = [TITLES.get(key, key) for key in rows[0]]
    cells = [[escape(_text(value)) for value in row.values()] for row in rows]
    open_console().print(
        TextTable(names, cells, right=names, drop=[TITLES["dp_accounting"], "scores", TITLES["delta"]])
    )


def _text(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
