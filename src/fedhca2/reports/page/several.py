"""The page of several runs: which method is better, by how much, on which clients, and at which cost."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import isfinite

from fedhca2.reports.comparison import BY_CLIENT, DELTA_M, LOCAL, Column, Comparison, gather, with_trivial
from fedhca2.reports.drawings import RANKS_TITLE, draw_ranks, ranking_note, ranking_of
from fedhca2.reports.figures import COLOURS, GREY, Figure, conflict, curves, gain_axes, gain_bars, round_axes
from fedhca2.reports.figures.curves import Series
from fedhca2.reports.figures.groups import group_clients
from fedhca2.reports.layouts import marked_cell, marks_note
from fedhca2.reports.page import ONE_EVALUATION, AnswerBlock, Block, Cell, Drawing, Section, Table, Tile, tables
from fedhca2.reports.page.predictions import comparison_galleries
from fedhca2.reports.variants import differing_keys, flatten, variants
from fedhca2.run_folder.reader import RunFiles
from fedhca2.tasks.task import TRIVIAL
from fedhca2.words import UNKNOWN, gain_text

Variants = Mapping[str, Sequence[RunFiles]]  # the seeds of each row of the table, by label


def several_sections(runs: list[RunFiles]) -> list[Section]:
    """Compare runs: results with differences, curves, predictions, weights, similarity, cost, and settings."""
    comparison, rows = gather(runs), variants(runs)
    firsts = {label: seeds[0] for label, seeds in rows.items()}
    others = [label for label, seeds in rows.items() if seeds[0].method != LOCAL]
    colours = {label: COLOURS[others.index(label) % len(COLOURS)] if label in others else GREY for label in rows}
    results: list[Block] = [
        *tables.about_runs(runs),
        comparison_answer(comparison, rows),
        *_gains(comparison, colours),
        results_table(with_trivial(comparison, runs), colours),
        differences_table(comparison, colours),
    ]
    if ranking := ranking_of(comparison):
        results.append(Drawing(RANKS_TITLE, draw_ranks(ranking), ranking_note(ranking)))
    sections = [
        Section("Results", results, colours),
        Section("Training", list(_curves(rows, colours)) or [ONE_EVALUATION], colours),
        Section("Predictions", comparison_galleries(firsts)),
        Section("Learned weights", *_of_each(firsts, curves.weight_figures)),
        Section("Update similarity", *_of_each(firsts, conflict.conflict_figures)),
        Section("Cost", [*_costs(rows, colours), tables.facts_table(runs)], colours),
        Section("Settings", [*settings_tables(firsts), tables.versions_table(runs)]),
    ]
    return [section for section in sections if section.blocks]


def comparison_answer(comparison: Comparison, runs: Variants) -> AnswerBlock:
    """The method with the highest Δm, its spread over seeds, the others, and what it cost."""
    others = {m: row[DELTA_M] for m, row in comparison.entries.items() if DELTA_M in row and m not in comparison.alone}
    finite = {method: entry for method, entry in others.items() if isfinite(entry.mean)}
    if not finite:
        sentence = "Δm is unknown: a local score is 0, or no run of `local` has the same settings and seeds."
        return AnswerBlock("Δm", UNKNOWN, [tables.MEANING], [sentence, *tables.unclear_scores(runs)], ())
    tiles, ranked = [], dict(sorted(finite.items(), key=lambda pair: -pair[1].mean))
    for method, entry in ranked.items():
        several = f"± {entry.deviation or 0.0:.2f} (SD over {len(entry.values)} seeds)."
        spread = "One seed, no error bar." if entry.deviation is None else several
        tiles.append(Tile(f"Δm of {method}", f"{entry.mean:+.2f}%", spread, tables.mark_of(entry.mean)))
    first, *rest = tiles
    best = next(iter(ranked))
    sentence = f"{best} gains most over local training"
    if comparison.p_values.get(best) is not None and not comparison.is_beyond_chance(best, DELTA_M):
        sentence += ", but the gain is not statistically significant"
    sentences = [f"{sentence}.", *tables.unclear_scores(runs)]
    tiles = [*rest[:4], *tables.cost_tiles(runs[best][0])]
    return AnswerBlock(first.name, first.fact, [tables.MEANING, first.detail], sentences, tiles, first.mark)


def results_table(comparison: Comparison, colours: Mapping[str, str]) -> Table:
    """Make the papers' table: a row per method, Δm first, the best of each column in bold."""
    columns = sorted(comparison.columns, key=lambda column: not column.is_gain)
    rows = []
    for method, entries in comparison.entries.items():
        marks = ["best" * comparison.is_best(method, column) for column in columns]
        cells = [
            Cell(marked_cell(comparison, method, column), mark, entries[column].mean)
            for column, mark in zip(columns, marks, strict=True)
        ]
        rows.append([Cell(method, colour=colours.get(method, "")), *cells])
    seeds = max(len(entry.values) for row in comparison.entries.values() for entry in row.values())
    notes = [f"Mean ± SD over {seeds} seeds."] * (seeds > 1) + ["Bold: best in column."]
    notes += ["Δm averages each group first; Δm by client does not."] * (BY_CLIENT in comparison.columns)
    notes += [tables.TRIVIAL_MEANS] * (TRIVIAL in comparison.entries)
    return _by_column("Results", columns, rows, " ".join([*notes, marks_note(comparison)]).strip())


