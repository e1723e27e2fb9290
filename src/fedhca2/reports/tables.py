"""What a run came to, as a table."""

from math import isfinite

from rich.table import Table

from fedhca2.metrics import relative_gain
from fedhca2.reports.names import ARROWS, UNKNOWN, UNKNOWN_GAIN, metric_title
from fedhca2.run_folder.result import Headline, Result, headline
from fedhca2.tasks import TASKS


def result_table(result: Result) -> Table:
    """One row per client and task: its metric, the Local baseline, the relative gain."""
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
            cells = [client if i == 0 else "", task, f"{metric_title(ours.metric)} {ARROWS[ours.higher_is_better]}"]
            if result.baseline and client in result.baseline:
                theirs = headline(task, result.baseline[client][task])
                cells += [_number(task, theirs), _number(task, ours), _gain(ours, theirs)]
            elif result.baseline:  # a site that was away when the others were evaluated
                cells += [UNKNOWN, _number(task, ours), UNKNOWN]
            else:
                cells.append(_number(task, ours))
            table.add_row(*cells)
    return table


def conclusion(result: Result) -> str:
    """Δm in a sentence, as far as it is known."""
    if not result.baseline:
        return "Δm needs a Local baseline: train it along with `--set baseline=true`, or give `--baseline RUN`."
    if result.delta_m is None:
        return UNKNOWN_GAIN
    left_out = sorted(
        {task for tasks in result.clients.values() for task in tasks if not TASKS[task].counts_in_delta_m}
    )
    besides = f" ({', '.join(left_out)} left out)" if left_out else ""
    return f"Δm {result.delta_m:+.2f} %: the mean gain over training alone, all clients and tasks{besides}."


def _number(task: str, score: Headline) -> str:
    if not isfinite(score.value):
        return UNKNOWN
    return f"{score.value:.4g}{TASKS[task].unit}" if abs(score.value) < 1 else f"{score.value:.2f}{TASKS[task].unit}"


def _gain(ours: Headline, theirs: Headline) -> str:
    gain = relative_gain(ours.value, theirs.value, ours.higher_is_better)
    if not isfinite(gain):  # over a score of 0
        return UNKNOWN
    colour = "green" if gain > 0 else "red"
    return f"[{colour}]{gain:+.1f} %[/]"
