"""The strategies for a user's own Flower apps: the numbers of the server itself, and a federation that survives."""

from dataclasses import replace
from inspect import signature

import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from own_app import TASKS, Alone, OwnModel, fit, make_app, make_grid, parts
from torch.testing import assert_close

from fedhca2.federation.flower.records import OWN, decode_reply, encode_reply, header_of, to_rows
from fedhca2.federation.flower.wait import TooFewClientsError
from fedhca2.flower import Federated, FedHCA2, FlowerClient
from fedhca2.flower.client import NamedParts
from fedhca2.messages import Profile
from fedhca2.methods import METHODS, resolve, settings_of
from fedhca2.objectives import squared_distance
from fedhca2.params import Slot, layouts

pytestmark = pytest.mark.slow
ROUNDS = 3
NEED_OUR_LOOP = {"ditto", "fedbabu", "fedrep", "alone_longer", "pooled"}
NEED_OUR_LOOP |= {"fedavg_ft", "fedper_ft", "fedbn", "scaffold", "feddyn"}
ENCODER = Slot("encoder")


def alone(method="fedhca2", train=fit, **settings):
    models = {name: OwnModel(name) for name in TASKS}
    return Alone(models, parts, train, resolve(method, settings).over(ROUNDS)).run(ROUNDS)


def started(strategy, folder, rounds=ROUNDS, **options):
    """The grid and the models after some rounds of a strategy."""
    grid, models = make_grid(folder, **options)
    strategy.start(grid, num_rounds=rounds)
    return grid, models


def assert_same_models(found, expected, **tolerance):
    """Compare the clients among those expected."""
    for name, model in expected.items():
        assert_close(found[name].state_dict(), model.state_dict(), **tolerance or {"rtol": 1e-5, "atol": 1e-6})


def weights(state):
    return {str(key): learned.value for key, learned in state.weights.items()}


@pytest.mark.parametrize("method", ["fedhca2", "fedavg", "fedpull"])
def test_the_strategy_has_the_numbers_of_the_server(tmp_path, method):
    _, models = started(Federated(method, min_clients=3), tmp_path)
    assert_same_models(models, alone(method).models)


@pytest.mark.parametrize("method", sorted(METHODS.keys() - NEED_OUR_LOOP))
def test_every_other_method_runs(tmp_path, method):
    settings = {"hostile": 0} if "hostile" in settings_of(METHODS[method]) else {}
    grid, _ = make_grid(tmp_path)
    result = Federated(method, min_clients=3, **settings).start(grid, num_rounds=1)
    assert sorted(result.evaluate_metrics_clientapp[1]) == ["north/depth", "north/edge", "south/depth", "west/edge"]


@pytest.mark.parametrize("method", sorted(NEED_OUR_LOOP))
def test_methods_that_need_our_training_loop_are_refused(method):
    with pytest.raises(ValueError, match=rf"^{method}: .* which only fedhca2's own clients do$"):
        Federated(method)


def test_no_setting_of_a_method_has_the_name_of_an_option():
    assert not {key for method in METHODS.values() for key in settings_of(method)} & {*signature(Federated).parameters}


def proximal(mu):
    """SGD with FedProx's term, written out."""

    def train(model, client, round, pull=None):
        shared = [value for name, value in model.named_parameters() if not name.startswith("outputs")]
        start = [value.detach().clone() for value in shared]
        return fit(model, client, round, lambda: mu / 2 * squared_distance(shared, start))

    return train


def test_the_pull_is_the_term_of_fedprox(tmp_path):
    _, models = started(Federated("fedprox", mu=2.0, min_clients=3), tmp_path)
    assert_same_models(models, alone("fedprox", mu=2.0, train=proximal(2.0)).models)


def test_a_training_loop_without_the_pull_is_an_error(tmp_path, caplog):
    strategy = Federated("fedprox", min_clients=3)
    started(strategy, tmp_path, 1, train=lambda model, client, round, pull: fit(model, client, round))
    assert "fit: expected `loss + round.pull()`" in caplog.text


