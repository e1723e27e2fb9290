"""Replies in files until they are used: the same federation, in memory that does not grow with the clients."""

import pytest
import torch
from federations import Federation, peak, perform, reset_peak, small_experiment

from fedhca2.aggregation import MappedRow
from fedhca2.federation.flower.fleet import spool
from fedhca2.federation.gate import attempt
from fedhca2.messages import Reply
from fedhca2.params import Slot

pytestmark = pytest.mark.slow
ENCODER = Slot("encoder")


@pytest.mark.parametrize("method", ["fedhca2", "fedamp", "matfl"])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_federation_with_spooled_replies_gives_the_same_scores(method, wire, tmp_path):
    spooled, kept = (Federation(small_experiment(method=method), tmp_path / name) for name in ("spooled", "kept"))
    assert spooled.run(wire=wire, spool=True).clients == kept.run(wire=wire).clients


def test_spooled_replies_are_pulled_one_at_a_time(federation, monkeypatch):
    grid, _, fleet = federation(spool=True)
    batches, pull = [], grid.pull_messages
    monkeypatch.setattr(grid, "pull_messages", lambda ids: batches.append(len(ids)) or pull(ids))
    fleet.gather()
    replies = perform(fleet)
    assert (len(replies), max(batches)) == (3, 1)
    assert isinstance(replies["home"].rows[ENCODER], MappedRow)


def test_an_error_of_the_disk_names_the_folder_and_is_no_fault_of_an_answer(tmp_path):
    reply, gone = Reply("a", 0, {ENCODER: torch.ones(5000)}), tmp_path / "gone"
    with pytest.raises(OSError, match=f"{gone}'$"):
        attempt(spool, reply, gone, torch.float32)


def test_a_spooled_row_is_in_a_file_that_has_no_name(tmp_path):
    values = torch.arange(5000.0)
    row = spool(Reply("a", 0, {ENCODER: values}), tmp_path, torch.float32).rows[ENCODER]
    row.release()  # from here on its values are the file's
    assert torch.equal(row, values)
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_replies(tmp_path):
    def peak_with(clients):
        reset_peak()
        rows = {ENCODER: torch.ones(1_000_000)}
        spooled = [spool(Reply(str(number), 0, rows), tmp_path, torch.float32) for number in range(clients)]
        assert len(spooled) == clients
        return peak()

    peak_with(2)
    assert peak_with(105) - peak_with(5) < 40  # MiB; 100 rows more are 381 MiB