def differences_table(comparison: Comparison, colours: Mapping[str, str]) -> Table:
    """List the relative gain of every method over the first one."""
    first, *others = comparison.entries
    columns = [column for column in comparison.columns if not column.is_gain]
    rows = []
    for method in others:
        gains = [tables.gain_cell(comparison.gain(method, column, first)) for column in columns]
        rows.append([Cell(method, colour=colours[method]), *gains])
    return _by_column(f"Gain over {first}", columns, rows, "Relative gain in percent; positive is better.")


def _by_column(title: str, columns: Sequence[Column], rows: list[list[Cell]], note: str) -> Table:
    """A row per method and a column per group of clients and task, under the names of the groups."""
    over = [(group, len(list(same))) for group, same in groupby(columns, key=lambda column: column.group)]
    return Table(title, ["method", *(column.heading for column in columns)], rows, note, over)


def settings_tables(runs: Mapping[str, RunFiles]) -> list[Table]:
    """List the settings in which the runs differ, and those that all of them have in common."""
    settings = [dict(flatten(run.settings)) for run in runs.values()]
    keys = differing_keys(list(runs.values()))
    rows = [[Cell(key), *(Cell(str(own.get(key, UNKNOWN))) for own in settings)] for key in keys]
    common = [[Cell(key), Cell(str(value))] for key, value in settings[0].items() if key not in keys]
    return [
        Table("Settings that differ", ["setting", *runs], rows, "For the first seed of each."),
        Table("Settings in common", ["setting", "value"], common, folded=True),
    ]


def _gains(comparison: Comparison, colours: Mapping[str, str]) -> list[Figure]:
    """Draw Δm of every method, with whiskers if it has several seeds, and its gains by group of clients and task."""
    methods = [method for method in comparison.entries if method not in comparison.alone]
    if DELTA_M not in comparison.columns or not methods:
        return []
    bars, ends, several = [], [], False
    for method in methods:
        mean, deviation = comparison.entries[method][DELTA_M].mean, comparison.entries[method][DELTA_M].deviation
        whisker = {} if deviation is None else {"error_x": {"type": "data", "array": [deviation]}}
        bars.append(gain_bars(method, colours[method], [method], [mean], meta=method, **whisker))
        ends += [mean - (deviation or 0.0), mean + (deviation or 0.0)]
        several = several or bool(whisker)
    layout = gain_axes("Δm (%)", ends, 90 + 34 * len(methods), barmode="overlay")
    note = "Mean relative gain over local training; "
    note += "whiskers: SD over seeds." if several else "one seed, no error bar."
    figures = [Figure("delta-m", "Δm", note, bars, layout, wide=True)]
    columns, local = [column for column in comparison.columns if not column.is_gain], next(iter(comparison.alone), None)
    if local is not None and len(methods) * len(columns) <= 60:
        figures.append(_column_gains(comparison, columns, {method: colours[method] for method in methods}, local))
    return figures


