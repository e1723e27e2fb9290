"""The results, participants, facts and versions of a run as blocks of its page, with the answer before them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import isfinite

import numpy as np

from fedhca2.methods import AGGREGATED
from fedhca2.reports import tables
from fedhca2.reports.figures import GREY, Figure, Trace, gain_axes, gain_bars
from fedhca2.reports.figures.groups import group_clients, list_exclusions
from fedhca2.reports.figures.mixing import exchange_sentence
from fedhca2.reports.page import AnswerBlock, Block, Cell, Table, Tile
from fedhca2.run_folder.folder import EVENTS
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Scores, TaskScore, task_scores
from fedhca2.words import UNKNOWN, counted, duration_text, gain_text, metric_title, score_text, size_text

GAIN = "gain over local training (%)"
MEANING = f"Δm: {tables.DELTA_M_MEANS}."
TRIVIAL_MEANS = "Trivial: the largest class, or the mean, of the training labels as the answer to every input."


def finite_gains(run: RunFiles) -> list[TaskScore]:
    """The scores with a finite gain, in the order of the clients and their tasks."""
    return [one for one in task_scores(*scores_of(run), run.task_set) if isfinite(one.gain)]


def _name(run: RunFiles, one: TaskScore) -> str:
    return one.client if len(run.tasks.get(one.client, ())) == 1 else f"{one.client}/{one.task}"


def _score_texts(run: RunFiles, one: TaskScore) -> str:
    """A score and that of training alone."""
    alone = tables.text_of(one.alone) if one.alone else UNKNOWN
    return f"{metric_title(one.ours.metric)} {alone} local, {tables.text_of(one.ours)} {run.method}"


def about_runs(runs: Sequence[RunFiles]) -> list[str]:
    """The title of the runs, when the first of them started, and the command, if it is the same for all."""
    sentences = [f"{title}." for title in dict.fromkeys(run.config.get("title") for run in runs) if title]
    origins = [run.outcome.origin for run in runs if run.finished and run.outcome.origin]
    if origins:
        first = min(origins, key=lambda origin: str(origin["started"]))
        command = f": `{first['command']}`" if len({origin["command"] for origin in origins}) == 1 else "."
        sentences.append(f"Started {datetime.fromisoformat(first['started']):%d %B %Y, %H:%M} UTC{command}")
    return [" ".join(sentences)] if sentences else []


def scores_of(run: RunFiles) -> tuple[Scores, Scores | None]:
    """A run's final scores with those of its baseline, or its last ones if it is not finished."""
    if run.finished:
        return run.outcome.clients, run.outcome.baseline
    scores: Scores = {}
    for event in run.of("metric"):
        scores.setdefault(event["client"], {}).setdefault(event["task"], {})[event["metric"]] = event["value"]
    return scores, None


def run_answer(run: RunFiles) -> list[Block]:
    """Δm, what each client and task gained, and what it cost."""
    gains, answer = finite_gains(run), _answer(run)
    if not gains:
        return [answer]
    if len(gains) <= 40:
        return [answer, _bars(run, gains)]
    ranked, colours = sorted(gains, key=lambda one: -one.gain), group_clients(run).client_colours
    rows = [
        [Cell(_name(run, one), colour=colours.get(one.client, "")), Cell(_score_texts(run, one)), gain_cell(one.gain)]
        for one in [*ranked[:5], *ranked[-5:]]
    ]
    ends = Table("Five largest and smallest gains", ["client", "scores", "gain"], rows, wide=False)
    return [answer, _boxes(run, gains), ends]


def _answer(run: RunFiles) -> AnswerBlock:
    if not run.finished:
        sentence = f"The run is not finished. {len(run.of('round'))} of {counted(run.rounds, 'round')} done."
        return AnswerBlock("Δm", UNKNOWN, (), [sentence], ())
    result, number, mark = run.outcome, UNKNOWN, ""
    ranked = sorted(finite_gains(run), key=lambda one: one.gain)
    tiles = [
        Tile(word, gain_text(one.gain), f"{_name(run, one)}: {_score_texts(run, one)}", mark_of(one.gain))
        for word, one in ((("Best", ranked[-1]), ("Worst", ranked[0])) if len(ranked) > 1 else ())
    ]
    tiles, sentences = [*tiles, *cost_tiles(run)], [tables.UNKNOWN_GAIN]
    if not result.baseline:
        sentences = ["No local baseline, so Δm is unknown. Rerun with `--set baseline=true`."]
    elif result.delta_m is not None and isfinite(result.delta_m):
        number, mark = gain_text(result.delta_m), mark_of(result.delta_m)
        certain = tables.how_certain(result.clients, result.baseline, run.task_set)
        candidates = [certain, tables.across_text(result, run.task_set), *exchange_sentence(run)]
        sentences = [*filter(None, candidates)]
        if run.several_of_a_kind and (by_client := result.delta_m_by_client) is not None:
            tiles.append(Tile("Δm by client", gain_text(by_client), "mean over clients; Δm averages each group first"))
    sentences += unclear_scores({"": [run]})
    return AnswerBlock(f"Δm of {run.method}", number, [MEANING], sentences, tiles, mark)


