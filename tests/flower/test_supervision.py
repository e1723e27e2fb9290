"""Commands of a federation whose processes die, whose ports are taken, or that are told to stop: real processes."""

import os
import re
import shutil
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from deployment import left, running, serving, wait_for
from federations import SWIN, small_experiment
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from hostile import Node, obliging, working

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy import superlink
from fedhca2.federation.flower.deploy.link import Link, make_keys
from fedhca2.federation.flower.records import header_of

pytestmark = pytest.mark.slow
SITE, OTHER = "home", "shop"
SITE_FILE = f"client: {SITE}\ntasks: [depth]\nstate: state\n"
SOON = 15.0  # seconds
LISTENING = "0A"  # in /proc/net/tcp


@pytest.fixture(scope="module")
def experiment():
    return small_experiment(rounds=1, model=SWIN, clients=[{"name": SITE, "data": "indoor", "tasks": ["depth"]}])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("supervision") / "keys"
    make_keys(folder, [SITE, OTHER])
    return folder


def listening(command, address):
    """The number of a command's process that listens at an address."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    nodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == LISTENING}
    return next(pid for pid in command.processes if nodes & {*map(os.readlink, Path(f"/proc/{pid}/fd").iterdir())})


@contextmanager
def silent_site(public, keys, experiment):
    """A site that introduces itself, and never carries out an order; yields an event that an order sets."""
    app, ordered = obliging(experiment, SITE), threading.Event()

    def answer(message, context=None):
        if "order" in header_of(message.content):
            ordered.set()
            threading.Event().wait()
        return app(message, context)

    with working(Node(public, keys / "sites" / SITE), answer):
        yield ordered


@pytest.mark.parametrize("in_a_round", [False, True])
def test_a_dead_superlink_ends_the_run_at_once_and_no_site_is_blamed(experiment, keys, tmp_path, in_a_round):
    with serving(tmp_path, experiment, keys) as (command, public, link), ExitStack() as stack:
        if in_a_round:
            assert stack.enter_context(silent_site(public, keys, experiment)).wait(SOON)
        os.kill(listening(command, link), signal.SIGKILL)
        code, output = command.wait(SOON)
        assert code == 2
        assert re.search(r"error: .*SuperLink.*code -9.*resume with: fedhca2 flower serve", output), output
        assert SITE not in output.partition("error:")[2]


@contextmanager
def started(what, folder, experiment, keys):
    """A command that serves, waits for sites, or works as one."""
    if what.startswith("serve"):
        with serving(folder, experiment, keys) as (command, public, _), ExitStack() as stack:
            if what == "serve in a round":
                assert stack.enter_context(silent_site(public, keys, experiment)).wait(SOON)
            yield command
        return
    (folder / "site.yaml").write_text(SITE_FILE)
    words, ready = {
        "link": (["link", "--listen", "127.0.0.1:0", "--superlink", "127.0.0.1:0", "--keys", keys], "connect to"),
        "site": (
            ["site", "site.yaml", "--superlink", "127.0.0.1:9", "--keys", keys / "sites" / SITE],
            "Starting Flower SuperNode",
        ),
    }[what]
    with running(folder, *words) as command:
        wait_for(lambda: ready in command.output)
        yield command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("what", ["serve", "serve in a round", "link", "site"])
def test_a_command_ends_soon_after_a_signal_and_leaves_nothing_behind(experiment, keys, tmp_path, number, what):
    with started(what, tmp_path, experiment, keys) as command:
        pids = command.processes
        command.process.send_signal(number)
        code, output = command.wait(SOON)
        hint = "resume with: fedhca2 flower serve" in output
        assert (code, hint) == (128 + number, what.startswith("serve"))
        wait_for(lambda: left(pids) == [], SOON)


@pytest.fixture
def taken():
    """An address that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("link --superlink 127.0.0.1:0 --keys KEYS --listen TAKEN", "--listen: expected an address to listen on"),
        ("serve demo --out run --keys KEYS --listen TAKEN", "--listen: expected an address to listen on"),
        ("link --keys nowhere --listen 127.0.0.1:0", "--keys nowhere: expected a folder"),
        ("serve demo --keys nowhere --listen 127.0.0.1:0", "--keys nowhere: expected a folder"),
        ("site site.yaml --superlink 127.0.0.1:9 --keys KEYS", "sites/NAME"),
        ("site site.yaml --superlink 127.0.0.1:9 --keys nowhere", "nowhere"),
        ("site site.yaml --superlink localhost --keys KEYS/sites/home", "--superlink: expected HOST:PORT"),
        ("site site.yaml --superlink 127.0.0.1:9 --keys KEYS/sites/bad.key", "node.key: expected"),
        ("site site.yaml --superlink 127.0.0.1:9 --keys KEYS/sites/bad.crt", "ca.crt: expected"),
    ],
)
def test_a_permanent_mistake_is_an_error_in_one_line(keys, taken, tmp_path, words, error):
    copy = shutil.copytree(keys, tmp_path / "keys")
    for name, bad in {"bad.key": "node.key", "bad.crt": "ca.crt"}.items():
        shutil.copytree(copy / "sites" / SITE, copy / "sites" / name)
        (copy / "sites" / name / bad).write_text("rubbish")
    (tmp_path / "site.yaml").write_text(SITE_FILE)
    with running(tmp_path, *words.replace("KEYS", "keys").replace("TAKEN", taken).split()) as command:
        code, output = command.wait(SOON)
    assert (code, output.count("error: "), error in output, "Traceback" in output) == (2, 1, True, False), output


