"""Tables of a run: who took part, what it came to."""

from math import isfinite

from fedhca2.federation.result import Headline, headline
from fedhca2.metrics import relative_gain
from fedhca2.reports.names import ARROWS, metric_title
from fedhca2.reports.page.blocks import Cell, Table
from fedhca2.reports.run_files import RunFiles
from fedhca2.tasks import get_task

PARTS = ("encoder", "decoder", "head")


def federation_table(run: RunFiles) -> Table:
    """Clients with data, tasks, images and parameters, and what of their models is shared."""
    method = run.config["method"]
    shared = [part for part in PARTS if method.get(part)]
    rows = []
    for event in run.of("profile"):
        sizes = {
            part: sum(n for slot, n in event["parameters"].items() if slot.split(".")[0] == part) for part in PARTS
        }
        rows.append(
            [
                Cell(event["client"]),
                Cell(event["dataset"]),
                Cell(", ".join(event["tasks"])),
                Cell(f"{event['samples']:,}"),
                *(Cell(f"{sizes[part]:,}") for part in PARTS),
            ]
        )
    columns = ["client", "data", "tasks", "training images"]
    columns += [f"{part} values{', shared' if part in shared else ''}" for part in PARTS]
    kept = [part for part in PARTS if part not in shared]
    told = f"Shared: {', '.join(shared) or 'nothing'}. Stays with the client: {', '.join([*kept, 'data'])}."
    return Table("The federation", columns, rows, told)


def result_table(run: RunFiles) -> Table:
    """One row per client and task: score, Local baseline and relative gain."""
    result = run.result or {"clients": latest_scores(run), "baseline": None, "delta_m": None}
    baseline = result["baseline"]
    columns = ["client", "metric", *(["local"] if baseline else []), run.method, *(["gain"] if baseline else [])]
    rows = []
    for client, tasks in result["clients"].items():
        for task, scores in tasks.items():
            ours = headline(task, scores)
            metric = f"{metric_title(ours.metric)} {ARROWS[ours.higher_is_better]}"
            row = [Cell(run.short_name(f"{client}/{task}")), Cell(metric)]
            if baseline:
                theirs = headline(task, baseline[client][task])
                row += [Cell(number(task, theirs.value)), Cell(number(task, ours.value)), gain_cell(ours, theirs)]
            else:
                row.append(Cell(number(task, ours.value)))
            rows.append(row)
    return Table("Results", columns, rows, delta_note(result["delta_m"]) if run.result else "The run is not finished.")


def latest_scores(run: RunFiles) -> dict[str, dict[str, dict[str, float]]]:
    """The last scores that a run wrote down: {client: {task: {metric: value}}}."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for event in run.of("metric"):
        scores.setdefault(event["client"], {}).setdefault(event["task"], {})[event["metric"]] = event["value"]
    return scores


def delta_note(delta_m: float | None) -> str:
    """Δm in a sentence."""
    if delta_m is None:
        return "Δm needs a Local baseline, which this run has not."
    if not isfinite(delta_m):
        return "Δm is not known: training alone came to a score of 0 somewhere, over which no gain can be measured."
    return f"Δm {delta_m:+.2f} %: the mean gain over training alone, all clients and tasks."


def gain_cell(ours: Headline, theirs: Headline) -> Cell:
    """The relative gain; its sign says what its colour says."""
    gain = relative_gain(ours.value, theirs.value, ours.higher_is_better)
    return marked(gain)


def marked(gain: float) -> Cell:
    """A gain in percent, marked unless it rounds to nothing.

    >>> marked(-2.0), marked(0.04)
    (Cell(text='-2.0 %', mark='worse'), Cell(text='+0.0 %', mark=''))
    """
    if not isfinite(gain):  # over a score of 0
        return Cell("—")
    mark = "" if abs(gain) < 0.05 else "better" if gain > 0 else "worse"
    return Cell(f"{gain:+.1f} %", mark)


def number(task: str, value: float) -> str:
    """A score with its unit."""
    unit = get_task(task).unit
    return f"{value:.3f} {unit}" if abs(value) < 1 else f"{value:.2f} {unit}"
