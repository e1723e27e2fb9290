"""A site whose SuperNode goes deaf starts it again. Both are processes here, as they are for a user."""

import ssl
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from deployment import Deployment, hurry, wait_for, warmed
from federations import SWIN, small_experiment
from flwr.app import Message
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from fedhca2.federation.flower.deploy.processes import stop
from fedhca2.federation.flower.local import start_site
from fedhca2.federation.flower.records import CANNOT, header_of, pack

pytestmark = pytest.mark.slow
SITE = "home"
PATIENCE = 30.0  # seconds
ONLINE, ENDED = "SuperNode ID", "the SuperNode ended with code 1"  # in a site's log
ACTIVATE, BEAT = "/v1/fleet/activate-node", "/v1/fleet/send-node-heartbeat"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    experiment = small_experiment(model=SWIN, clients=[{"name": SITE, "data": "indoor", "tasks": ["depth"]}])
    with hurry(), Deployment(tmp_path_factory.mktemp("deployment"), experiment) as found:
        yield found


@contextmanager
def site(deployment, superlink, folder):
    """A site's process; yields a function that returns its log, which is also its SuperNodes'."""
    keys = deployment.keys / "sites" / SITE
    with warmed():
        process = start_site(superlink, deployment.files[SITE], keys, folder / "flwr", folder)
    try:
        yield (folder / f"{SITE}.log").read_text
    finally:
        stop([process])


class Impostor(ThreadingHTTPServer):
    """Has a SuperLink's certificate, and answers every request with an empty message unless the test names another."""

    daemon_threads = True

    def __init__(self, keys, answers):
        super().__init__(("127.0.0.1", 0), Answering)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(keys / "superlink.crt", keys / "superlink.key")
        self.address, self.speaks_tls = f"127.0.0.1:{self.server_port}", True
        self.answers, self.requests = answers, []

    def get_request(self):
        connection, address = super().get_request()
        if self.speaks_tls:
            return self.context.wrap_socket(connection, server_side=True), address
        with connection:
            connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        raise OSError("nobody to hear")


class Answering(BaseHTTPRequestHandler):
    """Closes each connection after its answer, so that the next request needs another handshake."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.answers.get(self.path, b""))

    def log_message(self, *_): ...


@contextmanager
def impostor(deployment, answers):
    with Impostor(deployment.keys, answers) as found:
        Thread(target=found.serve_forever, args=[0.05], daemon=True).start()
        try:
            yield found
        finally:
            found.shutdown()


def test_a_supernode_that_gives_up_on_a_handshake_is_started_again(deployment, tmp_path):
    answers = {BEAT: SendNodeHeartbeatResponse(success=True).SerializeToString()}
    with impostor(deployment, answers) as link, site(deployment, link.address, tmp_path) as log:
        wait_for(lambda: ONLINE in log(), PATIENCE)
        link.speaks_tls = False
        wait_for(lambda: ENDED in log(), PATIENCE)
        link.speaks_tls = True
        assert wait_for(lambda: link.requests.count(ACTIVATE) >= 2, PATIENCE)


def test_a_supernode_whose_heartbeat_gets_an_unexpected_answer_is_started_again(deployment, tmp_path):
    with impostor(deployment, {BEAT: b""}) as link, site(deployment, link.address, tmp_path) as log:
        assert wait_for(lambda: link.requests.count(ACTIVATE) >= 2, PATIENCE)
        assert ENDED in log()


@pytest.fixture(scope="module")
def grid(deployment):
    with deployment.link.run() as found:
        yield found


def node(grid):
    """The site's node, once it is online."""
    return wait_for(lambda: next(iter(grid.get_nodes()), None), PATIENCE)


def send(grid):
    """Send the site a message that it can only decline."""
    return grid.push_messages([Message(pack({"experiment": None}), node(grid).node_id, "query")])


def is_answered(grid, sent):
    [reply] = wait_for(lambda: list(grid.pull_messages(sent)), PATIENCE)
    assert reply.has_content(), reply.error
    return CANNOT in header_of(reply.content)


@pytest.mark.parametrize("refused", ["pull-messages", "push-object"])
def test_a_supernode_that_waits_for_a_reply_it_refused_is_started_again(
    deployment, grid, refused, tmp_path, monkeypatch
):
    """If a task dies at one of these requests, Flower's SuperNode neither takes its reply nor makes one up."""
    (tmp_path / "losing").write_text(f"/v1/runtime/{refused}")
    monkeypatch.setenv("LOSING", str(tmp_path / "losing"))
    with site(deployment, deployment.public, tmp_path) as log:
        wait_for(lambda: ONLINE in log(), PATIENCE)
        deaf = node(grid).last_activated_at
        send(grid)
        wait_for(lambda: node(grid).last_activated_at != deaf, PATIENCE)
        assert "a reply could not be delivered" in log()
        assert "the SuperNode did not take a reply; starting it again" in log()
        assert is_answered(grid, send(grid))


def test_a_supernode_that_takes_its_replies_stays(deployment, grid, tmp_path):
    with site(deployment, deployment.public, tmp_path) as log:
        wait_for(lambda: ONLINE in log(), PATIENCE)
        first = node(grid).last_activated_at
        assert is_answered(grid, send(grid))
        assert is_answered(grid, send(grid))
        assert node(grid).last_activated_at == first


@pytest.mark.parametrize(("more", "threads"), [({"threads": 3}, "3 threads"), ({"turns": "turns"}, "1 thread")])
def test_a_site_uses_as_many_threads_as_its_file_says_and_one_with_turns(deployment, tmp_path, more, threads):
    deployment.say_little(SITE, **more)
    with site(deployment, deployment.public, tmp_path) as log:
        assert wait_for(lambda: f"with {threads} on the CPU" in log(), PATIENCE)
