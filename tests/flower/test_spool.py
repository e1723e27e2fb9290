"""Replies in files until they are used: the same federation, in memory that does not grow with the clients."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from federations import Federation, perform, small_experiment

from fedhca2.aggregation import MappedRow
from fedhca2.federation.flower import fleet as module
from fedhca2.federation.flower.fleet import spool
from fedhca2.messages import Reply
from fedhca2.params import Slot
from warm import output_of

pytestmark = pytest.mark.slow


def scores(folder, method, **terms):
    experiment = small_experiment(rounds=2, method=method)
    return Federation(experiment, folder).run(**terms).clients


@pytest.mark.parametrize("method", ["fedhca2", "fedamp", "matfl"])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_federation_with_spooled_replies_gives_the_same_scores(method, wire, tmp_path):
    found = scores(tmp_path / "spooled", method, wire=wire, spool=True)
    assert found == scores(tmp_path / "kept", method, wire=wire)


def test_replies_are_pulled_one_at_a_time_and_mapped(federation, monkeypatch):
    grid, _, fleet = federation(spool=True)
    asked, pull = [], grid.pull_messages
    monkeypatch.setattr(grid, "pull_messages", lambda ids: asked.append(len(ids)) or pull(ids))
    fleet.gather()
    replies = perform(fleet)
    assert (len(replies), max(asked)) == (3, 1)
    assert isinstance(replies["home"].rows[Slot("encoder")], MappedRow)


@contextmanager
def full_file(**_):
    with Path("/dev/full").open("wb") as file:
        yield file


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NamedTemporaryFile", full_file)
    with pytest.raises(OSError, match=str(tmp_path)):
        spool(Reply("a", 0, {Slot("encoder"): torch.ones(5000)}), tmp_path, torch.float32)


def test_a_spooled_row_is_in_a_file_that_has_no_name(tmp_path):
    values = torch.arange(5000.0)
    row = spool(Reply("a", 0, {Slot("encoder"): values}), tmp_path, torch.float32).rows[Slot("encoder")]
    row.release()  # from here on its values are the file's
    assert torch.equal(row, values)
    assert not list(tmp_path.iterdir())


MANY = """
import sys
from pathlib import Path
import torch
from fedhca2.federation.flower.fleet import spool
from fedhca2.messages import Reply
from fedhca2.params import Slot

def peak(clients):
    Path("/proc/self/clear_refs").write_text("5")
    rows = {Slot("encoder"): torch.ones(1_000_000)}
    kept = [spool(Reply(str(i), 0, rows), Path(sys.argv[1]), torch.float32) for i in range(clients)]
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

peak(2)
print(peak(5), peak(105))
"""


def test_memory_does_not_grow_with_replies(tmp_path):
    few, many = map(float, output_of("-c", MANY, tmp_path).split())
    assert many - few < 40  # MiB; 100 rows more are 381 MiB