def _column_gains(comparison: Comparison, columns: Sequence[Column], colours: Mapping[str, str], local: str) -> Figure:
    names, traces = [f"{column.group}: {column.task}" for column in columns], []
    for method, colour in colours.items():
        gains = [comparison.gain(method, column, local) for column in columns]
        numbers = {"text": [gain_text(gain) for gain in gains], "textposition": "outside"}
        traces.append(gain_bars(method, colour, names, gains, meta=method, **numbers))
    height = 100 + (14 + 18 * len(colours)) * len(columns)
    layout = gain_axes(tables.GAIN, [gain for trace in traces for gain in trace["x"]], height, barmode="group")
    note = "Relative change of each group's mean score. Positive means better, also for metrics where lower is better."
    return Figure("gains", "Who gained", note, traces, layout, wide=True)


def _curves(rows: Variants, colours: Mapping[str, str]) -> Iterator[Figure]:
    """Draw the mean score of every method by client, or by group of many clients, in tasks measured more than once."""
    first, most = next(iter(rows.values()))[0], max(map(len, rows.values()))
    seeds_note = f"Mean of up to {most} seeds; band: lowest to highest." if most > 1 else ""
    for number, (label, clients) in enumerate(group_clients(first).groups.items()):
        for task in dict.fromkeys(task for client in clients for task in first.tasks.get(client, ())):
            if (main := curves.last_score(first, task)) is None:
                continue
            traces, means = [], {}
            for method, runs in rows.items():
                by_run = [curves.task_series(run.of("metric"), task, main.metric) for run in runs]
                seeds = [mean_series([own[client] for client in clients if client in own]) for own in by_run]
                rounds = sorted({round for one in seeds for round in one})
                traces += curves.draw_series(method, colours[method], seeds, rounds, band="seeds")
                means[method] = mean_series(seeds)
            if max((len(trace["x"]) for trace in traces), default=0) < 2:
                continue
            local = next((means[method] for method, runs in rows.items() if runs[0].method == LOCAL), None)
            note = f"{seeds_note} {matching_rounds(means, local, main.higher_is_better) if local else ''}".strip()
            axes = round_axes(first.rounds, curves.score_axis(main), traces)
            yield Figure(f"metric-{number}-{task}", f"{label}: {first.task_set[task].title}", note, traces, axes)


def matching_rounds(means: Mapping[str, Series], local: Series, higher: bool) -> str:
    """Say after how many rounds each method's mean is as good as the final mean of `local`.

    >>> matching_rounds({"local": {1: 1.0, 2: 2.0}, "fedper": {1: 2.0}}, {1: 1.0, 2: 2.0}, higher=True)
    "Rounds to local's final score: local 2, fedper 1."
    """
    needed = {method: curves.rounds_to_match(one, local, higher) for method, one in means.items()}
    by_method = ", ".join(f"{method} {'never' if round is None else round}" for method, round in needed.items())
    return f"Rounds to {LOCAL}'s final score: {by_method}."


def mean_series(several: Sequence[Series]) -> Series:
    """Their mean by round.

    >>> mean_series([{1: 2.0, 2: 3.0}, {1: 4.0}])
    {1: 3.0, 2: 3.0}
    """
    values = {round: [one[round] for one in several if round in one] for each in several for round in each}
    return {round: sum(own) / len(own) for round, own in values.items()}


def _of_each(
    runs: Mapping[str, RunFiles], draw: Callable[[RunFiles], list[Figure]]
) -> tuple[list[Block], dict[str, str]]:
    """The figures of every run that has them, and the colours of the clients."""
    figures: list[Block] = []
    for number, (label, run) in enumerate(runs.items()):
        for figure in draw(run):
            note = f"{figure.note} Seed {run.config['seed']}."
            figures.append(replace(figure, id=f"{figure.id}-of-{number}", title=f"{label}: {figure.title}", note=note))
    return figures, group_clients(next(iter(runs.values()))).colours


def _costs(rows: Variants, colours: Mapping[str, str]) -> list[Figure]:
    rounds, seconds = next(iter(rows.values()))[0].rounds, []
    for label, runs in rows.items():
        times = [{event["round"] + 1: event["seconds"] for event in run.of("round")} for run in runs]
        seconds += curves.draw_series(label, colours[label], times, range(1, rounds + 1), band="seeds")
    sums = {label: [runs[0].outcome.bytes[way] for way in ("up", "down")] for label, runs in rows.items()}
    note = "Whole rounds: clients and server."
    traffic_note = "All clients together, one seed: upload (dark), download (light)."
    return [
        Figure("seconds", "Time per round", note, seconds, round_axes(rounds, "s")),
        curves.total_bytes("bytes", traffic_note, sums, colours),
    ]
