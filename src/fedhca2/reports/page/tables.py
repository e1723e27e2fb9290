"""Tables of a run: participants, results, settings and machine."""

from collections.abc import Iterable
from math import isfinite

from fedhca2.reports.figures.groups import group_clients, left_out
from fedhca2.reports.page import Cell, Table
from fedhca2.reports.tables import MOST_ROWS, scores_by_kind
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.names import EVENTS
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import task_scores
from fedhca2.words import UNKNOWN, duration_text, gain_text, metric_heading, score_text, size_text

SHOWN = 100  # most rows of a table of any length
PARTS = ("encoder", "decoder", "head")


def federation_table(run: RunFiles) -> Table:
    """List clients, or kinds of many clients, with data, tasks, images and parameters, and what they share."""
    cast, profiles = group_clients(run), {event["client"]: event for event in run.of("profile")}
    rows = []
    for label, colour in cast.colours.items():
        held = [profiles[client] for client in cast.groups[label] if client in profiles]
        if not held:
            continue
        images = [event["samples"] for event in held]
        sizes = [[_values(event, part) for event in held] for part in PARTS]
        data = dict.fromkeys(event["dataset"] for event in held)
        tasks = dict.fromkeys(task for event in held for task in event["tasks"])
        count = [Cell(f"{len(held):,}", value=len(held))] if cast.by_kind else []
        rows.append(
            [
                Cell(label, colour=colour),
                *count,
                Cell(", ".join(data)),
                Cell(", ".join(tasks)),
                *(Cell(_between(values), value=max(values)) for values in (images, *sizes)),
            ]
        )
    shared = [part for part in PARTS if run.config["method"].get(part)]
    columns = ["kind", "clients"] if cast.by_kind else ["client"]
    columns += ["data", "tasks", "training images"]
    columns += [f"{part} values{', shared' if part in shared else ''}" for part in PARTS]
    kept = [part for part in PARTS if part not in shared]
    told = f"Shared: {', '.join(shared) or 'nothing'}. Stays with the client: {', '.join([*kept, 'data'])}."
    return Table("The federation", columns, rows, told)


def _values(profile: Event, part: str) -> int:
    return sum(count for slot, count in profile["parameters"].items() if slot.split(".")[0] == part)


