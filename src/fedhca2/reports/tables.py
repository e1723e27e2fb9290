"""The outcome of a run as a table."""

from math import isfinite

from rich.table import Table

from fedhca2.metrics import relative_gain
from fedhca2.reports.names import UNKNOWN, UNKNOWN_GAIN, gain_text, metric_heading, score_text
from fedhca2.run_folder.result import Headline, Result, Scores, headline
from fedhca2.tasks import TASKS


def result_table(result: Result) -> Table:
    """Make one row per client and task: its metric, the Local baseline, the relative gain."""
    table = Table(title=f"{result.name}: {result.method} after {result.rounds} rounds", title_justify="left")
    table.add_column("client")
    table.add_column("task")
    table.add_column("metric")
    if result.baseline:
        table.add_column("local", justify="right")
    table.add_column(result.method, justify="right")
    if result.baseline:
        table.add_column("gain", justify="right")
    for client, tasks in result.clients.items():
        for i, (task, scores) in enumerate(tasks.items()):
            ours = headline(task, scores)
            cells = [client if i == 0 else "", task, metric_heading(ours.metric, ours.higher_is_better)]
            if result.baseline and client in result.baseline:
                theirs = headline(task, result.baseline[client][task])
                cells += [score_text(task, theirs.value), score_text(task, ours.value), _gain(ours, theirs)]
            elif result.baseline:  # a site that was away during the evaluation
                cells += [UNKNOWN, score_text(task, ours.value), UNKNOWN]
            else:
                cells.append(score_text(task, ours.value))
            table.add_row(*cells)
    return table


def conclusion(result: Result) -> str:
    """Explain Δm in a sentence, as far as it is known."""
    if not result.baseline:
        return "Δm needs a Local baseline: train one with `--set baseline=true`, or give `--baseline RUN`."
    if result.delta_m is None:
        return UNKNOWN_GAIN
    left_out = sorted(
        {task for tasks in result.clients.values() for task in tasks if not TASKS[task].counts_in_delta_m}
    )
    besides = f" ({', '.join(left_out)} left out)" if left_out else ""
    told = f"Δm {result.delta_m:+.2f} %: the mean gain over training alone, all clients and tasks{besides}."
    return f"{told} {how_certain(result.clients, result.baseline)}"


def how_certain(clients: Scores, baseline: Scores) -> str:
    """Tell how many scores a run bettered, and what one run cannot tell."""
    gains = [
        relative_gain(ours.value, headline(task, baseline[client][task]).value, ours.higher_is_better)
        for client, tasks in clients.items()
        if client in baseline
        for task, scores in tasks.items()
        if (ours := headline(task, scores)).counts
    ]
    better = sum(gain > 0 for gain in gains)
    return f"{better} of {len(gains)} scores are better than alone. How far that varies, only more seeds can tell."


def _gain(ours: Headline, theirs: Headline) -> str:
    gain = relative_gain(ours.value, theirs.value, ours.higher_is_better)
    colour = "green" if gain > 0 else "red"
    return f"[{colour}]{gain_text(gain)}[/]" if isfinite(gain) else UNKNOWN
