"""Experiments whose data are archives on disk."""

import json

import numpy as np
import pytest
import torch

from fedhca2.clients import DeviceSlot
from fedhca2.data.label_spaces import PERSON
from fedhca2.data.partition import even_split
from fedhca2.data.rendered import write_scenes
from fedhca2.errors import UserError
from fedhca2.experiment import assign_shards, open_data
from fedhca2.experiment.build import plan_clients
from small import small

IMAGES = 40


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("archive") / "street"
    write_scenes("pascal_context", root, IMAGES, 8, (32, 32), seed=0)
    return root


def experiment(root, clients, kind="pascal_context", **options):
    return small(data={"street": {"kind": kind, "root": str(root), "size": [32, 32], **options}}, clients=clients)


def has_person(root):
    objects = json.loads((root / "ImageSets" / "Parts" / "train.txt").read_text())
    return [PERSON in classes for classes in objects.values()]


@pytest.mark.parametrize("released", [True, False])
def test_a_client_of_human_parts_drops_images_by_its_index(root, released):
    clients = [{"data": "street", "split": ["human_parts", "semseg"]}]
    config = experiment(root, clients, released_parts_index=released)
    shard = assign_shards(config, open_data(config))["street-human_parts"]
    part, person = even_split(IMAGES, 2, np.random.RandomState(0))[0], has_person(root)
    assert shard.train == [index for k, index in enumerate(part) if person[k if released else index]]


def test_a_multi_task_client_loses_the_labels_that_the_released_index_misses(root):
    config = experiment(root, [{"data": "street", "tasks": ["human_parts", "semseg"]}], released_parts_index=True)
    data = open_data(config)
    shard = assign_shards(config, data)["street"]
    [plan] = plan_clients(config, data, {"street": shard}, DeviceSlot(torch.device("cpu")))
    client = plan.build()
    person = has_person(root)
    missed = [i for k, i in enumerate(shard.dealt) if person[i] and not person[k]]
    labels = [client.data.train.data.load(i, ["human_parts"])["human_parts"] for i in missed]
    assert (bool(missed), all((label == 255).all() for label in labels)) == (True, True)


def test_an_image_that_evaluation_cannot_take_stops_the_experiment(root):
    config = experiment(root, [{"data": "street", "tasks": ["semseg"]}], size=[32, 16])
    with pytest.raises(UserError, match=r"data\.street: .*1000000\.jpg: expected at most 32×16"):
        open_data(config)


def test_labels_may_be_absent_only_if_no_client_needs_them(tmp_path):
    write_scenes("nyud", tmp_path / "rooms", 4, 2, (32, 32), seed=0)
    (tmp_path / "rooms" / "depth" / "0000002.npy").unlink()
    without, needing = (
        experiment(tmp_path / "rooms", [{"data": "street", "tasks": tasks}], "nyud")
        for tasks in (["semseg", "edge"], ["depth"])
    )
    assert len(assign_shards(without, open_data(without))["street"].train) == 4
    with pytest.raises(UserError, match=r"data\.street: .*0000002\.npy: expected 'depth'"):
        assign_shards(needing, open_data(needing))
