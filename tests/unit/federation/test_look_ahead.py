"""Diagnostics of a run in one process: who helps whom, measured without a trace in the training."""

import numpy as np
import pytest
import torch

from fedhca2.clients.evaluation import look_ahead
from fedhca2.errors import UserError
from fedhca2.federation.look_ahead import MANY
from fedhca2.params import ENCODER
from fedhca2.run_folder.reader import RunFiles
from small_run import (
    SETTINGS,
    clients_of,
    events,
    run_small,
    same_models,
    small,
)

pytestmark = pytest.mark.slow
EVERY_ROUND = {"every": 1}
MEASURED = ("effect", "transfer")


def twins(count):
    """Settings with several clients of one kind."""
    data = {"outdoor": SETTINGS["data"]["outdoor"] | {"train": 2 * count}}
    return {"data": data, "clients": [{"name": "road", "data": "outdoor", "tasks": ["semseg"], "copies": count}]}


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Run a method with and without diagnostics, once for all tests."""
    folders = {}

    def run(method, diagnostics=None, **changes):
        key = method, str(diagnostics), str(changes)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("once") / "run"
            run_small(small(method, rounds=2, diagnostics=diagnostics, **changes), folders[key])
        return folders[key]

    return run


@pytest.mark.parametrize("method", ["fedhca2", "ditto", "fedamp"])
def test_diagnostics_change_nothing_in_the_training(once, method):
    plain, measured = once(method), once(method, EVERY_ROUND)
    assert same_models(plain, measured)


@pytest.mark.parametrize("method", ["fedhca2", "ditto"])
def test_diagnostics_add_events_and_change_no_other(once, method):
    def others(run):
        return [event for event in events(run) if event["event"] not in (*MEASURED, "client")]  # bytes of replies

    assert others(once(method)) == others(once(method, EVERY_ROUND))


def test_every_ordered_pair_of_clients_has_a_transfer(once):
    [first, _] = RunFiles(once("fedhca2", EVERY_ROUND)).of("transfer")
    known = ~np.isnan(np.array(first["transfer"], dtype=float))
    assert first["members"] == ["home", "road", "shop"]
    assert (known == ~np.eye(3, dtype=bool)).all()


def test_every_client_says_what_the_servers_rows_did(once):
    found = [(event["round"], event["client"]) for event in RunFiles(once("fedhca2", EVERY_ROUND)).of("effect")]
    assert sorted(found) == [(round, client) for round in (1, 2) for client in ("home", "road", "shop")]


@pytest.mark.parametrize("method", ["fedhca2", "ditto"])
def test_what_a_client_gets_is_measured_from_the_point_where_transfer_is(once, method):
    run = RunFiles(once(method, EVERY_ROUND))
    before = {(event["round"], event["client"]): event["before"] for event in run.of("effect")}
    for event in run.of("transfer"):
        found = dict(zip(event["members"], event["losses"], strict=True))
        assert found == {client: before[event["round"] + 1, client] for client in found}


def test_the_products_are_those_the_server_compared(once):
    run = RunFiles(once("fedhca2", EVERY_ROUND))
    compared = [event["products"] for event in run.of("aggregation") if event["part"] == "encoder"]
    np.testing.assert_allclose([event["products"] for event in run.of("transfer")], compared, rtol=1e-6)


def test_rows_that_only_attract_have_no_effect_yet(once):
    assert not RunFiles(once("fedamp", EVERY_ROUND)).of("effect")


def test_a_method_that_shares_no_encoders_measures_nothing(once):
    assert not [event for event in events(once("local", EVERY_ROUND)) if event["event"] in MEASURED]


def test_clients_with_frozen_encoders_have_gains_and_no_transfer(once):
    frozen = {"encoder": {"name": "tiny", "frozen": True}, "decoder_width": 8}
    run = RunFiles(once("fedhca2", EVERY_ROUND, model=frozen))
    assert run.of("effect")
    assert not run.of("transfer")


def test_only_every_nth_round_is_measured(once):
    run = RunFiles(once("fedhca2", {"every": 2}))
    assert [event["round"] for event in run.of("transfer")] == [1]
    assert {event["round"] for event in run.of("effect")} == {2}


def test_only_encoders_of_one_layout_form_pairs(once):
    other = {"encoder": {"name": "mobilenetv3_small_050", "drop_path": 0.0}}
    clients = [*SETTINGS["clients"][:2], SETTINGS["clients"][2] | {"model": other}]
    [event, _] = RunFiles(once("fedhca2", EVERY_ROUND, clients=clients)).of("transfer")
    assert event["members"] == ["road", "shop"]


def test_a_bound_on_clients_holds_and_chooses_the_same_each_time(once):
    first, second = RunFiles(once("fedhca2", EVERY_ROUND | {"clients": 2})).of("transfer")
    assert len(first["members"]) == 2
    assert first["members"] == second["members"]


@pytest.mark.parametrize("encoder", ["tiny", "tiny_vit_5m_224"])  # the second keeps what it computed from its weights
def test_transfer_is_that_of_the_definition(encoder):
    """Z_{i→j} = 1 − L_j(θ_j + Δ_i)/L_j(θ_j), with the loss computed here from the model itself."""
    client = clients_of(small(diagnostics=EVERY_ROUND, model={"encoder": {"name": encoder, "drop_path": 0.0}}))["road"]
    numel = client.layouts[ENCODER].numel
    update = 0.1 * torch.randn(numel, generator=torch.Generator().manual_seed(0))

    def loss():
        [batch] = client.data.val.in_order()
        with torch.no_grad():
            logits = client.personal.model.eval()(batch.image)["semseg"]
        label = batch.labels["semseg"].squeeze(1).long()
        return float(torch.nn.functional.cross_entropy(logits, label, ignore_index=255))

    before, found = look_ahead(client, {"shop": update})
    assert before == pytest.approx(loss(), rel=1e-6)
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(
            torch.nn.utils.parameters_to_vector(client.personal.model.encoder.parameters()) + update,
            client.personal.model.encoder.parameters(),
        )
    assert found["shop"] == pytest.approx(loss(), rel=1e-6) != before


def test_a_bound_on_images_holds_below_a_batch():
    scenes = {name: data | {"val": 3} for name, data in SETTINGS["data"].items()}
    client = clients_of(small(diagnostics={"every": 1, "images": 1}, data=scenes))["road"]
    [batch] = client.data.images_for_losses.in_order()
    assert len(batch.image) == 1 < client.training.batch_size


def test_many_evaluations_are_announced(tmp_path, caplog):
    count = 11
    assert count * (count - 1) > MANY
    run_small(
        small(rounds=1, evaluate_every=0, diagnostics={"every": 1, "images": 1}, **twins(count)), tmp_path / "run"
    )
    assert f"{count * (count - 1)} evaluations in each of 1 rounds" in caplog.text


def test_noise_does_not_cover_losses():
    with pytest.raises(UserError, match=r"diagnostics: does not work with privacy\.noise"):
        small(diagnostics=EVERY_ROUND, privacy={"clip": 1.0, "noise": 1.0})
