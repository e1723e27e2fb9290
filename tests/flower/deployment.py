"""A real deployment on loopback for the tests: a SuperLink, its proxy and sites as processes, with TLS and keys."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from fedhca2.federation.flower.deploy.link import Link, make_keys
from fedhca2.federation.flower.deploy.processes import listen, start, stop
from fedhca2.federation.flower.local import start_site, write_sites
from warm import Warm

# Every Python process of a federation imports what is in here first.
FIRST = str(Path(__file__).parent / "first_import")
NEEDED = ("client", "tasks", "state", "data")  # in a site's file
READY = re.compile(r"connect to (\S+); the SuperLink is at (\S+)")
COMMAND = str(Path(sys.executable).parent / "fedhca2")


def wait_for(condition, seconds=200.0, step=0.1):
    """Wait for the first true value of a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(step)
    raise AssertionError(f"{condition} should be true within {seconds} s")


def free_port():
    """A free port, for commands that do not take a socket."""
    with listen("127.0.0.1:0", "port")[0] as probe:
        return probe.getsockname()[1]


def descendants(pid):
    """All processes below one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    children = [child for child, parent in pairs if parent == pid]
    return children + [below for child in children for below in descendants(child)]


@contextmanager
def hurry():
    """Make Flower's processes wait less from now on; see `first_import`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", FIRST, prepend=os.pathsep)
        patch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.3")
        yield


@contextmanager
def warmed():
    """Start commands without the seconds of imports from now on; see `warm`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Warm)
        yield


def left(pids):
    """Which of these processes have not ended. One that nobody has waited for is a zombie, Z."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", *map(str, pids)], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if "Z" not in line]


class Command:
    """A command of the package in a folder, its output, and the processes that it started."""

    def __init__(self, folder, *words, output="output", **environment):
        self._output = folder / output
        with self._output.open("w") as file:
            streams = {"stdout": file, "stderr": file, "cwd": folder, "env": {**os.environ, **environment}}
            self.process = Warm([COMMAND, *map(str, words)], **streams)

    @property
    def output(self):
        return self._output.read_text()

    @property
    def processes(self):
        """Its process, and all that it started."""
        return [self.process.pid, *descendants(self.process.pid)]

    def wait(self, seconds):
        """Its exit code, and its output."""
        return self.process.wait(seconds), self.output


@contextmanager
def running(folder, *words):
    """A command of a federation, until the end."""
    command = Command(folder, "flower", *words)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()


@contextmanager
def serving(folder, experiment, keys, *options):
    """A coordinator that waits for its sites; yields its command, and the addresses of its proxy and its SuperLink."""
    (folder / "experiment.yaml").write_text(experiment.to_yaml())
    options = ["--listen", "127.0.0.1:0", "--out", folder / "run", "--keys", keys, *options]
    with running(folder, "serve", folder / "experiment.yaml", *options) as command:
        found = wait_for(lambda: READY.search(command.output) or command.process.poll() is not None)
        assert found is not True, command.output
        wait_for((folder / "run" / "metrics.jsonl").exists)
        yield command, *found.groups()


class Deployment:
    """Processes by name, which all end with it."""

    def __init__(self, folder: Path, experiment) -> None:
        self.folder, self.experiment = folder, experiment
        self.keys, self.contacts = folder / "keys", folder / "contacts"  # of the sites' processes
        make_keys(self.keys, [spec.name for spec in experiment.specs])
        self.files = write_sites(experiment, folder / "sites")
        self.config = folder / "experiment.yaml"
        self.config.write_text(experiment.to_yaml())
        self.processes = {}
        self._link = Link(self.keys, "127.0.0.1:0", logs=folder)

    def __enter__(self):
        with warmed():
            self._link.__enter__().register(self.files)
        self.link, self.public = self._link.superlink, self._link.public
        return self

    def __exit__(self, *_):
        stop([self.processes[name] for name in reversed(self.processes)])
        self._link.__exit__()

    def start_site(self, name, how=warmed):
        keys = self.keys / "sites" / name
        with pytest.MonkeyPatch.context() as patch, how():
            patch.setenv("CONTACTS", str(self.contacts))
            self.processes[name] = start_site(self.public, self.files[name], keys, self.folder / name, self.folder)

    def start_stock_site(self, name):
        """Start a site as Flower does: one process per message, here without the seconds of imports."""
        keys = self.keys / "sites" / name
        command = ["flower-supernode", "--superlink", self.public, "--root-certificates", str(keys / "ca.crt")]
        command += ["--auth-supernode-private-key", str(keys / "node.key"), "--port", str(free_port())]
        command += ["--node-config", f'site="{self.files[name]}"']
        with warmed():
            self.processes[name] = start(command, self.folder / name, self.folder / f"{name}.log")

    def say_little(self, name, **more):
        """Give a site the shortest possible file, plus this."""
        path = self.files[name]
        site = {key: value for key, value in yaml.safe_load(path.read_text()).items() if key in NEEDED}
        path.write_text(yaml.safe_dump({**site, **more}))

    def serve(self, source, out, *options):
        command = ["fedhca2", "flower", "serve", str(source), "--superlink", self.link.address]
        command += ["--keys", str(self.keys), *(["--out", str(out)] if source != out else []), *options]
        with warmed():
            self.processes["serve"] = start(command, self.folder / "serve", self.folder / "serve.log")
        return self.processes["serve"]

    def models(self, out, names):
        """What these sites have trained in a run."""
        run = json.loads((out / "flower.json").read_text())["run"]
        state = self.folder / "sites" / "state" / f"{self.experiment.name}-{run}"
        return {name: load_file(state / name / "model.safetensors") for name in names}

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name):
        """Kill the process and everything it started at once, like a power failure."""
        process = self.processes[name]
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
