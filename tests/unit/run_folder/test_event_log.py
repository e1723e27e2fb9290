"""What the log keeps of an aggregation: everything among few members, and a part of many."""

import json

import pytest
import torch

from fedhca2.aggregation.aggregator import Blend, Mixing
from fedhca2.run_folder.event_log import MOST_MEMBERS, START, EventLog, known
from fedhca2.run_folder.records import Aggregation, ServerRecord


def logged(path, count):
    """The event of an aggregation in which each of this many members gets a row of its own, and its matrices."""
    products, weights, votes = (torch.rand(count, count, generator=torch.Generator().manual_seed(i)) for i in range(3))
    mixing = Mixing("nothing", (Blend(weights, tuple(range(count))),), votes[None])
    members = tuple(f"site-{i:04}" for i in range(count))
    log = EventLog(path / "metrics.jsonl", START)
    log.aggregated(0, ServerRecord(0, (Aggregation("encoder", members, "rows", products, mixing),), {}, {}), 1.0)
    log.close()
    event = json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
    return known(event, "here"), products, weights, votes


def test_all_numbers_of_few_members_are_logged(tmp_path):
    event, products, weights, votes = logged(tmp_path, MOST_MEMBERS)
    found = [torch.tensor(event[key]) for key in ("products", "mixing", "votes")]
    expected = (products, weights[None], votes[None])
    assert all(each.equal(other) for each, other in zip(found, expected, strict=True))
    assert (len(event["members"]), "of" in event) == (MOST_MEMBERS, False)


def test_of_many_members_some_are_logged_with_their_own_numbers(tmp_path):
    event, products, weights, votes = logged(tmp_path, 1000)
    assert (len(event["members"]), event["of"]) == (MOST_MEMBERS, 1000)
    places = [int(name.removeprefix("site-")) for name in event["members"]]
    among = [each[places][:, places] for each in (products, weights, votes)]
    assert torch.tensor(event["products"]).equal(among[0])
    assert torch.tensor(event["mixing"][0])[event["gets"][0]].equal(among[1])
    assert torch.tensor(event["votes"][0]).equal(among[2])


@pytest.mark.parametrize("count", [1000, 1500])
def test_the_log_does_not_grow_with_the_square_of_the_members(tmp_path, count):
    logged(tmp_path, count)
    assert (tmp_path / "metrics.jsonl").stat().st_size < 3 * MOST_MEMBERS**2 * 25


def test_a_refused_update_counts_as_sent(tmp_path):
    log = EventLog(tmp_path / "metrics.jsonl", START)
    for round in range(2):
        log.aggregated(
            round, ServerRecord(round, (), {}, {"home": "too long", "office": "failed"}, unused=("home",)), 1.0
        )
    log.close()
    assert log.updates == {"home": 2}
