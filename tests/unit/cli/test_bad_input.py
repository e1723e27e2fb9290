from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from fedhca2.clients import Client
from fedhca2.data.files import BrokenFileError
from fedhca2.errors import UserError
from fedhca2.messages import Order
from full_disk import files_of_at_most
from small_run import (
    CrashError,
    OpenData,
    Silent,
    clients_of,
    crash,
    events,
    opened_once,
    resume_small,
    run_small,
    same_models,
    small,
)

UPDATES = {"encoder": "updates", "decoder": "updates"}


class Altered:
    """A data set with some broken samples."""

    def __init__(self, data, alter):
        self.data, self.alter = data, alter

    def __getattr__(self, name):
        return getattr(self.data, name)

    def __len__(self):
        return len(self.data)

    def for_share(self, indices):
        return Altered(self.data.for_share(indices), self.alter)

    def load(self, index, tasks):
        return self.alter(index, self.data.load(index, tasks))


def break_first(index, sample):
    if index == 0:
        raise BrokenFileError(Path("images/0.jpg"), "should be an RGB image, found nothing")
    return sample


@contextmanager
def broken():
    """Every data set that is opened has a broken image."""

    def open_broken(experiment):
        data_by_name = {
            spec.data: opened_once(experiment.data[spec.data], experiment.task_set) for spec in experiment.specs
        }
        return {name: OpenData(Altered(data.train, break_first), data.val) for name, data in data_by_name.items()}

    with patch("small_run.open_data_once", open_broken):
        yield


@pytest.mark.slow
def test_a_broken_image_is_named_and_left_out_where_that_is_allowed(tmp_path):
    training = {"batch_size": 1, "schedule": {"warmup_epochs": 0}}
    with broken(), pytest.raises(UserError, match=r"images/0.jpg: should be an RGB image, found nothing \(skip_"):
        run_small(small(rounds=1), tmp_path / "refused")
    with broken():
        result = run_small(small(rounds=1, skip_broken=True, training=training), tmp_path / "run")
    assert {client: len(faults) for client, faults in result.skipped.items()} == {"shop": 1, "home": 1}


def test_too_many_broken_images_are_refused(tmp_path):
    with broken(), pytest.raises(UserError, match=r"2 training images for 'shop', got 1"):
        run_small(small(skip_broken=True), tmp_path)


def remove_labels(index, sample):
    """All pixels are unknown."""
    unknown = {"semseg": 255, "sal": 255, "depth": 0}
    return sample | {name: torch.full_like(sample[name], unknown[name]) for name in sample.keys() & unknown.keys()}


@pytest.mark.parametrize("name", ["road", "shop", "home"])
def test_a_batch_without_a_valid_label_costs_nothing(name):
    client = clients_of(small())[name]
    client.data.train.data = Altered(client.data.train.data, remove_labels)
    reply = client.perform(Order(0, upload=UPDATES))
    assert (reply.failed, set(reply.losses.values())) == ("", {0.0})


@pytest.mark.slow
def test_a_client_that_diverges_is_left_out_and_named(tmp_path):
    def spoil(client, order, *args):
        if client.name == "road":
            client.training = client.training.model_copy(update={"learning_rate": 1e38})
        return perform(client, order, *args)

    perform = Client.perform
    with patch.object(Client, "perform", spoil):
        run_small(small(rounds=1), tmp_path)
    refused = [event["refused"] for event in events(tmp_path) if event["event"] == "round"]
    assert [list(each) for each in refused] == [["road"]]


@pytest.mark.slow
def test_a_disk_that_is_full_stops_a_run_which_goes_on_when_there_is_room(tmp_path):
    run_small(small(), tmp_path / "straight")
    with pytest.raises(CrashError):
        run_small(small(), tmp_path / "run", Silent(1, crash))
    with files_of_at_most(40_000), pytest.raises(OSError, match="File too large") as error:
        resume_small(tmp_path / "run")
    assert "checkpoints" in error.value.filename
    resume_small(tmp_path / "run")
    assert same_models(tmp_path / "straight", tmp_path / "run")
