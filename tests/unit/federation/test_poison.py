"""One hostile client of four: what is refused, and the others' largest drift (`python tests/poison.py`)."""

import re
from math import inf
from pathlib import Path

import pytest

from noisy_learner import STEPS
from poison import ATTACKS, DEFENCES, ROUNDS, applies, cell, cells
from small import MECHANISMS

pytestmark = [pytest.mark.slow, pytest.mark.attack]
ALWAYS = ("variances below zero",)
BY_THE_GUARD = (*ALWAYS, "scaled by 100", "1e30 everywhere", "statistics times a million")
REFUSED = {"no guard": ALWAYS, "guard": BY_THE_GUARD, "reach 0.1": (*BY_THE_GUARD, "scaled by 10")}
ROBUST = ("krum", "multi_krum", "geometric_median", "norm_clipping", "coordinate_median", "trimmed_mean")
AT_MOST = {"guard": 2.1, "reach 0.1": 0.35}  # of the others' length, for every attack
AMPLIFYING = {
    "fedavgm": 3.5,
    "ties": 5.0,
}  # momentum repeats an attack, and TIES follows the longest row; behind a guard
PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")


def every(attack, defence):
    return [cell(attack, method, defence) for method in MECHANISMS if applies(attack, method)]


@pytest.mark.parametrize(
    ("defence", "attack"), [(defence, attack) for defence in REFUSED for attack in REFUSED[defence]]
)
def test_is_refused_in_every_round_of_every_method(defence, attack):
    assert {found.refused for found in every(attack, defence)} == {ROUNDS}


@pytest.mark.parametrize("images", [10**power for power in range(10)])
@pytest.mark.parametrize("method", ["fedavg", "fedhca2"])
def test_no_number_of_images_gets_a_hundredfold_row_past_the_guard(method, images):
    assert cell("scaled by 100", method, "guard", images).refused == ROUNDS


@pytest.mark.parametrize("defence", AT_MOST)
@pytest.mark.parametrize("attack", ["wrong way, at the reach", "wrong way, at the jump"])
def test_a_false_number_of_images_at_most_doubles_the_reach(attack, defence):
    honest, false = (cell(attack, "fedavg", defence, images).drift for images in (STEPS, 10**9))
    assert honest < false < 2.1 * honest


@pytest.mark.parametrize("defence", DEFENCES)
def test_refused_is_away_to_the_last_bit(defence):
    refused = [found for found in cells(MECHANISMS, [defence]) if found.refused == ROUNDS]
    assert {(found.drift, found.loss) for found in refused} == {(0.0, 1.0)}


@pytest.mark.parametrize("defence", AT_MOST)
@pytest.mark.parametrize("attack", ATTACKS)
def test_others_drift_no_farther_than(defence, attack):
    most = AMPLIFYING if defence == "guard" else {}
    assert all(found.drift <= most.get(found.method, AT_MOST[defence]) for found in every(attack, defence))


def test_without_a_guard_one_client_destroys_the_mean():
    assert cell("scaled by 100", "fedavg", "no guard").drift > 1e6


@pytest.mark.parametrize("method", ROBUST)
def test_a_robust_method_bounds_one_client_without_a_guard(method):
    assert max(found.drift for found in cells([method], ["no guard"])) <= 0.13


@pytest.mark.parametrize("defence", DEFENCES)
def test_no_honest_client_is_refused(defence):
    honest = every("none: an honest client", defence)
    assert {(found.refused, found.wronged) for found in honest} == {(0, 0)}


def number(text):
    """The drift that a cell of the page shows."""
    shown = re.match(r"[\d.e+-]+", text)
    return float(shown[0]) if shown else {"refused": 0.0, "lost": inf}[text]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("method", ["fedavg", "fedhca2"])
def test_the_page_shows_what_is_measured(attack, method):
    _, _, *shown, _ = re.search(rf"^\| {attack} (\| {method} \|.*)", PAGE, re.MULTILINE)[1].split("|")
    measured = [number(str(cell(attack, method, defence))) for defence in DEFENCES]
    assert [number(text.strip()) for text in shown] == pytest.approx(measured, rel=0.2, nan_ok=True)


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if applies(attack, "krum")])
def test_the_page_compares_robust_methods(attack):
    section = PAGE[PAGE.index("### Robust aggregation") :]
    *shown, _ = re.search(rf"^\| {attack} \|(.*)", section, re.MULTILINE)[1].split("|")
    measured = [number(str(cell(attack, method, "no guard"))) for method in ("upgrad weighting=mean", *ROBUST)]
    assert [number(text.strip()) for text in shown] == pytest.approx(measured, rel=0.2)
