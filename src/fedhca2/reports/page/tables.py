"""Tables of a run: participants, results, settings and machine."""

from collections.abc import Iterable
from math import isfinite

from fedhca2.metrics import relative_gain
from fedhca2.reports.figures.attendance import left_out
from fedhca2.reports.names import UNKNOWN, UNKNOWN_GAIN, gain_text, metric_heading, score_text
from fedhca2.reports.page.blocks import Cell, Table
from fedhca2.reports.tables import how_certain
from fedhca2.run_folder.names import EVENTS
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Headline, headline

SHOWN = 100  # most rows of a table of any length
PARTS = ("encoder", "decoder", "head")


def federation_table(run: RunFiles) -> Table:
    """List clients with data, tasks, images and parameters, and the shared parts of their models."""
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
    """List score, Local baseline and relative gain of every client and task."""
    result = run.result or {"clients": latest_scores(run), "baseline": None}
    baseline = result["baseline"]
    columns = ["client", "metric", *(["local"] if baseline else []), run.method, *(["gain"] if baseline else [])]
    rows = []
    for client, tasks in result["clients"].items():
        for task, scores in tasks.items():
            ours = headline(task, scores)
            metric = metric_heading(ours.metric, ours.higher_is_better)
            row = [Cell(run.short_name(f"{client}/{task}")), Cell(metric)]
            if baseline and client in baseline:
                theirs = headline(task, baseline[client][task])
                row += [
                    Cell(score_text(task, theirs.value)),
                    Cell(score_text(task, ours.value)),
                    gain_cell(ours, theirs),
                ]
            elif baseline:  # a site that was away during the evaluation
                row += [Cell(UNKNOWN), Cell(score_text(task, ours.value)), Cell(UNKNOWN)]
            else:
                row.append(Cell(score_text(task, ours.value)))
            rows.append(row)
    told = delta_note(run) if run.result else "The run is not finished."
    return Table("Results", columns, rows, told)


def facts_table(runs: list[RunFiles]) -> Table:
    """List rounds, seed, time, traffic and device of each run."""
    rows = []
    for run in runs:
        result = run.result
        traffic = [f"{result['bytes'][way] / 2**20:.1f} MiB" for way in ("up", "down")] if result else ["", ""]
        seconds = f"{result['seconds']:.0f} s" if result else "not finished"
        facts = [
            str(run.config["rounds"]),
            str(run.config["seed"]),
            seconds,
            *traffic,
            str(len(left_out(run))),
            result["device"] if result else "",
        ]
        rows.append([Cell(run.method), *map(Cell, facts)])
    return Table(
        "The run" if len(runs) == 1 else "The runs",
        ["method", "rounds", "seed", "time", "up", "down", "left out", "device"],
        rows,
    )


def versions_table(runs: list[RunFiles]) -> Table:
    """List the software that was used."""
    names = list(dict.fromkeys(name for run in runs if run.result for name in run.result["versions"]))
    rows = [
        [Cell(run.method), *(Cell(str(run.result["versions"].get(name, ""))) for name in names)]
        for run in runs
        if run.result
    ]
    return Table("Versions", ["method", *names], rows)


def left_out_table(run: RunFiles) -> list[Table]:
    """List whose replies were left out, in which rounds and why; empty if all were used."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for one in left_out(run):
        rounds.setdefault((one.client, one.why), []).append(one.round)
    rows = [[Cell(client), Cell(spans(found)), Cell(why)] for (client, why), found in rounds.items()]
    hidden = len(rows) - SHOWN
    note = "Each counts as absent in that round. The number after the last round is the evaluation."
    note += f" The first {SHOWN} of {len(rows)} reasons are shown; {EVENTS} has all of them." if hidden > 0 else ""
    return [Table("Left out", ["client", "rounds", "why"], rows[:SHOWN], note)] if rows else []


def declined_table(run: RunFiles) -> list[Table]:
    """List what clients that took part did not do, in which rounds and why; empty if they did everything."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for event in run.of("declined"):
        rounds.setdefault((event["client"], event["why"]), []).append(event["round"] + 1)
    rows = [[Cell(client), Cell(spans(found)), Cell(why)] for (client, why), found in rounds.items()]
    note = "Each still took part, with its own model if it rejected the rows it was sent."
    return [Table("Declined", ["client", "rounds", "what and why"], rows[:SHOWN], note)] if rows else []


def privacy_table(run: RunFiles) -> list[Table]:
    """List the cost of every client's noised updates; empty without noise."""
    spent = (run.result or {}).get("privacy")
    if not spent:
        return []
    rows = [
        [
            Cell(client),
            Cell(str(found["updates"])),
            *(Cell(_epsilon(found[key])) for key in ("epsilon", "dp_accounting")),
        ]
        for client, found in spent["clients"].items()
    ]
    note = f"Client-level differential privacy at δ = {spent['delta']:g} of the updates that were sent, with noise "
    note += f"{spent['noise']:g}. A site that adds more noise on its own has spent less than this."
    return [Table("Privacy", ["client", "updates sent", "ε", "ε by dp-accounting"], rows, note)]


def _epsilon(value: float | None) -> str:
    return "not installed" if value is None else f"{value:.4g}"


def spans(rounds: Iterable[int]) -> str:
    """Write round numbers as ranges.

    >>> spans([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    found: list[list[int]] = []
    for round in rounds:
        if found and round == found[-1][-1] + 1:
            found[-1][1:] = [round]
        else:
            found.append([round])
    return ", ".join("–".join(map(str, span)) for span in found)


def latest_scores(run: RunFiles) -> dict[str, dict[str, dict[str, float]]]:
    """The last scores that a run logged: {client: {task: {metric: value}}}."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for event in run.of("metric"):
        scores.setdefault(event["client"], {}).setdefault(event["task"], {})[event["metric"]] = event["value"]
    return scores


def delta_note(run: RunFiles) -> str:
    """Explain Δm of a finished run."""
    assert run.result is not None
    if not run.result["baseline"]:
        return "Δm needs a Local baseline, which this run does not have."
    gain, by_client = run.result["delta_m"], run.result["delta_m_by_client"]
    if gain is None:
        return UNKNOWN_GAIN
    told = f"Δm {gain_text(gain)}: the mean gain over training alone, all clients and tasks."
    if run.several_of_a_kind and by_client is not None:
        told += f" Clients of a kind are averaged; by client, Δm is {gain_text(by_client)}."
    return f"{told} {how_certain(run.result['clients'], run.result['baseline'])}"


def gain_cell(ours: Headline, theirs: Headline) -> Cell:
    """The relative gain, marked with its sign for the colour."""
    gain = relative_gain(ours.value, theirs.value, ours.higher_is_better)
    return marked(gain)


def marked(gain: float) -> Cell:
    """A gain in percent, marked unless it rounds to zero.

    >>> marked(-2.0), marked(0.04)
    (Cell(text='-2.00 %', mark='worse'), Cell(text='+0.04 %', mark=''))
    """
    mark = "" if abs(gain) < 0.05 or not isfinite(gain) else "better" if gain > 0 else "worse"
    return Cell(gain_text(gain), mark)
