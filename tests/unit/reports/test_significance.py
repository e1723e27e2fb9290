"""Marks of what is beyond chance, and the figure of ranks."""

import csv
from io import StringIO
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhca2.reports.comparison import DELTA_M, Column, Comparison, SeedScores, gain_p_values, holm
from fedhca2.reports.drawings import RANKS_FILE, Ranking, draw_ranks, rank, ranking_note, ranking_of
from fedhca2.reports.layouts import comparison_table, marks_note, to_latex, to_markdown, write_comparison
from fedhca2.reports.page.several import results_table
from made_run import made_run

SAL = Column("home", "sal", "max_f", True)
DEPTH = Column("home", "depth", "rmse", False)
p_values = st.lists(st.floats(0, 1), max_size=6).map(lambda values: {str(i): p for i, p in enumerate(values)})


def gains(**values):
    """A comparison of Local and methods with these gains by seed."""
    rows = {"local": [0.0] * max(map(len, values.values())), **values}
    return Comparison([DELTA_M], {name: {DELTA_M: SeedScores(dict(enumerate(row)))} for name, row in rows.items()})


SURE = gains(ours=[4.9, 5.0, 5.1], other=[-3.0, 0.0, 3.0])


@given(p_values)
def test_a_correction_never_lowers_p_and_keeps_the_order(uncorrected):
    corrected = holm(uncorrected)
    assert all(uncorrected[name] <= p <= 1 for name, p in corrected.items())
    assert sorted(corrected.values()) == [corrected[name] for name in sorted(uncorrected, key=uncorrected.get)]


def test_gains_that_hardly_vary_are_beyond_chance_and_others_are_not():
    assert (SURE.is_beyond_chance("ours", DELTA_M), SURE.is_beyond_chance("other", DELTA_M)) == (True, False)
    assert gain_p_values({"same": [0.0, 0.0, 0.0], "lost": [1.0, 1.0, float("nan")]}) == {"same": 1.0}


def test_more_comparisons_take_more_evidence():
    gain = [1.0, 1.2, 1.5]
    assert gains(ours=gain).is_beyond_chance("ours", DELTA_M)
    assert not gains(ours=gain, **{f"m{i}": [-1.0, 0.0, 1.0] for i in range(9)}).is_beyond_chance("ours", DELTA_M)


def test_the_mark_is_explained_in_every_layout():
    text, latex, table, page = to_markdown(SURE), to_latex(SURE), comparison_table(SURE), results_table(SURE, {})
    assert (r"**+5.00 ± 0.10**\* |" in text, r"0.10}$^{*}$ \\" in latex) == (True, True)
    assert all("differs from 0 beyond chance (paired t-test against local over 3" in note for note in (text, latex))
    assert ([row[3] for row in table.rows], page.rows[1][1].text) == (["[bold]+5.00 ± 0.10[/]*"], "+5.00 ± 0.10*")
    assert table.note == marks_note(SURE) == page.note[-len(marks_note(SURE)) :]


def test_the_corrected_p_is_in_the_csv_file():
    rows = {row["method"]: row["p_value"] for row in csv.DictReader(StringIO(SURE.table().to_csv()))}
    assert rows == {"local": "", **{name: repr(p) for name, p in SURE.p_values.items()}}


@pytest.mark.parametrize(
    ("comparison", "note"),
    [
        (
            gains(ours=[5.0, 5.1]),
            "No Δm is tested against chance: expected at least 3 seeds with a known Δm, got 2 seeds.",
        ),
        (gains(ours=[-3.0, 0.0, 3.0]), "No Δm differs from 0 beyond chance"),
        (Comparison([SAL], {"a": {SAL: SeedScores({0: 1.0})}}), ""),
    ],
    ids=["two seeds", "gains that vary", "no gain"],
)
def test_without_a_mark_the_note_says_why(comparison, note):
    assert not any(comparison.is_beyond_chance(method, DELTA_M) for method in comparison.entries)
    assert marks_note(comparison)[: len(note) or None] == note


def make_ranking(**rows):
    """The ranking of methods with these scores for saliency and errors in depth, by seed."""
    entries = {
        name: {SAL: SeedScores(dict(enumerate(scores))), DEPTH: SeedScores(dict(enumerate(errors)))}
        for name, (scores, errors) in rows.items()
    }
    return ranking_of(Comparison([SAL, DEPTH], entries))


COMPLETE = ([2, 2], [2, 2])


@pytest.mark.parametrize(
    ("b", "c", "rankings"),
    [(COMPLETE, ([1, 1], [3, 3]), 4), (COMPLETE, ([1], [3]), 2), (([2, float("nan")], [2, 2]), ([1, 1], [3, 3]), 3)],
    ids=["complete", "a seed is missing", "a score is NaN"],
)
def test_methods_are_ranked_by_finite_scores_in_their_common_seeds(b, c, rankings):
    ranking = make_ranking(a=([3, 3], [1, 1]), b=b, c=c)
    assert (ranking.ranks, ranking.rankings) == ({"a": 1, "b": 2, "c": 3}, rankings)


def test_two_methods_have_no_figure_and_three_that_do_not_differ_are_one_group():
    assert rank({"a": [1.0] * 9, "b": [2.0] * 9}) is None
    assert rank({"a": [1, 2, 3], "b": [2, 3, 1], "c": [3, 1, 2]}).groups == [["a", "b", "c"]]


def test_groups_are_as_large_as_the_critical_difference_allows():
    ranking = Ranking({"a": 1.0, "b": 1.8, "c": 2.5, "d": 4.7}, 20, 0.001, critical_difference=1.0)
    assert ranking.groups == [["a", "b"], ["b", "c"]]


def test_the_figure_of_ranks_is_xml_with_every_method_and_its_note_names_assumptions():
    ranking = Ranking({"a<b": 1.0, "fedavg": 2.2, "fedhca2 (encoder.c=0.4)": 2.8}, 20, 0.2, 1.5)
    texts = [node.text for node in ElementTree.fromstring(draw_ranks(ranking)).iter("{http://www.w3.org/2000/svg}text")]
    assert {"a<b 1.00", "fedavg 2.20", "fedhca2 (encoder.c=0.4) 2.80"} < set(texts)
    assert "no difference between the methods (p = 0.200)" in ranking_note(ranking)
    assert "assume independent rankings" in ranking_note(ranking)


def test_only_three_methods_or_more_have_a_figure_of_ranks(tmp_path):
    three = [made_run(tmp_path / name, name, better=better) for name, better in (("local", 1), ("a", 1.1), ("b", 1.2))]
    write_comparison(three, tmp_path)
    assert (tmp_path / RANKS_FILE).read_text().startswith("<svg")
    write_comparison(three[:2], tmp_path)
    assert not (tmp_path / RANKS_FILE).exists()