def unclear_scores(rows: Mapping[str, Sequence[RunFiles]]) -> list[str]:
    """Say how many scores of runs, and of a few which, are not clearly better than a constant answer; empty if all are.

    :param rows: runs by a name, or a single run by "".
    """
    counts = []
    for name, runs in rows.items():
        all_scores = [(run, one) for run in runs for one in task_scores(run.outcome.clients, None, run.task_set)]
        comparable = [(run, one) for run, one in all_scores if isfinite(one.ours.trivial)]
        unclear = [_name(run, one) for run, one in comparable if not one.ours.is_clear]
        text = f"{len(unclear):,} of {counted(len(comparable), 'score')}{f' of {name}' * bool(name)}"
        text += f" ({', '.join(unclear)})" if len(runs) == 1 and len(unclear) <= 6 else ""
        counts += [text] * bool(unclear)
    return [f"Not clearly better than a trivial answer, the same for every input: {', '.join(counts)}."][: len(counts)]


def cost_tiles(run: RunFiles) -> list[Tile]:
    """How long a run took, and what it sent."""
    result = run.outcome
    up, down = result.bytes["up"], result.bytes["down"]
    each = size_text((up + down) / max(1, len(result.clients)) / max(1, run.rounds))
    besides = f"; local baseline {duration_text(run.baseline.outcome.seconds)}" if run.baseline.finished else ""
    time = f"{counted(max(1, run.rounds), 'round')} on {result.device}{besides}"
    traffic = f"{size_text(up)} up, {size_text(down)} down; {each} per client and round"
    return [Tile("Time", duration_text(result.seconds), time), Tile("Traffic", size_text(up + down), traffic)]


def _bars(run: RunFiles, gains: Sequence[TaskScore]) -> Figure:
    """Draw a bar per client and task, in the client's colour."""
    groups, traces = group_clients(run), list[Trace]()
    labels = groups.labels
    for label, colour in groups.colours.items():
        if own := [one for one in gains if labels.get(one.client) == label]:
            numbers = {"text": [gain_text(one.gain) for one in own], "textposition": "outside"}
            hover: Trace = {"hovertext": [_score_texts(run, one) for one in own]}
            hover["hovertemplate"] = "%{y}<br>%{hovertext}<extra></extra>"
            names, percent = [_name(run, one) for one in own], [one.gain for one in own]
            traces.append(gain_bars(label, colour, names, percent, **numbers, **hover))
    height = 90 + 30 * len(gains)
    layout = gain_axes(GAIN, [one.gain for one in gains], height, barmode="overlay", bargap=0.25)
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": [_name(run, one) for one in gains]}
    note = "Relative change of each client's score. Positive means better, also for metrics where lower is better."
    return Figure("gains", "Who gained", note, traces, layout)


def _boxes(run: RunFiles, gains: Sequence[TaskScore]) -> Figure:
    """Draw quantiles of the gains of each group and task."""
    groups, by_kind = group_clients(run), dict[tuple[str, str], list[float]]()
    labels, colours = groups.labels, groups.colours
    for one in gains:
        by_kind.setdefault((labels.get(one.client, one.client), one.task), []).append(one.gain)
    traces, parts = list[Trace](), {"lowerfence": 0.05, "q1": 0.25, "median": 0.5, "q3": 0.75, "upperfence": 0.95}
    for (label, task), own in by_kind.items():
        box: Trace = {part: [float(np.quantile(own, share))] for part, share in parts.items()}
        name, colour = f"{label} · {run.task_set[task].title} ({len(own):,})", colours.get(label, GREY)
        shape = {"type": "box", "orientation": "h", "y": [name], "name": name, "width": 0.6}
        traces.append({**shape, **box, "line": {"color": colour}, "fillcolor": f"{colour}40"})
    ends = [value for trace in traces for fence in ("lowerfence", "upperfence") for value in trace[fence]]
    note = "Boxes: median and quartiles per group; whiskers: 5th to 95th percentile; group size in brackets."
    return Figure("gains", "Who gained", note, traces, gain_axes(GAIN, ends, 100 + 44 * len(traces)), wide=True)


