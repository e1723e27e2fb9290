"""Text, JSON and replies from outside: the gate always returns a value or a reason."""

import json
import unicodedata
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.federation.gate import MAX_HEADER, Expected, Refused, fault_of, plain, read_json, shown
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


@given(st.text(max_size=2000))
def test_plain_text_stays_as_it_is(text):
    assert plain(plain(text)) == plain(text)


def test_plain_text_says_where_it_was_cut():
    assert plain("a" * 50_000_000, 8) == "aaaaaaa…"


@pytest.mark.parametrize("depth", [10, 900, 200_000])
def test_a_value_of_any_depth_is_shown_in_a_few_words(depth):
    found = read_json('{"a": ' + "[" * depth + "]" * depth + "}")
    assert len(shown(found)) <= 64


@pytest.mark.parametrize("text", [None, 3, b"{}", "", "{", "[]", "3", "[" * 200_000, '"' + "x" * MAX_HEADER + '"'])
def test_what_is_no_mapping_is_refused(text):
    assert isinstance(read_json(text), Refused)


def test_a_number_of_too_many_digits_is_refused():
    assert isinstance(read_json('{"a": ' + "9" * 100_000 + "}"), Refused)


def test_a_final_reply_with_every_score_passes():
    assert not fault_of(GOOD, FINAL)


def test_a_client_that_failed_to_fine_tune_still_has_scores():
    assert not fault_of(replace(GOOD, failed="the loss became nan"), FINAL)


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"depth": {}},
        {"depth": {"speed": 1.0}},
        {"depth": {"rmse": 1.0}, "semseg": {"miou": 1.0}},
        {"depth": {"rmse": 1.0, "\x1b[2J": 1.0}},
        {"depth": {"rmse": "1.0"}},
        {"depth": {"rmse": 10**400}},
        {"depth": {"rmse": True}},
        {"depth": None},
        [],
    ],
)
def test_a_final_reply_with_other_scores_is_refused(metrics):
    assert fault_of(replace(GOOD, metrics=metrics), FINAL)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.5", None, True, [1.0], 10**400])
def test_an_effect_that_is_no_finite_number_is_refused(bad):
    assert fault_of(replace(GOOD, effect=Effect(0.5, bad, 1.0)), FINAL)


@pytest.mark.parametrize("bad", [0.5, "abc", [0.5, 0.4, 1.0], {}])
def test_an_effect_of_another_form_is_refused(bad):
    assert fault_of(replace(GOOD, effect=bad), FINAL)


def test_an_effect_of_finite_numbers_passes():
    assert not fault_of(replace(GOOD, effect=Effect(0.5, 0.4, 1.0)), FINAL)


def nested(tree, depth):
    """A text nested more deeply than Python's own writer can."""
    return "[" * depth + json.dumps(tree) + "]" * depth


letters = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["\x1b[31m", "[/red]", "\ud800", "\u202e", "\0", "\r\n", "home", "depth", "rmse", "encoder"]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, 10**11])
    | st.floats()
    | letters
)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(letters, inner, max_size=4), max_leaves=8
)
texts = st.builds(nested, trees, st.sampled_from([0, 0, 0, 1, 7, 900, 5000]))


@st.composite
def headers(draw, keys):
    """Texts of mappings with some of the expected keys and arbitrary values."""
    fields = draw(st.dictionaries(st.sampled_from(keys) | letters, texts, max_size=6))
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in fields.items()) + "}"


@pytest.mark.slow
@settings(max_examples=150, deadline=2000)
@given(headers(["client", "round", "losses", "metrics", "effect", "seconds", "failed", "agreement"]))
def test_whatever_a_reply_holds_there_is_a_plain_reason(text):
    values = read_json(text)
    if isinstance(values, dict):
        fields = {key: values[key] for key in values if key in Reply.__dataclass_fields__}
        fault = fault_of(replace(GOOD, **fields), FINAL)
        assert fault is None or fault.why == plain(fault.why)


def test_a_row_of_a_final_reply_is_one_too_many():
    fault = fault_of(replace(GOOD, rows={Slot("encoder"): torch.zeros(8)}), FINAL)
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
    found = fault_of(Reply("home", 0, {STATISTICS: torch.tensor(values)}), expected)
    assert (found and found.why) == fault