@pytest.mark.parametrize("stop", [1, 2])
def test_a_new_strategy_continues_from_the_file(tmp_path, stop):
    options = {"lr": 1.0, "min_clients": 3, "save_to": tmp_path / "server" / "state.safetensors"}
    started(FedHCA2(**options), tmp_path, stop)
    strategy, (grid, models) = FedHCA2(**options), make_grid(tmp_path)
    result = strategy.start(grid, num_rounds=ROUNDS)
    assert list(result.train_metrics_clientapp) == list(range(stop + 1, ROUNDS + 1))
    expected = alone(lr=1.0)
    assert_close(weights(strategy.progress.state), weights(expected.state))
    assert_same_models(models, expected.models)


def test_a_server_that_dies_before_it_aggregates_repeats_the_round(tmp_path):
    class Killed(FedHCA2):
        def aggregate_train(self, server_round, replies):
            if server_round == 2:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)

    options = {"min_clients": 3, "save_to": tmp_path / "state.safetensors"}
    with pytest.raises(KeyboardInterrupt):
        started(Killed(**options), tmp_path)
    assert_same_models(started(FedHCA2(**options), tmp_path)[1], alone().models)


def test_a_finished_run_only_sends_the_last_rows(tmp_path):
    options = {"min_clients": 3, "save_to": tmp_path / "state.safetensors", "evaluate_every": 0}
    started(FedHCA2(**options), tmp_path, 1)
    grid, _ = started(FedHCA2(**options), tmp_path, 1)
    assert {message.metadata.message_type for message in grid.down} == {"query", "evaluate"}


def test_another_method_does_not_continue_a_run(tmp_path):
    file = tmp_path / "state.safetensors"
    started(FedHCA2(save_to=file), tmp_path, 1)
    with pytest.raises(ValueError, match="expected a run of fedavg with these settings"):
        Federated("fedavg", save_to=file)


def test_rows_wait_for_a_client_that_is_away(tmp_path):
    strategy = FedHCA2(evaluate_every=0)
    grid, models = started(strategy, tmp_path, 1)
    taken = models["south"].body[0].weight.clone()
    away = grid.leave("south")
    strategy.start(grid, num_rounds=2)
    grid.apps |= away
    strategy.start(grid, num_rounds=3)
    assert strategy.taken["south"] == 3
    assert not torch.equal(taken, models["south"].body[0].weight)


def spoilt(change):
    """An app whose replies to orders are changed."""

    def around(app):
        def answer(message, context):
            reply = app(message, context)
            return change(reply, message) if message.metadata.message_type == "train" else reply

        return answer

    return around


def rewritten(change):
    """A reply with other rows."""

    def rewrite(reply, message):
        header = header_of(reply.content)
        own = NamedParts(OwnModel("south"), parts("south"))
        profile = Profile("south", "data", TASKS["south"], 8, layouts(own))
        found = decode_reply(header, to_rows(reply.content)[OWN], profile)
        rows = {slot: change(row) for slot, row in found.rows.items()}
        return Message(encode_reply(replace(found, rows=rows), "float32"), reply_to=message)

    return rewrite


def raising(reply, message):
    raise RuntimeError("no battery")


SPOILT = {
    "nan": rewritten(lambda row: row * float("nan")),
    "huge": rewritten(lambda row: row + 1e6),
    "short": rewritten(lambda row: row[:-1]),
    "empty": lambda reply, message: Message(RecordDict(), reply_to=message),
    "error": raising,
}


@pytest.fixture(scope="module")
def without_south(tmp_path_factory):
    """The models of a round in which south does not answer."""
    grid, models = make_grid(tmp_path_factory.mktemp("silent"))
    grid.silent.add("south")
    FedHCA2(min_clients=3).start(grid, num_rounds=1)
    return {name: models[name] for name in ("north", "west")}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_bad_reply_counts_as_none(tmp_path, kind, without_south):
    grid, models = make_grid(tmp_path)
    grid.replace("south", spoilt(SPOILT[kind]))
    FedHCA2(min_clients=3).start(grid, num_rounds=1)
    assert_same_models(models, without_south, rtol=0, atol=0)


