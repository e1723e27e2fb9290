import json
import sys

import numpy as np
import pytest

from fedhca2.reports.figures.conflict import (
    Kind,
    Points,
    conflict_figures,
    cosines,
    kind_of,
    map_figures,
    principal_map,
    tsne_map,
)
from fedhca2.reports.figures.curves import cost_figures, loss_curves, metric_curves, weight_figures
from fedhca2.reports.figures.figure import COLOURS, SYMBOLS
from fedhca2.reports.figures.mixing import attention_figures, entropy, grouping_figures
from fedhca2.run_folder.baseline import baseline_files
from fedhca2.run_folder.names import BASELINE_METRICS
from made_run import made_run


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path)


def by_id(figures):
    return {figure.id: figure for figure in figures}


def test_every_task_has_a_curve_of_its_metric(run):
    assert [figure.id for figure in metric_curves(run)] == ["metric-semseg", "metric-sal", "metric-depth"]


def test_a_baseline_from_elsewhere_has_its_line(tmp_path):
    made_run(tmp_path / "local", "local")
    kept = baseline_files(tmp_path / "local", {})
    run = made_run(tmp_path / "run")
    (run.path / BASELINE_METRICS).write_text(json.dumps(kept[BASELINE_METRICS]))
    names = [trace["name"] for trace in by_id(metric_curves(run))["metric-sal"].data]
    assert names == ["shop", "shop, local"]


def test_the_baseline_of_a_run_with_a_baseline_is_kept_too(tmp_path):
    made_run(tmp_path / "run")
    local = made_run(tmp_path / "run" / "baseline", "local")
    assert baseline_files(tmp_path / "run", {})[BASELINE_METRICS] == local.of("metric")


def test_clients_with_the_same_task_share_a_figure(run):
    assert [trace["name"] for trace in by_id(metric_curves(run))["metric-semseg"].data] == ["road", "home"]


def test_losses_belong_to_the_round_that_trained(run):
    assert by_id(loss_curves(run))["loss-sal"].data[0]["x"] == [1, 2, 3]


def test_alpha_is_drawn_for_every_client(run):
    alpha = by_id(weight_figures(run))["alpha"]
    assert {trace["name"]: trace["y"] for trace in alpha.data}["road"] == pytest.approx([0.1, 0.11, 0.12])


def test_beta_has_a_column_for_every_layer(run):
    assert by_id(weight_figures(run))["beta-layers"].data[0]["x"] == ["fuse", "norm"]


def test_beta_moves_over_rounds(run):
    assert list(by_id(weight_figures(run))["beta-layers"].slider.labels) == ["1", "2", "3"]


def test_conflicts_are_cosines_of_the_products(run):
    last = [event for event in run.of("aggregation") if event["part"] == "encoder"][-1]
    gram = np.array(last["products"])
    expected = gram / np.sqrt(np.outer(gram.diagonal(), gram.diagonal()))
    np.testing.assert_allclose(by_id(conflict_figures(run))["cosine-encoder"].data[0]["z"], expected)


def test_a_client_that_was_away_leaves_a_gap(tmp_path):
    figure = by_id(conflict_figures(made_run(tmp_path, away=("shop",))))["cosine-encoder"]
    assert np.isnan(figure.slider.changes[1]["z"][0][2]).all()


def test_gaps_can_be_written_as_json(tmp_path):
    run = made_run(tmp_path, away=("shop",))
    figures = [*conflict_figures(run), *grouping_figures(run), *weight_figures(run), *cost_figures(run)]
    assert json.dumps([figure.to_json() for figure in figures], allow_nan=False)


def test_models_are_compared_less_their_mean():
    rows = np.array([[1.0, 5.0], [-1.0, 5.0]])
    np.testing.assert_allclose(cosines(rows @ rows.T, "differences"), [[1, -1], [-1, 1]], atol=1e-12)


def test_the_map_keeps_distances_that_fit_a_plane():
    angles = np.array([0.0, 1.0, 2.5])
    cosine = np.cos(angles[:, None] - angles)
    points, share = principal_map(cosine)
    found = np.linalg.norm(points[:, None] - points, axis=-1)
    np.testing.assert_allclose(found**2, 2 - 2 * cosine, atol=1e-9)
    assert share == pytest.approx(1)