def mark_of(gain: float) -> str:
    """The mark of a gain in percent, unless it rounds to zero.

    >>> mark_of(-2.0), mark_of(0.04)
    ('worse', '')
    """
    return "" if abs(gain) < 0.05 or not isfinite(gain) else "better" if gain > 0 else "worse"


def gain_cell(gain: float) -> Cell:
    """A gain in percent, with its mark."""
    return Cell(gain_text(gain), mark_of(gain), gain)


def federation_table(run: RunFiles) -> Table:
    """List clients, or groups of many clients, with data, tasks, images and parameters, and what they share."""
    groups, profiles = group_clients(run), {event["client"]: event for event in run.of("profile")}
    rows = []
    for label, colour in groups.colours.items():
        own = [profiles[client] for client in groups.groups[label] if client in profiles]
        if not own:
            continue
        numbers = [[event["samples"] for event in own]]
        for part in AGGREGATED:
            slots = [event["parameters"].items() for event in own]
            numbers.append([sum(count for slot, count in one if slot.split(".")[0] == part) for one in slots])
        count = [Cell(f"{len(own):,}", value=len(own))] * groups.by_kind
        data, tasks = [event["dataset"] for event in own], [task for event in own for task in event["tasks"]]
        texts = [Cell(", ".join(dict.fromkeys(words))) for words in (data, tasks)]
        cells = [Cell(" to ".join(f"{end:,}" for end in sorted({min(v), max(v)})), value=max(v)) for v in numbers]
        rows.append([Cell(label, colour=colour), *count, *texts, *cells])
    shared = [part for part in AGGREGATED if run.config["method"].get(part)]
    columns = [*(["group", "clients"] if groups.by_kind else ["client"]), "data", "tasks", "training samples"]
    columns += [f"{part} parameters{', shared' * (part in shared)}" for part in AGGREGATED]
    private = [*(part for part in AGGREGATED if part not in shared), "data"]
    note = f"Shared: {', '.join(shared) or 'nothing'}. Kept local: {', '.join(private)}."
    return Table("The federation", columns, rows, note)


def result_table(run: RunFiles) -> Table:
    """List trivial score, local baseline, score and relative gain of every client and task."""
    scores, baseline = scores_of(run)
    colours, all_scores = group_clients(run).client_colours, list(task_scores(scores, baseline, run.task_set))
    has_floor, rows = any(isfinite(one.ours.trivial) for one in all_scores), []
    for one in all_scores:
        row = [Cell(_name(run, one), colour=colours.get(one.client, "")), Cell(tables.heading_of(one.ours))]
        row += [Cell(score_text(one.ours.unit, one.ours.trivial), value=one.ours.trivial)] * has_floor
        if baseline:  # without `alone`, a site was away during the evaluation
            row.append(Cell(tables.text_of(one.alone), value=one.alone.value) if one.alone else Cell(UNKNOWN))
        text, unclear = tables.text_of(one.ours), not one.ours.is_clear
        row.append(Cell(text + " †" * unclear, "worse" * unclear, one.ours.value))
        if baseline:
            row.append(gain_cell(one.gain))
        rows.append(row)
    floors = ["trivial"] * has_floor
    columns = ["client", "metric", *floors, *(["local", run.method, "gain"] if baseline else [run.method])]
    title = f"All {len(rows):,} results" if len(rows) > tables.MAX_CLIENT_ROWS else "Results"
    notes = ["Scores are on test images."] * (run.result is not None and run.result.split == "test")
    notes += [TRIVIAL_MEANS] * has_floor
    notes += ["†: not clearly better than that."] * (has_floor and not all(one.ours.is_clear for one in all_scores))
    return Table(title, columns, rows, " ".join(notes))


def kinds_tables(run: RunFiles) -> list[Table]:
    """List percentiles of the scores of every group and task, and the worst and best client; empty for few clients."""
    scores, groups, rows = scores_of(run)[0], group_clients(run), []
    if sum(map(len, scores.values())) <= tables.MAX_CLIENT_ROWS:
        return []
    for one in tables.scores_by_kind(scores, run.task_set, groups.labels):
        unit, ends = one.first.unit, (one.ranked[0], one.ranked[-1])
        worst, best = (Cell(f"{score_text(unit, score)} ({client})", value=score) for score, client in ends)
        quantiles = [Cell(score_text(unit, one.at(share)), value=one.at(share)) for share in (0.1, 0.5, 0.9)]
        name = Cell(one.kind, colour=groups.colours.get(one.kind, ""))
        count = Cell(f"{len(one.ranked):,}", value=len(one.ranked))
        rows.append([name, Cell(one.task), Cell(tables.heading_of(one.first)), count, worst, *quantiles, best])
    columns = ["group", "task", "metric", "clients", "worst", "10th", "median", "90th", "best"]
    return [Table("Scores by group", columns, rows, "Percentiles are ordered from worst to best.")]


