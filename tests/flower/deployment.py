"""A real deployment on loopback for the tests: a SuperLink, its proxy and sites as processes, with TLS and keys."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedhca2.federation.flower.keys import make_keys
from fedhca2.federation.flower.link import Link
from fedhca2.federation.flower.local import start_site, write_sites
from fedhca2.federation.flower.processes import free_port, start, stop

# Flower's patience is in its code: 2 x 30 s for a node without a heartbeat, 180 s for half a reply. Its processes
# import this first; 10 s is the shortest interval that a SuperLink takes.
IMPATIENT = """
import sys

program = " ".join(sys.orig_argv[1:3])
if "flower-supernode" in program:
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection

    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
elif "superlink" in program:
    from flwr.supercore.corestate import in_memory_corestate

    in_memory_corestate.OBJECT_PUSH_SESSION_TTL_SECONDS = 10
"""
COMMAND = str(Path(sys.executable).parent / "fedhca2")


def wait_for(condition, seconds=200.0, step=0.1):
    """The first true value of a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(step)
    raise AssertionError(f"{condition} should be true within {seconds} s")


def descendants(pid):
    """All processes below one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    children = [child for child, parent in pairs if parent == pid]
    return children + [below for child in children for below in descendants(child)]


@contextmanager
def impatience(folder):
    """Flower notices within 20 s that a node is gone, where it takes 60."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(IMPATIENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


class Deployment:
    """Processes by name; everything ends with it."""

    def __init__(self, folder: Path, experiment) -> None:
        self.folder, self.experiment = folder, experiment
        self.keys = folder / "keys"
        make_keys(self.keys, [spec.name for spec in experiment.specs])
        self.files = write_sites(experiment, folder / "sites")
        self.config = folder / "experiment.yaml"
        self.config.write_text(experiment.to_yaml())
        self.processes = {}
        self._link = Link(self.keys, f"127.0.0.1:{free_port()}", logs=folder)
        self.link, self.public = self._link.superlink, self._link.public

    def __enter__(self):
        self._link.__enter__().register(self.files)
        return self

    def __exit__(self, *_):
        stop([self.processes[name] for name in reversed(self.processes)])
        self._link.__exit__()

    def start_site(self, name):
        keys = self.keys / "sites" / name
        self.processes[name] = start_site(self.public, self.files[name], keys, self.folder / name, self.folder)

    def start_stock_site(self, name):
        """Flower's own way: a process for every message."""
        keys = self.keys / "sites" / name
        command = ["flower-supernode", "--superlink", self.public, "--root-certificates", str(keys / "ca.crt")]
        command += ["--auth-supernode-private-key", str(keys / "node.key"), "--port", str(free_port())]
        command += ["--node-config", f'site="{self.files[name]}"']
        self.processes[name] = start(command, self.folder / name, self.folder / f"{name}.log")

    def serve(self, source, out, *options):
        command = ["fedhca2", "flower", "serve", str(source), "--superlink", self.link.address]
        command += ["--keys", str(self.keys), *(["--out", str(out)] if source != out else []), *options]
        self.processes["serve"] = start(command, self.folder / "serve", self.folder / "serve.log")
        return self.processes["serve"]

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name):
        """As a machine that loses its power: the process and all that it started, at once."""
        process = self.processes[name]
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
