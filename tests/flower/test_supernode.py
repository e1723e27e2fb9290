"""A site's SuperNode, when something else than its SuperLink answers."""

import socket
import threading
from contextlib import suppress

import pytest
from deployment import hurry, wait_for, warmed

from fedhca2.federation.flower.keys import make_keys
from fedhca2.federation.flower.link import Link
from fedhca2.federation.flower.processes import free_port, start, stop
from fedhca2.federation.flower.supernode import GAVE_UP
from fedhca2.federation.flower.worker import SiteKeys, _command

pytestmark = pytest.mark.slow


@pytest.fixture
def link(tmp_path):
    make_keys(tmp_path / "keys", ["home"])
    with hurry(), warmed(), Link(tmp_path / "keys", f"127.0.0.1:{free_port()}", logs=tmp_path) as found:
        found.register(["home"])
        yield found


def answer_without_tls(address):
    """Answer everyone at an address with plain text."""
    host, port = address.split(":")
    with suppress(OSError), socket.create_server((host, int(port))) as listening:
        while True:
            connected, _ = listening.accept()
            with connected:
                connected.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")


def test_a_supernode_that_gives_up_on_a_handshake_ends(link, tmp_path):
    log = tmp_path / "supernode.log"
    command = _command(link.public, SiteKeys(link.keys / "sites" / "home"), free_port())
    node = start(command, tmp_path / "home", log)
    try:
        wait_for(lambda: "SuperNode ID" in log.read_text(), 60)
        stop([link.processes["proxy"]])
        threading.Thread(target=answer_without_tls, args=[link.public], daemon=True).start()
        assert node.wait(60) == GAVE_UP
    finally:
        stop([node])