def test_training_that_diverges_is_undone(tmp_path, caplog):
    def diverge(model, client, round, pull):
        losses = fit(model, client, round)
        return dict.fromkeys(losses, float("inf")) if client == "west" and round == 0 else losses

    grid, _ = make_grid(tmp_path, train=diverge)
    strategy = FedHCA2(min_clients=3)
    result = strategy.start(grid, num_rounds=2)
    assert "west: failed: the loss of 'edge' became inf" in caplog.text
    assert "west/edge" in result.train_metrics_clientapp[2]


def test_clients_with_other_encoders_share_the_rows_that_fit(tmp_path):
    grid, models = make_grid(tmp_path)
    grid.replace("west", lambda app: make_app("west", tmp_path, models, width=6))
    strategy = FedHCA2(min_clients=3)
    strategy.start(grid, num_rounds=2)
    shared = {key for key in weights(strategy.progress.state) if key.endswith("encoder")}
    assert shared == {"north/encoder", "south/encoder"}


def test_clients_start_from_the_initial_arrays_unless_these_fit_nobody(tmp_path):
    body = {name: torch.full_like(value, 0.25) for name, value in OwnModel("north").body.state_dict().items()}
    grid, models = make_grid(tmp_path, train=lambda model, client, round, pull: dict.fromkeys(TASKS[client], 0.0))
    Federated("local", min_clients=3).start(grid, ArrayRecord(body), num_rounds=1)
    assert all(bool((model.body[0].weight == 0.25).all()) for model in models.values())
    with pytest.raises(ValueError, match="initial_arrays: expected the names and shapes"):
        FedHCA2().start(grid, ArrayRecord({"weight": torch.zeros(2)}), num_rounds=1)


def test_a_second_node_with_the_same_name_is_refused(tmp_path):
    grid, models = make_grid(tmp_path)
    grid.replace("west", lambda app: make_app("south", tmp_path, models))
    strategy = FedHCA2()
    strategy.start(grid, num_rounds=1)
    assert list(strategy.roster.refused.values()) == ["south has already joined as another node"]


def test_a_client_of_another_version_is_refused_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhca2.flower.client.PROTOCOL", 1)
    strategy = FedHCA2()
    with pytest.raises(TooFewClientsError):
        strategy.start(make_grid(tmp_path)[0], num_rounds=1, timeout=0.01)
    assert [why[:27] for why in strategy.roster.refused.values()] == ["protocol: expected 2, got 1"] * 3


@pytest.mark.parametrize("timeout", [0.01, 0])
def test_too_few_clients_are_an_error(timeout, tmp_path):
    with pytest.raises(TooFewClientsError, match="expected 4 clients, got north, south, west"):
        FedHCA2(min_clients=4).start(make_grid(tmp_path)[0], num_rounds=1, timeout=timeout)


def test_there_is_no_model_to_evaluate_at_the_server():
    with pytest.raises(ValueError, match="evaluate_fn: expected None"):
        FedHCA2().start(None, evaluate_fn=lambda *_: None)


@pytest.mark.parametrize(
    ("named", "fault"),
    [
        ({"encoder": "torso", "head.depth": "outputs.depth"}, "encoder: .* begins with 'torso'"),
        ({"encoder": "body"}, "parts: expected a decoder.TASK or head.TASK, got encoder"),
        ({"trunk": "body"}, "expected one of encoder, decoder, head"),
        ({"encoder": "bod", "head.depth": "outputs.depth"}, "begins with 'bod'"),
    ],
)
def test_parts_that_do_not_fit_the_model_are_named(tmp_path, named, fault):
    with pytest.raises(ValueError, match=fault):
        FlowerClient("south", OwnModel("south"), named, samples=8, folder=tmp_path)


def test_the_longest_prefix_names_a_part():
    slots = NamedParts(OwnModel("south"), {"encoder": "", "head.depth": "outputs.depth"}).slots()
    layers = ("body.0", "body.1", "towers.depth.0")
    assert list(slots[ENCODER]) == [f"{layer}.{name}" for layer in layers for name in ("weight", "bias")]
