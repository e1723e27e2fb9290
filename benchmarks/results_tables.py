"""The parts of the tables of results: cells, rows and notes."""

import json
from dataclasses import replace
from statistics import mean, stdev

from results_of_papers import PAPER

from fedhca2.metrics import relative_gain
from fedhca2.reports.comparison import DELTA_M, LOCAL
from fedhca2.reports.layouts import marked_cell, shown
from fedhca2.words import counted, metric_heading

NOT_RUN = "–"
CHOICES = [  # a federation, a method with its settings, the experiment that is like it, and its images per client
    ("two sites per group, photographs", "fedhca2", " with `groups: true`", "real_2c", None),
    ("two sites per group, rendered scenes", "fedpull", " with `common_start`", "scenes_2c", None),
    ("four sites per group, rendered scenes", "fedpull", " with `common_start`", "scenes_4c", None),
    ("one site per group, 25 images each", "fedper", "", "scenes_1c", 25),
    ("one site per group, photographs", "fedhca2", "", "real_1c", None),
]


def gain_table(compared, methods):
    """Δm of these methods in every experiment, and in the paper's."""
    papers = list(dict.fromkeys(found for name in compared if (found := scenario_of(name)) in PAPER))
    heads = [
        "method",
        *(f"`{name.replace(',', '`<br>`')}`" for name in compared),
        *(f"paper<br>{scenario.upper()}" for scenario in papers),
    ]
    rows = []
    for method in methods:
        ours = [gain_cell(comparison, method) for comparison in compared.values()]
        theirs = [PAPER[scenario].get(method) for scenario in papers]
        if method != LOCAL and ({*ours, *theirs} - {NOT_RUN, None}):
            rows.append([f"`{method}`", *ours, *(NOT_RUN if gain is None else f"{gain:+.2f}" for gain in theirs)])
    return markdown(heads, rows)


def lead(comparison, method, other):
    """The mean difference of Δm over common seeds, and how many of them agree with its sign."""
    if not {method, other} <= comparison.entries.keys() or DELTA_M not in comparison.columns:
        return NOT_RUN
    ours, theirs = (comparison.entries[name][DELTA_M].by_seed for name in (method, other))
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not differences:
        return NOT_RUN
    ahead = sum(difference > 0 for difference in differences)
    return f"{mean(differences):+.2f} ({ahead}/{len(differences)})"


def measured(comparison, method):
    """Δm of a method with its deviation, the number of seeds, and whether it is beyond chance; empty if unknown."""
    if comparison is None or DELTA_M not in comparison.entries.get(method, ()):
        return ""
    entry = comparison.entries[method][DELTA_M]
    chance = ", beyond chance" if comparison.is_beyond_chance(method, DELTA_M) else ""
    return f"{shown(entry, DELTA_M)}% ({counted(len(entry.values), 'seed')}{chance})"


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
    """The runs with seeds that Local was run with: others wait for it."""
    seeds = {run.seed for run in runs if run.method == LOCAL}
    return [run for run in runs if run.seed in seeds]


def scenario_of(name):
    """The paper's scenario that an experiment is like.

    >>> scenario_of("scenes_2c_small"), scenario_of("real_2,seed=1")
    ('2c', '2')
    """
    return name.split(",")[0].split("_")[1]


def head(column):
    measured = metric_heading(column.metric, column.higher_is_better)
    return f"{column.group.split(',')[0]}<br>{column.task}<br>{measured}"


def cell(comparison, method, column):
    """A cell with its mark, in bold if it is the best of the methods that were run with all seeds."""
    whole = {name: row for name, row in comparison.entries.items() if not lacking(comparison, name)}
    best = method in whole and replace(comparison, entries=whole).is_best(method, column)
    text = marked_cell(comparison, method, column, mark=r"\*")
    return f"**{text}**" if best else text


def gain_cell(comparison, method):
    """Δm, with the number of seeds if other methods have more."""
    if comparison is None or DELTA_M not in comparison.entries.get(method, ()):
        return NOT_RUN
    seeds = len(comparison.entries[method][DELTA_M].values)
    return cell(comparison, method, DELTA_M) + f" ({seeds})" * lacking(comparison, method)


def lacking(comparison, method):
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
    """Gains over Local in percent, of methods with whatever settings: {label: {seed: {(client, task): gain}}}."""
    alone = {run.seed: main_scores(run) for run in runs if run.method == LOCAL}
    found = {}
    for run in (run for run in runs if run.method != LOCAL and run.seed in alone):
        changes = [f"{key.rpartition('.')[2]} {value}" for key, value in run.changes.items()]
        label = ", ".join([f"`{run.method}`", *changes])
        found.setdefault(label, {})[run.seed] = {
            place: relative_gain(score, alone[run.seed][place], next(iter(metrics.values())).higher_is_better)
            for place, score in main_scores(run).items()
            if (metrics := run.task_set[place[1]].empty_metrics)
        }
    return found


def main_scores(run):
    """The main scores of a run: {(client, task): score}."""
    return {(c, task): next(iter(held.values())) for c, tasks in run.scores.items() for task, held in tasks.items()}


def spread_of(values):
    """A mean with its deviation over seeds, in percent."""
    return f"{mean(values):+.1f}" + (f" ±\N{NO-BREAK SPACE}{stdev(values):.1f}" if len(values) > 1 else "")


def gains_over_targets(runs):
    """For each variant the mean gain over all targets, how many gain, and the extremes; targets by their mean gain."""
    rows = []
    for label, by_seed in gains_by_variant(runs).items():
        means = [mean(gains[place] for gains in by_seed.values()) for place in next(iter(by_seed.values()))]
        better = f"{sum(gain > 0 for gain in means)} of {len(means)}"
        overall = spread_of([mean(gains.values()) for gains in by_seed.values()])
        rows.append([label, overall, better, f"{min(means):+.1f}", f"{max(means):+.1f}", str(len(by_seed))])
    heads = ["method", "mean gain<br>% ↑", "targets better", "worst target", "best target", "seeds"]
    return markdown(heads, sorted(rows, key=lambda row: -float(row[1].split()[0])))


def gains_of_targets(runs):
    """The gain of each target with each variant, and the score of training alone."""
    found = gains_by_variant(runs)
    alone = [main_scores(run) for run in runs if run.method == LOCAL]
    rows = [
        [
            client,
            runs[0].task_set[task].title,
            f"{mean(scores[client, task] for scores in alone):.3f}",
            *(spread_of([gains[client, task] for gains in by_seed.values()]) for by_seed in found.values()),
        ]
        for client, task in alone[0]
    ]
    return markdown(["company", "target", "alone, RMSE", *found], rows)
