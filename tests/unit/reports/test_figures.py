import json
import sys

import numpy as np
import pytest
import torch

from fedhca2.aggregation import Member
from fedhca2.methods import Voting
from fedhca2.params import Layout
from fedhca2.reports.figures import COLOURS, Slider, conflict, heat_map, mixing
from fedhca2.reports.figures.conflict import SYMBOLS, Point, conflict_figures, principal_map, tsne_map
from fedhca2.reports.figures.curves import cost_figures, loss_curves, metric_curves, weight_figures
from fedhca2.reports.figures.groups import ClientGroups, by_members, mean_of
from fedhca2.reports.figures.mixing import chosen_members, grouping_figures
from fedhca2.run_folder.folder import BASELINE_METRICS
from fedhca2.run_folder.writer import baseline_files
from made_run import made_run


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path)


def by_id(figures):
    return {figure.id: figure for figure in figures}


def test_a_run_that_mixes_no_encoders_does_not_say_where_they_came_from(tmp_path):
    assert mixing.exchange_sentence(made_run(tmp_path, rounds=0)) == []


def test_a_baseline_from_elsewhere_has_its_line(tmp_path):
    local, run = made_run(tmp_path / "local", "local"), made_run(tmp_path / "run")
    saved = baseline_files(local.path, {})[BASELINE_METRICS]
    assert saved == [*local.of("metric"), *local.of("loss")]
    (run.path / BASELINE_METRICS).write_text(json.dumps(saved))
    for curves, id in ((metric_curves, "metric-sal"), (loss_curves, "loss-sal")):
        own, alone = by_id(curves(run))[id].data
        assert (own["name"], alone["name"], alone["line"]["dash"]) == ("shop", "shop, local", "dot")


def test_conflicts_are_cosines_without_the_diagonal_in_colours_that_span_them(run):
    last = [event for event in run.of("aggregation") if event["part"] == "encoder"][-1]
    gram, figure = np.array(last["products"]), by_id(conflict_figures(run))["cosine-encoder"]
    expected = gram / np.sqrt(np.outer(gram.diagonal(), gram.diagonal()))
    np.fill_diagonal(expected, np.nan)
    order = [last["members"].index(name) for name in figure.data[0]["y"]]
    np.testing.assert_allclose(figure.data[0]["z"], expected[np.ix_(order, order)])
    states = np.array([change["z"][0] for change in figure.changes])
    assert figure.data[0]["zmax"] == -figure.data[0]["zmin"] == pytest.approx(np.nanmax(np.abs(states)))


def test_a_client_that_was_away_leaves_gaps_which_can_be_written_as_json(tmp_path):
    run = made_run(tmp_path, away=("shop",))
    cosines, costs = by_id(conflict_figures(run)), by_id(cost_figures(run))
    assert np.isnan(cosines["cosine-encoder"].changes[1]["z"][0][1]).all()
    shop = next(trace for trace in costs["bytes"].data if trace["name"] == "shop")
    assert [np.isnan(value) for value in shop["y"]] == [False, True, False, True]
    figures = [*cosines.values(), *grouping_figures(run), *weight_figures(run), *costs.values()]
    assert json.dumps([figure.to_json() for figure in figures], allow_nan=False)


def test_models_are_compared_less_their_mean():
    rows = np.array([[1.0, 5.0], [-1.0, 5.0]])
    np.testing.assert_allclose(conflict.cosines(rows @ rows.T, "differences"), [[1, -1], [-1, 1]], atol=1e-12)


def test_a_map_keeps_distances_in_a_plane_and_is_aligned_with_the_previous_one():
    cosine = np.cos(np.subtract.outer([0.0, 1.0, 2.5], [0.0, 1.0, 2.5]))
    points, share = principal_map(cosine)
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    np.testing.assert_allclose(distances**2, 2 - 2 * cosine, atol=1e-9)
    assert share == pytest.approx(1)
    turned = points @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_allclose(principal_map(cosine, previous=turned)[0], turned, atol=1e-9)


