"""The record keeps every site that was admitted or evicted."""

import json
import subprocess
from contextlib import closing

import pytest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedhca2.federation.flower.deploy.link import make_site_keys
from fedhca2.federation.flower.deploy.superlink import fingerprint
from fedhca2.federation.flower.fleet import Admissions
from fedhca2.run_folder.event_log import START, EventLog
from fedhca2.run_folder.writer import RunFolder
from small_run import small

KEY = public_key_to_bytes(generate_key_pairs()[1])
HOME = {"node_id": 7, "name": "home", "public_key": KEY, "registered_at": "2026-11-16T04:00:00+00:00"}


def events(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path):
    with closing(RunFolder.new(tmp_path / "run")) as folder:
        folder.rewind(small())
        yield folder


def test_a_key_and_its_eviction_are_written_once(folder):
    home = NodeInfo(**HOME)
    admissions = Admissions(lambda: [home], folder)
    admissions.write()
    home.unregistered_at = "2026-11-16T05:00:00+00:00"
    admissions.write()
    Admissions(lambda: [home], folder)
    found = [(event["event"], event["client"]) for event in events(folder.path)]
    assert found == [("registered", "home"), ("evicted", "home")]


def test_a_name_that_steers_a_terminal_is_written_plainly(folder):
    Admissions(lambda: [NodeInfo(**{**HOME, "name": "\x1b[2J" * 1000})], folder)
    assert "\\u001b" not in (folder.path / "metrics.jsonl").read_text()


def test_a_rewind_forgets_rounds_and_half_lines_and_no_keys(tmp_path):
    log = EventLog(tmp_path, START)
    for event in ("round", "registered", "round", "evicted"):
        log.log(event)
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "registered"')
    EventLog(tmp_path, START).close()
    assert [event["event"] for event in events(tmp_path)] == ["registered", "evicted"]


def test_a_fingerprint_is_what_ssh_keygen_prints(tmp_path):
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    make_site_keys(tmp_path / "site", b"")
    key = load_ssh_public_key((tmp_path / "site" / "node.pub").read_bytes())
    try:
        command = ["ssh-keygen", "-lf", str(tmp_path / "site" / "node.pub")]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("no ssh-keygen here")
    assert fingerprint(public_key_to_bytes(key)) in printed
