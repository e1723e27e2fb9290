"""The parts of the tables of results: cells, rows and notes."""

import json
from dataclasses import replace
from math import isnan
from statistics import mean, stdev

from results_of_papers import PAPER

from fedhca2.metrics import relative_gain
from fedhca2.reports.comparison import DELTA_M, LEVEL, LOCAL, gain_p_values, rank_methods
from fedhca2.reports.layouts import marked_cell, spread_text
from fedhca2.run_folder.result import task_scores
from fedhca2.words import counted, metric_heading, score_text

NOT_RUN = "–"
CHOICES = [  # a federation, a method with its settings, the experiment that is like it, and its images per client
    ("two sites per group, photographs", "fedhca2", " with `groups: true`", "real_2c", None),
    ("two sites per group, rendered scenes", "fedpull", " with `common_start`", "scenes_2c", None),
    ("four sites per group, rendered scenes", "fedpull", " with `common_start`", "scenes_4c", None),
    ("one site per group, 25 images each", "fedper", "", "scenes_1c", 25),
]


def rank_runs(runs):
    """What the leaderboard has of runs by method, with the seeds that Local was run with or that have a baseline."""
    return {row["method"]: row for row in rank_methods(comparable(runs))}


def over_local(runs):
    """The runs with the scores of Local with their seed as their baseline, whatever else differs."""
    alone = {run.seed: run.scores for run in runs if run.method == LOCAL}
    return [run if run.method == LOCAL else replace(run, alone=alone[run.seed]) for run in runs if run.seed in alone]


def gain_table(boards, methods):
    """Δm of these methods in every experiment, and in the paper's."""
    papers = list(dict.fromkeys(scenario for name in boards if (scenario := scenario_of(name)) in PAPER))
    heads = [
        "method",
        *(f"`{name.replace(',', '`<br>`')}`" for name in boards),
        *(f"paper<br>{scenario.upper()}" for scenario in papers),
    ]
    rows = []
    for method in methods:
        ours = [gain_cell(board, method) for board in boards.values()]
        from_paper = [PAPER[scenario].get(method) for scenario in papers]
        if method != LOCAL and ({*ours, *from_paper} - {NOT_RUN, None}):
            rows.append([f"`{method}`", *ours, *(NOT_RUN if gain is None else f"{gain:+.2f}" for gain in from_paper)])
    return markdown(heads, rows)


def lead(comparison, method, other):
    """The mean difference of Δm over common seeds, and how many of them agree with its sign."""
    if not {method, other} <= comparison.entries.keys() or DELTA_M not in comparison.columns:
        return NOT_RUN
    ours, others = (comparison.entries[name][DELTA_M].by_seed for name in (method, other))
    differences = [ours[seed] - others[seed] for seed in ours if seed in others]
    if not differences:
        return NOT_RUN
    ahead = sum(difference > 0 for difference in differences)
    return f"{mean(differences):+.2f} ({ahead}/{len(differences)})"


def describe_gain(row):
    """Δm of a method with its deviation, the number of seeds, and whether it is beyond chance; empty if unknown."""
    if row is None:
        return ""
    chance = ", beyond chance" if row["p_value"] < LEVEL else ""
    return f"{gain_of(row)}% ({counted(row['seeds'], 'seed')}{chance})"


def label_of(changes):
    """What a run changes, in words."""
    if not changes:
        return "as it is"
    [(key, value)] = changes.items()
    return f"`{key}: {value['name'] if isinstance(value, dict) and 'name' in value else json.dumps(value)}`"


def seed_gains(comparison, column, method):
    """The gains over Local in one task, in percent, one for each seed."""
    ours, alone = (comparison.entries[row][column].by_seed for row in (method, LOCAL))
    return [relative_gain(ours[seed], alone[seed], column.higher_is_better) for seed in ours]


