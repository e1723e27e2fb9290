"""`fedhca2 evaluate`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    split: Annotated[str, typer.Option(help="val, or train for the images that each client trained on.")] = "val",
    thresholds: Annotated[int, typer.Option(min=1, max=254, help="For edges; the papers use 99.")] = 99,
    client: Annotated[str | None, typer.Option(help="Only this client.")] = None,
) -> None:
    """Evaluate the models that a run saved once more, and write RUN/evaluation.json.

    Where the run trained its Local baseline along, that is evaluated too, and both are compared.
    """
    console = Console()
    if split not in ("train", "val"):
        raise typer.BadParameter(f"should be train or val, found {split}", param_hint="--split")
    with clear_errors():
        from fedhca2.federation.evaluation import Evaluation, evaluated
        from fedhca2.federation.strict_json import to_json
        from fedhca2.reports.tables import conclusion, result_table

        wanted = Evaluation("train" if split == "train" else "val", thresholds, client)
        with console.status("evaluating") as status:
            result = evaluated(run, wanted, lambda name: status.update(f"evaluating {name}"))
        found = {
            "split": split,
            "thresholds": thresholds,
            "clients": result.clients,
            "baseline": result.baseline,
            "delta_m": result.delta_m,
            "delta_m_by_client": result.delta_m_by_client,
        }
        (run / "evaluation.json").write_text(to_json(found, indent=2) + "\n", "utf-8")
    console.print(result_table(result))
    console.print(conclusion(result))
    console.print(f"everything is in {run / 'evaluation.json'}", highlight=False)
