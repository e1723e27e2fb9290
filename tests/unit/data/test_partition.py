import json

import numpy as np
import pytest
import torch

from fedhca2.data.partition import Dirichlet, Draws, Even, Lists, Shares, label_groups
from fedhca2.data.rendered import ScenesData
from fedhca2.errors import UserError
from fedhca2.experiment import assign_shards, open_data, partition_as_data
from fedhca2.tasks import TASKS
from small import SMALL, small

CLIENTS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def scenes():
    return ScenesData(domain="outdoor", size=(32, 32), train=60, val=1).open("train")


def assign(partition, data, seed=0):
    return partition.assign(data, CLIENTS, np.random.RandomState(seed))


def everything(parts):
    return sorted(index for part in parts.values() for index in part)


@pytest.mark.parametrize(
    "partition", [Even(), Shares(shares={"a": 3, "b": 2, "c": 1}), Dirichlet(by="semseg", at_least=1)]
)
def test_every_image_is_dealt_once(scenes, partition):
    assert everything(assign(partition, scenes)) == list(range(60))


@pytest.mark.parametrize("partition", [Even(), Draws(share=0.5), Dirichlet(by="sal", at_least=1)])
def test_the_seed_alone_decides(scenes, partition):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert assign(partition, scenes) == assign(partition, scenes) != assign(partition, scenes, seed=1)
    assert (torch.equal(torch.get_rng_state(), before[0]), np.random.get_state()[1].tolist()) == (True, before[1])


def test_sizes_are_as_the_shares_and_draws_may_overlap(scenes):
    parts = assign(Shares(shares={"a": 3, "b": 2, "c": 1}), scenes)
    assert [len(part) for part in parts.values()] == [30, 20, 10]
    parts = assign(Draws(share=0.5), scenes)
    assert ([len(set(part)) for part in parts.values()], len(set(everything(parts))) < 60) == ([30] * 3, True)


def purity(parts, groups):
    """The mean over clients of the share of each client's most frequent group."""
    return np.mean([np.unique(groups[part], return_counts=True)[1].max() / len(part) for part in parts.values()])


def test_a_small_alpha_makes_clients_differ_more(scenes):
    groups = label_groups(scenes, TASKS["sal"])
    few, many = (assign(Dirichlet(by="sal", alpha=alpha, at_least=1), scenes) for alpha in (0.1, 100.0))
    assert purity(few, groups) > 1.5 * purity(many, groups)
    assert np.bincount(label_groups(scenes, TASKS["edge"])).tolist() == [6] * 10  # mean values are grouped by tenths


def test_everybody_has_the_least_number_of_images_if_that_is_possible(scenes):
    assert min(map(len, assign(Dirichlet(by="sal", alpha=0.3, at_least=8), scenes).values())) >= 8
    with pytest.raises(ValueError, match="larger alpha"):
        assign(Dirichlet(by="sal", at_least=30), scenes)


def test_lists_take_numbers_and_ids(scenes):
    lists = Lists(lists={"a": [3, 1], "b": ["0000002"], "c": []})
    assert assign(lists, scenes) == {"a": [3, 1], "b": [2], "c": []}


@pytest.mark.parametrize(("images", "fault"), [([60], "60"), (["x"], "'x'"), ([1, "0000001"], "twice")])
def test_a_list_of_wrong_images_is_an_error(scenes, images, fault):
    with pytest.raises(ValueError, match=fault):
        assign(Lists(lists={"a": images, "b": [], "c": []}), scenes)


def with_partition(partition):
    outdoor = {**SMALL["data"]["outdoor"], "partition": partition}
    return {**SMALL["data"], "outdoor": outdoor}


@pytest.mark.parametrize(
    ("partition", "line"),
    [
        ({"kind": "shares", "shares": {"outdoor-semseg": 1}}, "data.outdoor.partition.shares: expected every"),
        ({"kind": "shares", "shares": {"outdor-semseg": 1}}, "Did you mean 'outdoor-semseg'?"),
        ({"kind": "dirichlet", "by": "normals"}, "data.outdoor.partition.by: expected a task"),
        ({"kind": "lists"}, "data.outdoor.partition: expected either 'lists' or 'file'"),
        ({"kind": "lists", "lists": {"road": list(range(50_001))}}, "at most 50000 images in 'lists', got 50001"),
        ({"kind": "lists", "file": "nowhere.json"}, "nowhere.json: expected JSON"),
        ({"kind": "evn"}, "data.outdoor.partition.kind: expected 'even'"),
    ],
)
def test_a_wrong_partition_is_an_error_in_the_config(partition, line):
    with pytest.raises(UserError) as caught:
        small(data=with_partition(partition))
    assert line in str(caught.value)


def test_a_saved_partition_names_images_by_id_and_is_read_back(tmp_path):
    experiment = small(seed=3)
    data = open_data(experiment)
    shards = assign_shards(experiment, data)
    written = partition_as_data(experiment, data, shards)
    assert written["home"]["val"][0] == "1000000"
    (tmp_path / "partition.json").write_text(json.dumps(written))
    again = small(data=with_partition({"kind": "lists", "file": str(tmp_path / "partition.json")}), seed=4)
    shards_again = assign_shards(again, data)
    assert shards_again["outdoor-semseg"].train == shards["outdoor-semseg"].train
