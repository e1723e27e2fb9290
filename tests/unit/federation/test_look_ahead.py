"""Diagnostics of a run in one process: who helps whom, measured without a trace in the training."""

import numpy as np
import pytest
import torch

from fedhca2.clients.evaluation import look_ahead
from fedhca2.errors import UserError
from fedhca2.federation.look_ahead import MANY
from fedhca2.params import ENCODER
from fedhca2.run_folder.reader import RunFiles
from small_run import SETTINGS, clients_of, events, run_small, same_models, small

pytestmark = pytest.mark.slow
EVERY_ROUND = {"every": 1}
MEASURED = ("effect", "transfer")


@pytest.fixture
def measured(once):
    """The folder of a run of a method, with diagnostics in every round by default."""

    def run(method, diagnostics=EVERY_ROUND, **changes):
        return once(small(method, rounds=2, diagnostics=diagnostics, **changes))

    return run


@pytest.mark.parametrize("method", ["fedhca2", "ditto", "fedamp"])
def test_diagnostics_change_nothing_in_the_training_and_add_events(measured, method):
    runs = measured(method, None), measured(method)
    assert same_models(*runs)
    own = (*MEASURED, "client")  # which has the bytes of replies
    found = [[event for event in events(run) if event["event"] not in own] for run in runs]
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["fedhca2", "ditto"])
def test_effects_and_transfers_start_from_the_same_losses(measured, method):
    run = RunFiles(measured(method))
    before = {(event["round"], event["client"]): event["before"] for event in run.of("effect")}
    for event in run.of("transfer"):
        found = dict(zip(event["members"], event["losses"], strict=True))
        assert found == {client: before[event["round"] + 1, client] for client in found}


def test_every_ordered_pair_of_clients_has_a_transfer_and_the_product_that_the_server_compared(measured):
    run = RunFiles(measured("fedhca2"))
    transfers = run.of("transfer")
    assert (~np.isnan(np.array(transfers[0]["transfer"], dtype=float)) == ~np.eye(3, dtype=bool)).all()
    compared = [event["products"] for event in run.of("aggregation") if event["part"] == "encoder"]
    np.testing.assert_allclose([event["products"] for event in transfers], compared, rtol=1e-6)


ALL = ["home", "road", "shop"]
FROZEN = {"model": {"encoder": {"name": "tiny", "frozen": True}, "decoder_width": 8}}
OTHER = {"encoder": {"name": "mobilenetv3_small_050", "drop_path": 0.0}}
MIXED = {"clients": [*SETTINGS["clients"][:2], SETTINGS["clients"][2] | {"model": OTHER}]}


@pytest.mark.parametrize(
    ("method", "diagnostics", "changes", "transfers", "effects"),
    [
        ("fedhca2", EVERY_ROUND, {}, {0: ALL, 1: ALL}, {1: ALL, 2: ALL}),
        ("fedhca2", {"every": 2}, {}, {1: ALL}, {2: ALL}),
        ("fedamp", EVERY_ROUND, {}, {0: ALL, 1: ALL}, {}),  # rows that only attract have no effect yet
        ("local", EVERY_ROUND, {}, {}, {}),
        ("fedhca2", EVERY_ROUND, FROZEN, {}, {1: ALL, 2: ALL}),
        ("fedhca2", EVERY_ROUND, MIXED, {0: ["road", "shop"], 1: ["road", "shop"]}, {1: ALL, 2: ALL}),
        ("fedhca2", {"every": 1, "clients": 2}, {}, {0: ["road", "shop"], 1: ["road", "shop"]}, {1: ALL, 2: ALL}),
    ],
)
def test_transfers_and_effects_are_logged(measured, method, diagnostics, changes, transfers, effects):
    run, found = RunFiles(measured(method, diagnostics, **changes)), {}
    for event in run.of("effect"):
        found.setdefault(event["round"], []).append(event["client"])
    assert {round: sorted(clients) for round, clients in found.items()} == effects
    assert {event["round"]: event["members"] for event in run.of("transfer")} == transfers


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
    data = {"outdoor": SETTINGS["data"]["outdoor"] | {"train": 2 * count}}
    twins = [{"name": "road", "data": "outdoor", "tasks": ["semseg"], "copies": count}]
    diagnostics = {"every": 1, "images": 1}
    run_small(small(rounds=1, evaluate_every=0, diagnostics=diagnostics, data=data, clients=twins), tmp_path / "run")
    assert f"{count * (count - 1)} evaluations in each of 1 rounds" in caplog.text


def test_diagnostics_with_noise_are_refused():
    with pytest.raises(UserError, match=r"diagnostics: does not work with privacy\.noise"):
        small(diagnostics=EVERY_ROUND, privacy={"clip": 1.0, "noise": 1.0})
