"""Text, JSON and replies from outside: the gate always returns a value or a reason."""

import unicodedata
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhca2.federation.gate import MAX_HEADER, Expected, UnusableError, attempt, check_reply, plain, read_json, shown
from fedhca2.messages import Effect, Profile, Reply
from fedhca2.params import Layout, Slot

PROFILE = Profile("home", "indoor", ("depth",), 7, {Slot("encoder"): Layout(("a.weight",), ((8,),))})
FINAL = Expected(3, {"home": PROFILE}, {}, {}, final=True)
GOOD = Reply("home", 3, metrics={"depth": {"rmse": 0.7}}, seconds=1.5)


@given(st.text(max_size=2000), st.integers(2, 80))
def test_plain_text_is_one_short_line_that_steers_nothing(text, limit):
    found = plain(text, limit)
    assert len(found) <= limit
    assert not {unicodedata.category(each) for each in found} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert plain(found, limit) == found
    assert plain("a" * 50_000_000, 8) == "aaaaaaa…"


@pytest.mark.parametrize("depth", [10, 900, 200_000])
def test_a_value_of_any_depth_is_shown_in_a_few_words(depth):
    found = attempt(read_json, '{"a": ' + "[" * depth + "]" * depth + "}")
    assert len(shown(found)) <= 64


LONG = ["[" * 200_000, '"' + "x" * MAX_HEADER + '"', '{"a": ' + "9" * 100_000 + "}"]


@pytest.mark.parametrize("text", [None, 3, b"{}", "", "{", "[]", "3", *LONG])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(UnusableError, match="header: expected"):
        read_json(text)


@pytest.mark.parametrize("changes", [{}, {"failed": "the loss became nan"}, {"effect": Effect(0.5, 0.4, 1.0)}])
def test_a_final_reply_with_every_score_passes(changes):
    """Also if fine-tuning failed."""
    assert not attempt(check_reply, replace(GOOD, **changes), FINAL)


SCORES = [{"depth": each} for each in ({}, {"speed": 1.0}, {"rmse": 1.0, "\x1b[2J": 1.0}, {"rmse": "1.0"}, None)]
SCORES += [{}, [], {"depth": {"rmse": 1.0}, "semseg": {"miou": 1.0}}]
SCORES += [{"depth": {"rmse": bad}} for bad in (10**400, True)]
EFFECTS = [Effect(0.5, bad, 1.0) for bad in (float("nan"), float("inf"), "0.5", None, True, [1.0], 10**400)]
EFFECTS += [0.5, "abc", [0.5, 0.4, 1.0], {}]


@pytest.mark.parametrize("changes", [*({"metrics": each} for each in SCORES), *({"effect": each} for each in EFFECTS)])
def test_other_scores_and_effects_that_are_not_three_finite_numbers_are_refused(changes):
    assert attempt(check_reply, replace(GOOD, **changes), FINAL)


def test_a_row_of_a_final_reply_is_one_too_many():
    fault = attempt(check_reply, replace(GOOD, rows={Slot("encoder"): torch.zeros(8)}), FINAL)
    assert fault.why == "rows: expected none, got encoder"


STATISTICS = Slot("decoder_norms", "depth")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ([-1.0, 1.0, 0.0, 2.0], None),
        ([0.0, 0.0, 1.0, -1e-6], "decoder_norms.depth: norm.running_var: expected 0 or more, got -1e-06"),
        ([0.0, torch.inf, 1.0, 1.0], "decoder_norms.depth: expected finite values, got NaN or infinite ones"),
        ([0.0, 0.0, torch.nan, 1.0], "decoder_norms.depth: expected finite values, got NaN or infinite ones"),
    ],
)
def test_a_variance_is_finite_and_no_less_than_zero(values, fault):
    layouts = {STATISTICS: Layout(("norm.running_mean", "norm.running_var"), ((2,), (2,)))}
    profile = Profile("home", "indoor", ("depth",), 7, layouts)
    expected = Expected(0, {"home": profile}, {"home": {"decoder_norms"}}, {})
    found = attempt(check_reply, Reply("home", 0, {STATISTICS: torch.tensor(values)}), expected)
    assert (found and found.why) == fault
