"""Rounds of any number of steps: an epoch continues in the next round, and nothing but exchanges changes."""

import pytest
import torch

from fedhca2.clients.training import Schedule
from fedhca2.errors import UserError
from fedhca2.federation.forecast import forecast
from fedhca2.federation.guard import Reach
from fedhca2.objectives import HeadsFirst, Objective
from small_run import SETTINGS, clients_of, models, run_small, same_models, same_runs, small

SCENES = {"kind": "scenes", "size": [32, 32], "val": 1}
DATA = {name: {**SCENES, "domain": name, "train": count} for name, count in (("outdoor", 12), ("indoor", 6))}
SCHEDULE = {"batch_size": 2, "learning_rate": 1e-3, "schedule": {"warmup_epochs": 1, "lag": False}}


def rounds_of(length, method="fedhca2", rounds=3, **changes):
    """Three clients with three batches in an epoch; `length` is of their rounds."""
    clients = [{**client, **length} for client in SETTINGS["clients"]]
    return small(method, rounds=rounds, data=DATA, clients=clients, training=SCHEDULE, **changes)


@pytest.mark.parametrize("objective", [Objective(), HeadsFirst(head_epochs=2)])
@pytest.mark.parametrize("steps", [1, 2, 5, 7])
def test_rounds_take_every_batch_of_an_epoch_once(objective, steps):
    taken = [
        (epoch.draw, batch)
        for round in range(15)
        for epoch in objective.epochs(round, steps, 5)
        for batch in epoch.part
    ]
    assert len(set(taken)) == len(taken)
    assert [batch for draw, batch in taken if draw == 0] == list(range(5))


@pytest.mark.parametrize("method", ["fedhca2", "fedrep", "ditto"])
def test_the_batches_of_an_epoch_are_an_epoch(tmp_path, method):
    for name, length in (("epochs", {"epochs": 1}), ("steps", {"steps": 3})):
        run_small(rounds_of(length, method), tmp_path / name)
    assert same_runs(tmp_path / "epochs", tmp_path / "steps")


def test_alone_the_length_of_rounds_does_not_matter(tmp_path):
    for steps, rounds in ((3, 4), (2, 6), (4, 3)):
        run_small(rounds_of({"steps": steps}, "local", rounds), tmp_path / f"{steps}")
    assert same_models(tmp_path / "3", tmp_path / "2")
    assert same_models(tmp_path / "3", tmp_path / "4")


def test_a_steps_learning_rate_does_not_depend_on_the_length_of_rounds():
    def rates(steps, rounds):
        client = clients_of(rounds_of({"steps": steps}, rounds=rounds))["home"]
        epochs = [epoch for round in range(rounds) for epoch in client.epochs(round)]
        return [client.rate(epoch) for epoch in epochs for _ in epoch.part]

    assert rates(2, 6) == rates(3, 4) == rates(12, 1)


def test_schedules_know_runs_that_end_within_an_epoch():
    schedule = Schedule(warmup_epochs=0, lag=False, lowest=0.0)
    assert schedule.rate(2, 2.5, 1.0) < schedule.rate(2, 3, 1.0)


@pytest.mark.parametrize("length", [{"steps": 2, "epochs": 1}, {"steps": 0}])
def test_a_round_has_epochs_or_steps(length):
    with pytest.raises(UserError, match="steps"):
        rounds_of(length)


def test_the_guard_counts_steps():
    home = clients_of(rounds_of({"steps": 3}))["home"].profile
    [by_epochs, by_steps, shorter] = [
        Reach.of(rounds_of(length)).of_row(home, "encoder", 100, range(1, 2), 6).steps
        for length in ({"epochs": 1}, {"steps": 3}, {"steps": 1})
    ]
    assert by_epochs == by_steps > shorter > 0


def test_the_forecast_has_the_steps_of_a_round():
    assert {client["steps"] for client in forecast(rounds_of({"steps": 4})).clients} == {4}
    assert {client["steps"] for client in forecast(rounds_of({"epochs": 2})).clients} == {6}


def test_alone_longer_takes_the_steps_of_all_at_the_stretched_schedule(tmp_path):
    run_small(rounds_of({"epochs": 1}, "alone_longer", rounds=2), tmp_path / "run")
    home = clients_of(rounds_of({"epochs": 1}, "alone_longer", rounds=2))["home"]
    short = clients_of(rounds_of({"epochs": 1}, "local", rounds=2))["home"]
    assert home.steps == 3 * short.steps == 9
    longer = [home.rate(epoch) for round in range(2) for epoch in home.epochs(round)]
    assert longer == [short.rate(e) for r in range(2) for e in short.epochs(r) for _ in range(3)]
    assert all(torch.isfinite(value).all() for value in models(tmp_path / "run")["home.safetensors"].values())
