"""What the log keeps of an aggregation: everything among few members, and a part of many."""

import json

import numpy as np
import pytest
import torch

from fedhca2.aggregation.aggregator import Blend, Mixing
from fedhca2.errors import UserError
from fedhca2.run_folder.event_log import MOST_INLINE, MOST_MEMBERS, START, EventLog
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Aggregation, ServerRecord


def logged(path, count):
    """The event of an aggregation in which each of this many members gets a row of its own, and its matrices."""
    products, weights, votes = (torch.rand(count, count, generator=torch.Generator().manual_seed(i)) for i in range(3))
    mixing = Mixing("nothing", (Blend(weights, tuple(range(count))),), votes[None])
    members = tuple(f"site-{i:04}" for i in range(count))
    path.mkdir(exist_ok=True)
    log = EventLog(path, START)
    log.aggregated(0, ServerRecord(0, (Aggregation("encoder", members, "rows", products, mixing),), {}, {}), 1.0)
    log.close()
    (event,) = RunFiles(path).of("aggregation")
    return event, products, weights, votes


@pytest.mark.parametrize("count", [3, MOST_INLINE, MOST_INLINE + 1, MOST_MEMBERS])
def test_all_numbers_of_few_members_are_logged(tmp_path, count):
    event, products, weights, votes = logged(tmp_path, count)
    found = [torch.from_numpy(np.array(event[key], np.float32)) for key in ("products", "mixing", "votes")]
    expected = (products, weights[None], votes[None])
    assert all(each.equal(other) for each, other in zip(found, expected, strict=True))
    assert (len(event["members"]), "of" in event) == (count, False)
    assert count <= MOST_INLINE or (tmp_path / "metrics.jsonl").stat().st_size < MOST_MEMBERS * 40


def test_of_many_members_some_are_logged_with_their_own_numbers(tmp_path):
    event, products, weights, votes = logged(tmp_path, 1000)
    assert (len(event["members"]), event["of"]) == (MOST_MEMBERS, 1000)
    indices = [int(name.removeprefix("site-")) for name in event["members"]]
    among = [each[indices][:, indices] for each in (products, weights, votes)]
    assert torch.from_numpy(event["products"]).equal(among[0])
    assert torch.from_numpy(event["mixing"][0])[event["gets"][0]].equal(among[1])
    assert torch.from_numpy(event["votes"][0]).equal(among[2])


@pytest.mark.parametrize(
    ("key", "shape", "type"),
    [
        *(("products", (2, 2), "f4"), ("products", (25, 25), "U1")),
        *(("mixing.00", None, ""), ("mixing.00", (1, 25), "f4"), ("votes", (25,), "f4")),
    ],
)
def test_damaged_matrices_are_one_line(tmp_path, key, shape, type):
    logged(tmp_path, 25)
    (file,) = (tmp_path / "matrices").iterdir()
    arrays = {name: value for name, value in np.load(file).items() if name != key}
    np.savez(file, **arrays, **({key: np.zeros(shape, type)} if shape else {}))
    with pytest.raises(UserError, match=file.name) as error:
        RunFiles(tmp_path).of("aggregation")
    assert len(error.value.lines) == 1


@pytest.mark.parametrize("name", ["../metrics.jsonl", "/etc/passwd", "round-000000-0.npz/../../x.npz", 3])
def test_an_event_names_no_file_elsewhere(tmp_path, name):
    logged(tmp_path, 25)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lines[0]["matrices"] = name
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match="matrices"):
        RunFiles(tmp_path).of("aggregation")


def test_one_kind_is_read_without_the_others(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"event": "aggregation", this is not read}\n{"event": "round", "round": 0, "seconds": 1.0, "refused": {}}\n'
    )
    assert [event["round"] for event in RunFiles(tmp_path).of("round")] == [0]


def test_a_refused_update_counts_as_sent(tmp_path):
    log = EventLog(tmp_path, START)
    for round in range(2):
        refused = {"home": "too long", "office": "failed"}
        log.aggregated(round, ServerRecord(round, (), {}, refused, unused=("home",)), 1.0)
    log.close()
    assert log.updates == {"home": 2}