def comparable(runs):
    """The runs with a baseline, or with seeds that Local was run with: others wait for it."""
    seeds = {run.seed for run in runs if run.method == LOCAL}
    return [run for run in runs if run.seed in seeds or run.alone]


def scenario_of(name):
    """The paper's scenario that an experiment is like.

    >>> scenario_of("scenes_2c_small"), scenario_of("real_2,seed=1")
    ('2c', '2')
    """
    return name.split(",")[0].split("_")[1]


def head(column):
    measure = metric_heading(column.metric, column.higher_is_better)
    return f"{column.group.split(',')[0]}<br>{column.task}<br>{measure}"


def cell(comparison, method, column):
    """A cell with its mark, in bold if it is the best of the methods that were run with all seeds."""
    whole = {name: row for name, row in comparison.entries.items() if not has_fewer_seeds(comparison, name)}
    best = method in whole and replace(comparison, entries=whole).is_best(method, column)
    text = marked_cell(comparison, method, column, mark=r"\*")
    return f"**{text}**" if best else text


def mean_cell(comparison, method, column):
    """A mean with its deviation."""
    entry = comparison.entries[method][column]
    return spread_text(entry.mean, entry.deviation, column)


def gain_of(row):
    """Δm in a record of a leaderboard, with its deviation."""
    return spread_text(row["delta_m"], row["standard_deviation"])


def gain_cell(board, method):
    """Δm with its mark, in bold if it is the best of the methods with all seeds; otherwise with their number."""
    if method not in board:
        return NOT_RUN
    row, most = board[method], max(each["seeds"] for each in board.values())
    text = gain_of(row) + r"\*" * (row["p_value"] < LEVEL)
    if row["seeds"] < most:
        return f"{text} ({row['seeds']})"
    rivals = [round(each["delta_m"], 2) for each in board.values() if each["seeds"] == most]
    return f"**{text}**" if len(rivals) > 1 and round(row["delta_m"], 2) == max(rivals) else text


def board_table(rows):
    """The leaderboard: Δm, the client that gains least, and what a run costs, as far as the records know it."""
    traffic = {"bytes_up": "MB up", "bytes_down": "MB down"}
    traffic = {way: title for way, title in traffic.items() if not all(isnan(row[way]) for row in rows)}
    cells = [
        [
            f"`{row['experiment']}`",
            f"`{row['method']}`",
            str(row["seeds"]),
            gain_of(row),
            f"{row['worst_client']} {row['worst_gain']:+.2f}%",
            f"{row['seconds']:.0f}",
            *(NOT_RUN if isnan(row[way]) else f"{row[way] / 1e6:,.0f}" for way in traffic),
        ]
        for row in rows
    ]
    return markdown(["experiment", "method", "seeds", "Δm<br>% ↑", "worst client", "s", *traffic.values()], cells)


def has_fewer_seeds(comparison, method):
    """Whether another method has more seeds."""
    column = comparison.columns[0]
    seeds = {name: len(row[column].values) for name, row in comparison.entries.items()}
    return seeds[method] < max(seeds.values())


def about(runs):
    """What was run, on what."""
    clients, seeds = len(runs[0].tasks), len({run.seed for run in runs})
    devices = " and ".join(sorted({run.line["device"] for run in runs}))
    versions = " and ".join(sorted({run.line["fedhca2"] for run in runs}))
    what = f"{clients} clients, {runs[0].rounds} rounds, {seeds} seed{'s' * (seeds > 1)}, mean ± standard deviation"
    return f"{what}; {len(runs)} run{'s' * (len(runs) > 1)} on {devices}, fedhca2 {versions}."


def markdown(heads, rows):
    """A table whose cells break before ± where the page is narrow."""
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("± ", "±\N{NO-BREAK SPACE}")


