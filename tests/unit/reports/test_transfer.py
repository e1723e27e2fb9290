"""Figures and sentences about who helps whom, from events written by hand."""

import numpy as np
import pytest

from fedhca2.reports.figures.transfer import client_gains, transfer_figures
from fedhca2.reports.figures.transfer import transfer_sentences as sentences
from made_run import made_run, with_diagnostics, with_events

NAMES = ["home", "road", "shop"]
TRANSFER = [[None, 0.02, -0.055], [0.01, None, 0.03], [-0.04, 0.01, None]]  # giver, receiver


def effect(round, client, before, after):
    return {"event": "effect", "round": round, "client": client, "before": before, "after": after, "seconds": 0.1}


def transfer(round, names=NAMES, values=TRANSFER):
    rows = np.random.default_rng(round).standard_normal((len(names), 5))
    about = {"event": "transfer", "round": round, "members": names, "products": (rows @ rows.T).tolist()}
    return {**about, "losses": [1.0] * len(names), "transfer": values, "seconds": 2.0}


@pytest.fixture
def run(tmp_path):
    effects = [effect(1, "home", 2.0, 1.9), effect(2, "home", 1.0, 0.95), effect(2, "road", 1.0, 1.01)]
    return with_events(made_run(tmp_path), transfer(0), transfer(1), *effects, effect(2, "shop", 1.0, 0.9))


def figure(run, id):
    return next(figure for figure in transfer_figures(run) if figure.id == id)


def test_sentences_say_what_the_rows_did_at_once_and_name_the_best_and_the_worst_donor(run):
    assert client_gains(run)["home"] == pytest.approx({1: 5.0, 2: 5.0})  # the relative fall of its loss
    assert sentences(run) == [
        "The server's update lowered the validation loss of 2 of 3 clients at once: it fell most for shop "
        "(loss -10.0%), and rose most for road (loss +1.00%). The update of road, added as a whole, would help shop "
        "most (loss -3.00%). A loss that rises at once can still end lower: Δm compares scores at the end of whole "
        "runs.",
        "Added as a whole, the update of road would help the others most (loss -2.00% on average), "
        "and that of home least (loss +1.75%).",
    ]


def test_losses_that_fall_for_all_clients_need_no_comparison_with_delta_m(tmp_path):
    sentence = sentences(with_diagnostics(made_run(tmp_path), loss=0.9))[0]
    assert ("loss of 3 of 3 clients" in sentence, "Δm" in sentence) == (True, False)


def test_without_diagnostics_nothing_is_shown_and_an_empty_result_is_explained(tmp_path):
    run = made_run(tmp_path)
    assert (sentences(run), transfer_figures(run)) == ([], [])
    run.config["diagnostics"] = {"every": 10}
    assert "was not measured" in sentences(run)[0]


def test_the_heat_map_has_givers_in_rows_and_a_slider_and_an_arrow_leads_from_each_best_giver(run):
    heat_map = figure(run, "transfer")
    (trace,) = heat_map.data
    assert trace["z"][trace["y"].index("home")][trace["x"].index("road")] == pytest.approx(2.0)
    assert heat_map.sliders[0].labels == ["1", "2", "mean"]
    graph = figure(run, "giving")
    givers, receivers = (dict(zip(t["text"], t["y"], strict=True)) for t in graph.data)
    arrows = {(a["ay"], a["y"]) for a in graph.layout["annotations"]}
    best = {"shop": "road", "road": "home", "home": "road"}
    assert arrows == {(givers[giver], receivers[receiver]) for receiver, giver in best.items()}


def test_updates_that_help_nobody_are_described_as_harmful(tmp_path):
    harmful = [[None, -0.01, -0.01], [-0.04, None, -0.04], [-0.02, -0.02, None]]
    assert sentences(with_events(made_run(tmp_path), transfer(0, values=harmful))) == [
        "Added as a whole, the update of home would harm the others least (loss +1.00% on average), "
        "and that of road most (loss +4.00%)."
    ]


def test_a_client_that_missed_a_round_is_judged_by_the_others(tmp_path):
    pair = transfer(1, ["home", "road"], [[None, 0.04], [0.03, None]])
    trace = figure(with_events(made_run(tmp_path), transfer(0), pair), "transfer").data[0]
    home = dict(zip(trace["x"], trace["z"][trace["y"].index("home")], strict=True))
    assert home["road"] == pytest.approx(3.0)
    assert home["shop"] == pytest.approx(-5.5)


def test_layouts_have_figures_of_their_own(tmp_path):
    other = transfer(0, ["x", "y"], [[None, 0.1], [0.1, None]])
    ids = [figure.id for figure in transfer_figures(with_events(made_run(tmp_path), transfer(0), other))]
    assert ids == ["transfer", "giving", "pairs", "transfer-1", "giving-1", "pairs-1"]


def test_many_clients_stay_readable(tmp_path):
    names = [f"client-{i:03}" for i in range(90)]
    values = np.random.default_rng(0).standard_normal((90, 90))
    effects = [effect(1, name, 1.0, 1 - float(gain)) for name, gain in zip(names, values[0], strict=True)]
    run = with_events(made_run(tmp_path), transfer(0, names, values.tolist()), *effects)
    assert len(figure(run, "transfer-gains").data[0]["y"]) == 40
    assert len(figure(run, "giving").layout["annotations"]) == 60
    assert max(figure.layout["height"] for figure in transfer_figures(run)) < 1600


def test_a_loss_of_zero_or_a_lost_number_leaves_a_gap(tmp_path):
    gone = transfer(0, NAMES, [[None] * 3] * 3)
    run = with_events(made_run(tmp_path), gone, effect(1, "home", 0.0, 0.0))
    assert [figure.id for figure in transfer_figures(run)] == ["pairs"]