def facts_table(runs: list[RunFiles]) -> Table:
    """List rounds, seed, time, traffic and device of each run; those of a single run below each other."""
    columns = ["method", "rounds", "seed", "time", "upload", "download", "excluded replies", "device"]
    note = "Excluded replies: clients that failed, were late or absent, or were rejected, over all rounds."
    rows = []
    for run in runs:
        cost = [Cell("not finished"), Cell(""), Cell("")]
        if run.finished:
            cost = [Cell(duration_text(run.outcome.seconds), value=run.outcome.seconds)]
            cost += [Cell(size_text(run.outcome.bytes[way]), value=run.outcome.bytes[way]) for way in ("up", "down")]
        about = [Cell(run.method), *(Cell(str(run.config[key])) for key in ("rounds", "seed"))]
        device = run.outcome.device if run.finished else ""
        rows.append([*about, *cost, Cell(str(len(list_exclusions(run)))), Cell(device)])
    if len(rows) == 1:
        facts = [[Cell(name), cell] for name, cell in zip(columns, rows[0], strict=True)]
        return Table("The run", ["fact", "value"], facts, note, wide=False)
    return Table("The runs", columns, rows, note)


def versions_table(runs: list[RunFiles]) -> Table:
    """List the software that was used."""
    finished = [(run.method, run.outcome.versions) for run in runs if run.finished]
    if len(finished) > 1 and all(versions == finished[0][1] for _, versions in finished):
        finished = [("all runs", finished[0][1])]
    names = list(dict.fromkeys(name for _, versions in finished for name in versions))
    rows = [[Cell(label), *(Cell(str(versions.get(name, ""))) for name in names)] for label, versions in finished]
    return Table("Versions", ["method", *names], rows)


def reasons_tables(run: RunFiles) -> list[Table]:
    """List whose replies were left out, and what clients that took part did not do, in which rounds and why."""
    declined = [(event["client"], event["why"], event["round"] + 1) for event in run.of("declined")]
    notes = {
        "Excluded": (list_exclusions(run), "Each counts as absent in that round. Round N+1 is the final evaluation."),
        "Declined": (declined, "These clients took part but rejected the server's update, or kept their scores."),
    }
    found = []
    for title, (reasons, note) in notes.items():
        rounds: dict[tuple[str, str], list[int]] = {}
        for client, why, round in reasons:
            rounds.setdefault((client, why), []).append(round)
        rows = [[Cell(client), Cell(format_ranges(own)), Cell(why)] for (client, why), own in rounds.items()]
        if len(rows) > 100:
            note += f" The first 100 of {len(rows)} reasons are shown; {EVENTS} has all of them."
        found += [Table(title, ["client", "rounds", "reason"], rows[:100], note)] * bool(rows)
    return found


def privacy_table(run: RunFiles) -> list[Table]:
    """List the cost of every client's noised updates; empty without noise."""
    rows, spent = [], run.outcome.privacy if run.finished else None
    if not spent:
        return []
    for client, cost in spent["clients"].items():
        row = [Cell(client), Cell(str(cost["updates"]), value=cost["updates"])]
        for value in (cost["epsilon"], cost["dp_accounting"]):
            row.append(Cell("not installed" if value is None else f"{value:.4g}", value=value))
        rows.append(row)
    note = f"Client-level differential privacy at δ = {spent['delta']:g} of the updates that were sent, with noise "
    note += f"{spent['noise']:g}. Sites with extra local noise have spent less."
    return [Table("Privacy", ["client", "updates sent", "ε", "ε by dp-accounting"], rows, note)]


def format_ranges(rounds: Iterable[int]) -> str:
    """Write round numbers as ranges.

    >>> format_ranges([1, 2, 3, 7, 9, 10])
    '1–3, 7, 9–10'
    """
    ranges: list[list[int]] = []
    for round in rounds:
        if ranges and round == ranges[-1][-1] + 1:
            ranges[-1][1:] = [round]
        else:
            ranges.append([round])
    return ", ".join("–".join(map(str, span)) for span in ranges)