@pytest.fixture(scope="module")
def link(keys, tmp_path_factory):
    """A SuperLink and its proxy for several runs, started from nothing, as for a user; others here are warm."""
    with Link(keys, "127.0.0.1:0", logs=tmp_path_factory.mktemp("link")) as found:
        found.register([SITE, OTHER])
        yield found
        os.kill(found.processes["superlink"].pid, signal.SIGKILL)
        with pytest.raises(UserError, match="code -9"):
            found.wait()


def is_there(node):
    try:
        request = SendNodeHeartbeatRequest(node=node.node, heartbeat_interval=30)
        return node.client.SendNodeHeartbeat(request).success
    except httpx.TransportError:
        return False


def test_sites_outlast_a_proxy_that_is_killed(link):
    with Node(link.public, link.keys / "sites" / SITE) as node:
        killed = link.processes["proxy"]
        killed.kill()
        killed.wait()
        assert not is_there(node)
        assert wait_for(lambda: is_there(node), 60)


def test_an_evicted_site_is_refused(link):
    with suppress(httpx.HTTPStatusError), Node(link.public, link.keys / "sites" / OTHER) as node:
        link.superlink.evict(OTHER)
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            is_there(node)
    [evicted] = [one for one in link.superlink.registrations() if one.name == OTHER]
    assert evicted.unregistered_at


def test_nobody_is_evicted_who_was_not_registered(link):
    with pytest.raises(UserError, match=r"nobody.*registered"):
        link.superlink.evict("nobody")


def test_coordinators_on_one_link_do_not_take_each_others_tasks(link, monkeypatch):
    runs, together = [], threading.Barrier(4)

    def acquire_together(*args, acquire=superlink.acquire, **more):
        together.wait()  # until the runs of all have started
        return acquire(*args, **more)

    def coordinate():
        with link.superlink.run() as grid:
            runs.append(grid.run.run_id)

    monkeypatch.setattr(superlink, "acquire", acquire_together)
    threads = [threading.Thread(target=coordinate, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len({*runs}) == len(threads)


@pytest.mark.parametrize(("option", "value"), [("--set", "rounds=9"), ("--out", "elsewhere")])
def test_a_resumed_run_refuses_options_without_effect(experiment, keys, tmp_path, option, value):
    with serving(tmp_path, experiment, keys) as (command, *_):
        command.process.terminate()
        command.wait(SOON)
    with running(tmp_path, "serve", tmp_path / "run", "--keys", keys, option, value) as command:
        code, output = command.wait(SOON)
    assert (code, f"error: {option}: expected none" in output) == (2, True), output
