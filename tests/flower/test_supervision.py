"""Commands of a federation whose processes die, whose ports are taken, or that are told to stop: real processes."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from deployment import COMMAND, descendants, wait_for
from federations import SWIN, small_experiment
from hostile import Node, obliging

from fedhca2.federation.flower.deploy import superlink
from fedhca2.federation.flower.deploy.link import Link, make_keys
from fedhca2.federation.flower.records import header_of
from warm import Warm

pytestmark = pytest.mark.slow
SITE = "home"
SITE_FILE = f"client: {SITE}\ntasks: [depth]\nstate: state\n"
SOON = 15.0  # seconds
LISTENING = "0A"  # in /proc/net/tcp
READY = re.compile(r"connect to (\S+); the SuperLink is at (\S+)")


@pytest.fixture(scope="module")
def experiment():
    return small_experiment(rounds=1, model=SWIN, clients=[{"name": SITE, "data": "indoor", "tasks": ["depth"]}])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("supervision") / "keys"
    make_keys(folder, [SITE])
    return folder


class Command:
    """A command, its output, and the processes that it started."""

    def __init__(self, folder, *words):
        self._output = folder / "output"
        with self._output.open("w") as output:
            self.process = Warm([COMMAND, "flower", *map(str, words)], cwd=folder, stdout=output, stderr=output)

    @property
    def output(self):
        return self._output.read_text()

    @property
    def processes(self):
        """Its process, and all that it started."""
        return [self.process.pid, *descendants(self.process.pid)]

    def listening(self, address):
        """The number of its process that listens at an address."""
        port = f":{int(address.rpartition(':')[2]):04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        nodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(port) and row[3] == LISTENING}
        return next(pid for pid in self.processes if nodes & {*map(os.readlink, Path(f"/proc/{pid}/fd").iterdir())})

    def wait(self, seconds=SOON):
        """Its exit code, and its output."""
        return self.process.wait(seconds), self.output


@contextmanager
def running(folder, *words):
    command = Command(folder, *words)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()


@contextmanager
def serving(folder, experiment, keys, *options):
    """A coordinator that waits for its site; yields its command, and the addresses of its proxy and its SuperLink."""
    (folder / "experiment.yaml").write_text(experiment.to_yaml())
    options = ["--listen", "127.0.0.1:0", "--out", folder / "run", "--keys", keys, *options]
    with running(folder, "serve", folder / "experiment.yaml", *options) as command:
        found = wait_for(lambda: READY.search(command.output) or command.process.poll() is not None)
        assert found is not True, command.output
        wait_for((folder / "run" / "metrics.jsonl").exists)
        yield command, *found.groups()


def left(pids):
    """Which of these processes have not ended. One that nobody has waited for is a zombie, Z."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", *map(str, pids)], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if "Z" not in line]


def accepts(address):
    """Whether somebody accepts connections there."""
    host, _, port = address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


@contextmanager
def silent_site(public, keys, experiment):
    """A site that introduces itself, and never carries out an order; yields an event that an order sets."""
    app, ordered = obliging(experiment, SITE), threading.Event()

    def answer(message, context=None):
        if "order" in header_of(message.content):
            ordered.set()
            threading.Event().wait()
        return app(message, context)

    node = Node(public, keys / "sites" / SITE)
    node.activate()
    node.serve(answer, threading.Event())
    yield ordered
    node.client.close()


@pytest.mark.parametrize("in_a_round", [False, True])
def test_a_dead_superlink_ends_the_run_at_once_and_no_site_is_blamed(experiment, keys, tmp_path, in_a_round):
    with serving(tmp_path, experiment, keys) as (command, public, link), ExitStack() as stack:
        if in_a_round:
            assert stack.enter_context(silent_site(public, keys, experiment)).wait(SOON)
        os.kill(command.listening(link), signal.SIGKILL)
        code, output = command.wait()
        assert code == 2
        assert re.search(r"error: .*SuperLink.*code -9.*resume with: fedhca2 flower serve", output), output
        assert SITE not in output.partition("error:")[2]


def test_a_dead_proxy_is_started_again(experiment, keys, tmp_path):
    with serving(tmp_path, experiment, keys) as (command, public, _):
        os.kill(command.listening(public), signal.SIGKILL)
        wait_for(lambda: not accepts(public), SOON, 0.01)
        wait_for(lambda: accepts(public), SOON)
        with silent_site(public, keys, experiment) as ordered:
            assert ordered.wait(SOON)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("in_a_round", [False, True])
