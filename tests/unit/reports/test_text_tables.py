"""Tables in a narrow terminal, and numbers in one way."""

from io import StringIO

import pytest
from rich.console import Console

from fedhca2.reports.tables import TextTable, result_table
from fedhca2.run_folder.result import Result
from fedhca2.tasks import TASKS

SCORES = {"outdoor-human_parts-1": {"human_parts": {"miou": 12.46}}, "home": {"depth": {"rmse": 0.7124}}}
BASELINE = {"outdoor-human_parts-1": {"human_parts": {"miou": 10.0}}, "home": {"depth": {"rmse": 0.7124}}}
OUTCOME = {"rounds": 1, "seed": 0, "seconds": 1.0, "delta_m": 11.7}
RESULT = Result(name="x", method="fedhca2", clients=SCORES, baseline=BASELINE, **OUTCOME)


def print_table(table, width):
    console = Console(file=StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("width", range(40, 100, 5))
def test_no_number_is_broken(width):
    text = print_table(result_table(RESULT, TASKS), width)
    assert all(number in text for number in ("12.5%", "0.712 m", "+24.6%", " 0.00%"))
    assert max(map(len, text.splitlines())) <= width


def test_a_narrow_table_says_what_it_left_out_and_a_wide_one_has_all_columns():
    narrow, wide = (print_table(result_table(RESULT, TASKS), width) for width in (40, 100))
    assert " ".join(narrow.split()).endswith("hidden columns (terminal too narrow): metric, local")
    assert "mIoU ↑" in wide
    assert "hidden" not in wide
    assert "after 1 round " in wide


NAME = "a-hospital-with-a-name-that-no-terminal-has-room-for/method.c-0.2/training.schedule.warmup_from"


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("wraps", [{"run": 12}, {}])
def test_what_a_person_has_to_type_is_folded_and_never_cut(width, wraps):
    text = print_table(TextTable(["run", "state"], [[NAME, "finished"]], wraps=wraps), width)
    cells = [line.split("│")[1].strip() for line in text.splitlines() if "│" in line]
    assert "".join(cells) == NAME


def test_a_table_that_never_fits_gives_way_to_another():
    other = TextTable(["short"], [["1"]])
    assert "short" in print_table(TextTable(["a long heading"], [["1"]], otherwise=other), 10)


KINDS = [("road", "semseg", "miou"), ("home", "depth", "rmse")]
MANY = {f"{kind}-{number}": {task: {metric: number / 4}} for number in range(1, 42) for kind, task, metric in KINDS}
ALONE = {
    client: {task: {m: v / 2 for m, v in scores.items()} for task, scores in own.items()}
    for client, own in MANY.items()
}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_many_clients_are_shown_by_kind(width):
    kinds = {client: client.split("-")[0] for client in MANY}
    result = Result(name="x", method="fedhca2", clients=MANY, baseline=ALONE, **OUTCOME)
    lines = print_table(result_table(result, TASKS, kinds), width).splitlines()
    road, home = (next(line for line in lines if kind in line) for kind in ("road", "home"))
    assert all(number in road for number in ("5.25%", "10.2%", "+100%"))  # median, best, and twice the baseline
    assert all(number in home for number in ("5.25 m", "0.250 m", "-100%"))  # less is better
    assert len(lines) < 20
    assert max(map(len, lines)) <= width
