"""A SuperLink and its proxy that serve several runs."""

import os
import signal
import threading
from contextlib import suppress

import httpx
import pytest
from deployment import wait_for
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from hostile import Node

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.link import Link, make_keys

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    folder = tmp_path_factory.mktemp("link")
    make_keys(folder / "keys", ["home", "shop"])
    # Started from nothing, as for a user; other tests use warm processes.
    with Link(folder / "keys", "127.0.0.1:0", logs=folder) as found:
        found.register(["home", "shop"])

        def keep():
            with suppress(UserError):
                found.wait()

        keeping = threading.Thread(target=keep)
        keeping.start()
        yield found
        os.kill(found.processes["superlink"].pid, signal.SIGKILL)
        keeping.join(30)
        assert not keeping.is_alive()


def is_there(node):
    try:
        request = SendNodeHeartbeatRequest(node=node.node, heartbeat_interval=30)
        return node.client.SendNodeHeartbeat(request).success
    except httpx.TransportError:
        return False


def test_sites_outlast_a_proxy_that_is_killed(link):
    with Node(link.public, link.keys / "sites" / "home") as home:
        killed = link.processes["proxy"]
        killed.kill()
        killed.wait()
        assert not is_there(home)
        assert wait_for(lambda: is_there(home), 60)


def test_a_site_that_was_evicted_is_let_in_no_more(link):
    with suppress(httpx.HTTPStatusError), Node(link.public, link.keys / "sites" / "shop") as shop:
        link.superlink.evict("shop")
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            is_there(shop)
    [evicted] = [one for one in link.superlink.registrations() if one.name == "shop"]
    assert evicted.unregistered_at


def test_nobody_is_evicted_who_was_not_registered(link):
    with pytest.raises(UserError, match=r"nobody.*registered"):
        link.superlink.evict("nobody")