def gains_by_variant(runs):
    """Gains over Local in percent, of methods with whatever settings: {label: {seed: {(client, task): gain}}}.

    Runs of other clients with the same settings and seed are one.
    """
    gains = {}
    for run in (run for run in over_local(runs) if run.method != LOCAL):
        changes = [f"{key.rpartition('.')[2]} {value}" for key, value in run.changes.items() if key != "clients"]
        by_seed = gains.setdefault(", ".join([f"`{run.method}`", *changes]), {})
        scores = task_scores(run.scores, run.alone, run.task_set)
        by_seed.setdefault(run.seed, {}).update({(one.client, one.task): one.gain for one in scores})
    return gains


def spread_of(values, p_value=1.0):
    """A mean with its deviation over seeds, in percent, and a star if it is beyond chance."""
    spread = f" ±\N{NO-BREAK SPACE}{stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):+.1f}{spread}" + r"\*" * (p_value < LEVEL)


def gains_over_targets(runs):
    """For each variant the mean gain over all targets, how many gain, and the extremes; targets by their mean gain."""
    by_variant = gains_by_variant(runs)
    overall = {label: [mean(gains.values()) for gains in by_seed.values()] for label, by_seed in by_variant.items()}
    p_values, rows = gain_p_values(overall), []
    for label in sorted(by_variant, key=lambda label: -mean(overall[label])):
        by_seed = by_variant[label].values()
        means = [mean(gains[target] for gains in by_seed) for target in next(iter(by_seed))]
        better = f"{sum(gain > 0 for gain in means)} of {len(means)}"
        gain = spread_of(overall[label], p_values.get(label, 1.0))
        rows.append([label, gain, better, f"{min(means):+.1f}", f"{max(means):+.1f}", str(len(by_seed))])
    return markdown(["method", "mean gain<br>% ↑", "targets better", "worst target", "best target", "seeds"], rows)


def gains_of_tasks(runs):
    """The score of each client's task when trained alone, and its gain with each variant that has all seeds."""
    by_variant, alone = gains_by_variant(runs), {}
    most = max(map(len, by_variant.values()))
    for run in (run for run in runs if run.method == LOCAL):
        for one in task_scores(run.scores, None, run.task_set):
            alone.setdefault((one.client, one.task), []).append(one.ours)
    targets = {target: [target] for target in alone}
    columns = {label: mean_gains(by_seed, targets) for label, by_seed in by_variant.items() if len(by_seed) == most}
    rows = []
    for (client, task), scores in alone.items():
        score, value = scores[0], mean(score.value for score in scores)
        alone_cell = f"{score_text(score.unit, value)}, {metric_heading(score.metric, score.higher_is_better)}"
        gains = (cells[client, task] for cells in columns.values())
        rows.append([client, runs[0].task_set[task].title, alone_cell, *gains])
    return markdown(["client", "task", "alone", *columns], rows)


def gains_in_families(runs):
    """The mean gain of each family of targets in the federation of all companies, and in that of the family alone."""
    parts = [run for run in runs if "clients" in run.changes]
    own = gains_by_variant([*(run for run in runs if run.method == LOCAL), *parts])
    whole = gains_by_variant([run for run in runs if "clients" not in run.changes])
    families = {}
    for scores in (run.scores for run in parts):
        family = [(client, task) for client, by_task in scores.items() for task in by_task]
        families[", ".join(runs[0].task_set[task].title for _, task in family)] = family
    columns = {
        f"{label}, {who}": mean_gains(by_variant[label], families)
        for label in own
        for who, by_variant in (("all", whole), ("family", own))
    }
    rows = [[targets, *(cells[targets] for cells in columns.values())] for targets in families]
    return markdown(["targets", *columns], rows)


def mean_gains(by_seed, groups):
    """The mean gain of the targets under each key, with a star if it is beyond chance among all keys."""
    gains = {
        key: [mean(by_target[target] for target in group) for by_target in by_seed.values()]
        for key, group in groups.items()
    }
    p_values = gain_p_values(gains)
    return {key: spread_of(values, p_values.get(key, 1.0)) for key, values in gains.items()}