def alike(groups, copies=3):
    """Cosines of vectors in groups of similar ones."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.standard_normal((groups, 40)), copies, axis=0)
    rows += 0.3 * rng.standard_normal(rows.shape)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def test_neighbours_on_a_tsne_map_are_alike_it_is_always_the_same_and_leaves_out_who_was_away():
    points = tsne_map(alike(groups=5))
    distances = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag([np.inf] * 15)
    assert (distances.argmin(axis=1) // 3).tolist() == (np.arange(15) // 3).tolist()
    np.testing.assert_array_equal(tsne_map(alike(groups=5)), points)
    cosine = np.full((10, 10), np.nan)
    cosine[1:, 1:] = alike(groups=3)
    assert np.isnan(tsne_map(cosine)).any(axis=1).tolist() == [True] + 9 * [False]


def crowd(count):
    """`count` clients of two data sets, and the figures that map their updates."""
    points = [Point(f"c{i}", f"c{i}", ("outdoor", "indoor")[i % 2]) for i in range(count)]
    colours = {f"c{i}": COLOURS[i % len(COLOURS)] for i in range(count)}
    return by_id(conflict.map_figures([np.eye(count)], points, colours, Slider.of_rounds([1]), "encoder", "Map"))


@pytest.mark.parametrize(
    ("count", "mode", "maps"),
    [(9, "markers+text", 1), (12, "markers", 1), (19, "markers", 1), (20, "markers", 2), (301, "markers", 1)],
)
def test_few_points_have_names_and_neither_few_nor_many_have_tsne(count, mode, maps):
    figures = crowd(count)
    assert list(figures) == ["map-encoder", "tsne-encoder"][:maps]
    assert {trace["mode"] for trace in figures["map-encoder"].data[:count]} == {mode}


def test_without_scikit_learn_the_map_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    figures = crowd(20)
    assert list(figures) == ["map-encoder"]
    assert "install fedhca2[tsne]" in figures["map-encoder"].note


@pytest.mark.parametrize("id", ["map-encoder", "tsne-encoder"])
def test_a_map_has_a_colour_for_each_client_and_a_symbol_for_each_data_set(id):
    *points, _, _ = crowd(20)[id].data
    assert [trace["marker"]["color"] for trace in points] == list(COLOURS * 2)
    assert [trace["marker"]["symbol"] for trace in points] == [[SYMBOLS[i % 2]] for i in range(20)]


def test_only_chosen_members_count_although_others_get_the_same_mixture():
    rows = torch.tensor([[1.0, 0.1], [-1.0, 0.1], [1.0, 0.0], [-1.0, 0.0]])  # the first two are of one task
    members = [Member(name, group) for name, group in zip("abcd", "xxyy", strict=True)]
    layout = Layout(("conv.weight",), ((1, 2),))
    voted = Voting(friends=2, layers=1).mixing((rows @ rows.T).double()[None], members, layout)
    event = {
        "members": list("abcd"),
        "mixing": [blend.weights.tolist() for blend in voted.blends],
        "gets": [list(blend.gets) for blend in voted.blends],
        "votes": voted.votes.tolist(),
    }
    assert (mixing.first_weights(event)[[0, 1], [1, 0]] > 0).all()
    assert chosen_members(event).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert "in 0%" in mixing.describe_choices(chosen_members(event), list("xxyy"))


def test_grouping_counts_common_rounds_only():
    both = {"members": ["a", "b"], "mixing": [[[0.5, 0.5]]], "gets": [[0, 0]]}
    alone = {"members": ["a"], "mixing": [[[1.0]]], "gets": [[0]]}
    (same,) = by_members([both, alone, alone], ClientGroups({}, {}))
    assert mean_of(same.matrices(chosen_members)).tolist() == [[1, 1], [1, 1]]


def test_numbers_in_cells_have_room_and_cells_without_numbers_need_little():
    matrices = [heat_map("m", "", "", [[[0.1] * count]], ["a"], range(count)) for count in (4, 12, 60)]
    assert [figure.least_width for figure in matrices] == [520, 646, 520]