def test_a_map_is_turned_towards_the_one_before():
    cosine = np.cos(np.subtract.outer([0.0, 1.0, 2.5], [0.0, 1.0, 2.5]))
    first, _ = principal_map(cosine)
    turned, _ = principal_map(cosine, near=first @ np.array([[0.0, 1.0], [-1.0, 0.0]]))
    np.testing.assert_allclose(turned, first @ np.array([[0.0, 1.0], [-1.0, 0.0]]), atol=1e-9)


def alike(groups, copies=3):
    """Cosines of vectors in groups of similar ones."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.standard_normal((groups, 40)), copies, axis=0) + 0.3 * rng.standard_normal(
        (groups * copies, 40)
    )
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def test_neighbours_on_a_tsne_map_are_alike():
    points = tsne_map(alike(groups=5))
    distances = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag([np.inf] * 15)
    assert (distances.argmin(axis=1) // 3).tolist() == (np.arange(15) // 3).tolist()


def test_a_tsne_map_is_always_the_same():
    np.testing.assert_array_equal(tsne_map(alike(groups=5)), tsne_map(alike(groups=5)))


def test_a_tsne_map_leaves_out_who_was_away():
    cosine = np.full((10, 10), np.nan)
    cosine[1:, 1:] = alike(groups=3)
    assert np.isnan(tsne_map(cosine)).any(axis=1).tolist() == [True] + 9 * [False]


def crowd(count):
    """`count` clients of four kinds, and the figures that map their updates."""
    kinds = [Kind(data, task) for data in ("outdoor", "indoor") for task in ("semseg", "edge")] * count
    points = Points([f"c{i}" for i in range(count)], kinds[:count], ["1"])
    return by_id(map_figures([np.eye(count)], points, "encoder", "Map"))


def test_few_points_have_no_tsne_map():
    assert (list(crowd(6)), list(crowd(7))) == (["map-encoder"], ["map-encoder", "tsne-encoder"])


def test_without_scikit_learn_the_map_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    figures = crowd(7)
    assert list(figures) == ["map-encoder"]
    assert "pip install 'fedhca2[tsne]'" in figures["map-encoder"].note


@pytest.mark.parametrize("id", ["map-encoder", "tsne-encoder"])
def test_a_map_has_a_colour_for_each_task_and_a_symbol_for_each_data_set(id):
    points, *legend = crowd(8)[id].data
    assert [trace["name"] for trace in legend] == ["outdoor semseg", "outdoor edge", "indoor semseg", "indoor edge"]
    assert (points["marker"]["color"][0], points["marker"]["symbol"][0]) == (COLOURS[0], SYMBOLS[0])
    assert (points["marker"]["color"][3], points["marker"]["symbol"][3]) == (COLOURS[1], SYMBOLS[1])


def test_names_are_written_beside_few_points_alone():
    assert [crowd(count)["map-encoder"].data[0]["mode"] for count in (12, 13)] == ["markers+text", "markers"]


def test_an_encoder_is_of_all_its_tasks_and_a_decoder_of_one(run):
    assert kind_of(run, "home") == Kind("indoor", "semseg, depth")
    assert kind_of(run, "home/depth") == Kind("indoor", "depth")


def test_attention_has_a_state_for_every_tensor(run):
    attention = by_id(attention_figures(run))["attention"]
    assert list(attention.slider.labels) == ["fuse.weight", "fuse.bias", "norm.weight", "norm.bias"]


def test_entropy_of_one_tensor_is_drawn_over_rounds(run):
    events = [event for event in run.of("aggregation") if event["part"] == "decoder"]
    expected = [entropy(np.array(event["mixing"][0][0])) for event in events]
    assert by_id(attention_figures(run))["entropy"].data[0]["y"] == pytest.approx(expected)


def test_grouping_counts_common_rounds_only(tmp_path):
    figure = by_id(grouping_figures(made_run(tmp_path, away=("shop",))))["grouping"]
    np.testing.assert_array_equal(figure.data[0]["z"], np.ones((3, 3)))


def test_votes_have_a_row_for_every_layer(run):
    assert by_id(grouping_figures(run))["votes"].data[0]["y"] == ["layer -2", "layer -1"]


def test_bytes_add_up(run):
    total = by_id(cost_figures(run))["bytes-total"]
    assert sum(total.data[0]["y"]) * 2**20 == pytest.approx(3 * 3 * 400)