def _between(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def result_table(run: RunFiles) -> Table:
    """List score, Local baseline and relative gain of every client and task."""
    result = run.result or {"clients": latest_scores(run), "baseline": None}
    baseline, cast = result["baseline"], group_clients(run)
    labels, colours = cast.labels, cast.colours
    columns = ["client", "metric", *(["local"] if baseline else []), run.method, *(["gain"] if baseline else [])]
    rows = []
    for one in task_scores(result["clients"], baseline, run.task_set):
        metric = metric_heading(one.ours.metric, one.ours.higher_is_better)
        colour = colours.get(labels.get(one.client, ""), "")
        row = [Cell(run.short_name(f"{one.client}/{one.task}"), colour=colour), Cell(metric)]
        score = Cell(score_text(one.ours.unit, one.ours.value), value=one.ours.value)
        if one.alone:
            row += [Cell(score_text(one.alone.unit, one.alone.value), value=one.alone.value), score, marked(one.gain)]
        elif baseline:  # a site that was away during the evaluation
            row += [Cell(UNKNOWN), score, Cell(UNKNOWN)]
        else:
            row.append(score)
        rows.append(row)
    return Table(f"All {len(rows):,} results" if len(rows) > MOST_ROWS else "Results", columns, rows)


def kinds_tables(run: RunFiles) -> list[Table]:
    """List quantiles of the scores of every kind and task, and the worst and the best client; empty for few clients."""
    result = run.result or {"clients": latest_scores(run)}
    cast = group_clients(run)
    if sum(map(len, result["clients"].values())) <= MOST_ROWS:
        return []
    rows = []
    for one in scores_by_kind(result["clients"], run.task_set, cast.labels):
        ends = [f"{score_text(one.unit, score)} ({client})" for score, client in (one.ranked[0], one.ranked[-1])]
        marks = [Cell(score_text(one.unit, one.at(share)), value=one.at(share)) for share in (0.1, 0.5, 0.9)]
        worst, best = (
            Cell(text, value=end[0]) for text, end in zip(ends, (one.ranked[0], one.ranked[-1]), strict=True)
        )
        name = Cell(one.kind, colour=cast.colours.get(one.kind, ""))
        count = Cell(f"{len(one.ranked):,}", value=len(one.ranked))
        rows.append([name, Cell(one.task), Cell(one.metric), count, worst, *marks, best])
    columns = ["kind", "task", "metric", "clients", "worst", "10 %", "median", "90 %", "best"]
    return [Table("Scores by kind", columns, rows, "Quantiles go from worse to better clients.")]


def facts_table(runs: list[RunFiles]) -> Table:
    """List rounds, seed, time, traffic and device of each run; those of a single run below each other."""
    columns = ["method", "rounds", "seed", "time", "up", "down", "left out", "device"]
    note = "Left out: replies of clients that failed, were late or away, or were refused, over all rounds."
    rows = []
    for run in runs:
        result = run.result
        traffic = [size_text(result["bytes"][way]) for way in ("up", "down")] if result else ["", ""]
        seconds = duration_text(result["seconds"]) if result else "not finished"
        times = [result["seconds"], *(result["bytes"][way] for way in ("up", "down"))] if result else [None] * 3
        facts = [
            *(Cell(str(run.config[key])) for key in ("rounds", "seed")),
            *(Cell(text, value=value) for text, value in zip([seconds, *traffic], times, strict=True)),
            Cell(str(len(left_out(run)))),
            Cell(result["device"] if result else ""),
        ]
        rows.append([Cell(run.method), *facts])
    if len(rows) == 1:
        turned = [[Cell(name), cell] for name, cell in zip(columns, rows[0], strict=True)]
        return Table("The run", ["fact", "value"], turned, note, wide=False)
    return Table("The runs", columns, rows, note)


def versions_table(runs: list[RunFiles]) -> Table:
    """List the software that was used."""
    finished = [(run.method, run.result["versions"]) for run in runs if run.result]
    if len(finished) > 1 and all(versions == finished[0][1] for _, versions in finished):
        finished = [("all runs", finished[0][1])]
    names = list(dict.fromkeys(name for _, versions in finished for name in versions))
    rows = [[Cell(label), *(Cell(str(versions.get(name, ""))) for name in names)] for label, versions in finished]
    return Table("Versions", ["method", *names], rows)


def left_out_table(run: RunFiles) -> list[Table]:
    """List whose replies were left out, in which rounds and why; empty if all were used."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for one in left_out(run):
        rounds.setdefault((one.client, one.why), []).append(one.round)
    rows = [[Cell(client), Cell(spans(missed)), Cell(why)] for (client, why), missed in rounds.items()]
    hidden = len(rows) - SHOWN
    note = "Each counts as absent in that round. The number after the last round is the evaluation."
    note += f" The first {SHOWN} of {len(rows)} reasons are shown; {EVENTS} has all of them." if hidden > 0 else ""
    return [Table("Left out", ["client", "rounds", "why"], rows[:SHOWN], note)] if rows else []


def declined_table(run: RunFiles) -> list[Table]:
    """List what clients that took part did not do, in which rounds and why; empty if they did everything."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for event in run.of("declined"):
        rounds.setdefault((event["client"], event["why"]), []).append(event["round"] + 1)
    rows = [[Cell(client), Cell(spans(missed)), Cell(why)] for (client, why), missed in rounds.items()]
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
            Cell(str(cost["updates"]), value=cost["updates"]),
            *(Cell(_epsilon(cost[key]), value=cost[key]) for key in ("epsilon", "dp_accounting")),
        ]
        for client, cost in spent["clients"].items()
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
    ranges: list[list[int]] = []
    for round in rounds:
        if ranges and round == ranges[-1][-1] + 1:
            ranges[-1][1:] = [round]
        else:
            ranges.append([round])
    return ", ".join("–".join(map(str, span)) for span in ranges)


def latest_scores(run: RunFiles) -> dict[str, dict[str, dict[str, float]]]:
    """The last scores that a run logged: {client: {task: {metric: value}}}."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for event in run.of("metric"):
        scores.setdefault(event["client"], {}).setdefault(event["task"], {})[event["metric"]] = event["value"]
    return scores


def marked(gain: float) -> Cell:
    """A gain in percent, marked unless it rounds to zero.

    >>> marked(-2.0).mark, marked(0.04).mark
    ('worse', '')
    """
    mark = "" if abs(gain) < 0.05 or not isfinite(gain) else "better" if gain > 0 else "worse"
    return Cell(gain_text(gain), mark, gain)