def test_serve_ends_soon_when_it_is_told_to_and_leaves_nothing_behind(experiment, keys, tmp_path, number, in_a_round):
    with serving(tmp_path, experiment, keys) as (command, public, _), ExitStack() as stack:
        if in_a_round:
            assert stack.enter_context(silent_site(public, keys, experiment)).wait(SOON)
        pids = command.processes
        command.process.send_signal(number)
        code, output = command.wait()
        assert (code, "resume with: fedhca2 flower serve" in output) == (128 + number, True)
        wait_for(lambda: left(pids) == [], SOON)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_link_ends_soon_when_it_is_told_to_and_leaves_nothing_behind(keys, tmp_path, number):
    with running(tmp_path, "link", "--keys", keys, "--listen", "127.0.0.1:0", "--superlink", "127.0.0.1:0") as command:
        wait_for(lambda: READY.search(command.output))
        pids = command.processes
        command.process.send_signal(number)
        assert command.wait()[0] == 128 + number
        wait_for(lambda: left(pids) == [], SOON)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_site_ends_soon_when_it_is_told_to_and_leaves_nothing_behind(keys, tmp_path, number):
    (tmp_path / "site.yaml").write_text(SITE_FILE)
    options = ["--superlink", "127.0.0.1:9", "--keys", keys / "sites" / SITE]
    with running(tmp_path, "site", tmp_path / "site.yaml", *options) as command:
        wait_for(lambda: "Starting Flower SuperNode" in command.output)
        pids = command.processes
        command.process.send_signal(number)
        assert command.wait()[0] == 128 + number
        wait_for(lambda: left(pids) == [], SOON)


@pytest.mark.parametrize("what", ["link", "serve"])
def test_a_port_that_is_taken_is_an_error_in_a_line(keys, tmp_path, what):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = (
            ["serve", "demo", "--out", tmp_path / "run"] if what == "serve" else ["link", "--superlink", "127.0.0.1:0"]
        )
        with running(tmp_path, *words, "--keys", keys, "--listen", address) as command:
            code, output = command.wait()
    assert (code, output.count("\n"), f"--listen: expected an address to listen on, got {address}" in output) == (
        2,
        1,
        True,
    )


@pytest.mark.parametrize(
    ("superlink", "folder", "change", "said"),
    [
        ("127.0.0.1:9", ".", None, "sites/NAME"),
        ("127.0.0.1:9", "nowhere", None, "nowhere"),
        ("localhost", f"sites/{SITE}", None, "--superlink: expected HOST:PORT"),
        ("127.0.0.1:9", f"sites/{SITE}", "node.key", "node.key: expected"),
        ("127.0.0.1:9", f"sites/{SITE}", "ca.crt", "ca.crt: expected"),
    ],
)
def test_a_site_with_a_mistake_that_cannot_heal_ends_with_a_line(keys, tmp_path, superlink, folder, change, said):
    copy = shutil.copytree(keys, tmp_path / "keys")
    if change:
        (copy / folder / change).write_text("rubbish")
    (tmp_path / "site.yaml").write_text(SITE_FILE)
    with running(tmp_path, "site", "site.yaml", "--superlink", superlink, "--keys", copy / folder) as command:
        code, output = command.wait()
    assert (code, output.count("error: "), said in output, "Traceback" in output) == (2, 1, True, False), output


@pytest.mark.parametrize("words", [["link"], ["serve", "demo"]])
def test_a_coordinator_without_keys_is_told_that_they_are_missing(tmp_path, words):
    with running(tmp_path, *words, "--keys", "nowhere", "--listen", "127.0.0.1:0") as command:
        code, output = command.wait()
    assert (code, output.count("\n"), "--keys nowhere: expected a folder" in output) == (2, 1, True), output


def test_coordinators_on_one_link_do_not_take_each_others_tasks(keys, tmp_path, monkeypatch):
    runs, together = [], threading.Barrier(4)

    def acquire_together(*wanted, acquire=superlink.acquire, **more):
        together.wait()  # until the runs of all have started
        return acquire(*wanted, **more)

    def coordinate(link):
        with link.run() as grid:
            runs.append(grid.run.run_id)

    monkeypatch.setattr(superlink, "acquire", acquire_together)
    with Link(keys, "127.0.0.1:0", logs=tmp_path) as link:
        threads = [threading.Thread(target=coordinate, args=[link.superlink], daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    assert len({*runs}) == len(threads)


@pytest.mark.parametrize(("option", "value"), [("--set", "rounds=9"), ("--out", "elsewhere")])
def test_a_resumed_run_refuses_options_without_effect(experiment, keys, tmp_path, option, value):
    with serving(tmp_path, experiment, keys) as (command, *_):
        command.process.terminate()
        command.wait()
    with running(tmp_path, "serve", tmp_path / "run", "--keys", keys, option, value) as command:
        code, output = command.wait()
    assert (code, f"error: {option}: expected none" in output) == (2, True), output
