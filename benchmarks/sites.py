"""Many sites as Flower processes on this machine: a tenth of them away in each round, three of them killed for good.

    python benchmarks/sites.py                                # 100 sites, 5 rounds
    python benchmarks/sites.py --sites 20 --rounds 4 --deadline 200 --folder build/sites    # keeps the logs there

Each site is what `fedhca2 flower site` starts: a process for its client and a SuperNode, with its own key, over TLS and
through the proxy. Sites are forks of one process that has imported everything (`tests/warm.py`), which saves their
start and most of their memory; the server, the SuperLink and the proxy are started as usual. Clients are those of
`scaling.py`. Everyone is there in the first round. In each later round except the last, a random tenth leaves (SIGTERM)
at the start and comes back in the next one. Three sites are killed (SIGKILL) at work in these rounds, for good.

Nothing may be lost: whoever replied is in the round's aggregation, every other client is named as missing, and all
survivors have a result. A site that ran all the time and missed a round all the same is counted without a bound: this
machine was too busy for the deadline.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache, partial
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

from row import Row, show
from scaling import clients, most_resident

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.deploy.link import Link, make_keys
from fedhca2.federation.flower.deploy.processes import start, stop
from fedhca2.federation.flower.local import start_site, write_sites

AWAY, KILLED = 0.1, 3
AT_ONCE = 10  # sites that start at the same time
PATIENCE = 300.0  # seconds for these sites to start
# Priorities: on machines of their own, sites take no processor from the server, nor their training from a SuperNode.
# Only root may set the server's. These processes are of different sessions, between which Linux heeds priorities only
# with kernel.sched_autogroup_enabled = 0.
SERVER, SITES, TRAINING = -15, 10, 19
IDLE = 20.0  # seconds in which the cost of waiting is measured
# A site keeps what its training has freed, 100 MB, unless glibc is set to return it: too much for a hundred of them.
FRUGAL = {"MALLOC_TRIM_THRESHOLD_": "1000000", "MALLOC_ARENA_MAX": "2"}
MB = 1e6


class Sites:
    """The sites' processes, by name; all end with it."""

    def __init__(self, experiment: Experiment, keys: Path, public: str, folder: Path) -> None:
        self.files = write_sites(experiment, folder)
        self._keys, self._public, self._folder = keys, public, folder
        self.processes: dict[str, Any] = {}
        self.here: set[str] = set()

    def __enter__(self) -> "Sites":
        return self

    def __exit__(self, *_: object) -> None:
        stop(self.processes.values())

    def start(self, names: list[str]) -> None:
        """Start sites as forks, without waiting for them."""
        popen, subprocess.Popen = subprocess.Popen, _warm()
        try:
            for name in names:
                keys = self._keys / "sites" / name
                home = self._folder / "homes" / name
                self.processes[name] = start_site(self._public, self.files[name], keys, home, self._folder)
        finally:
            subprocess.Popen = popen
        self.here |= {*names}

    def start_all(self) -> None:
        """Start all sites, a few at a time, and wait until they are connected."""
        names = list(self.files)
        for first in range(0, len(names), AT_ONCE):
            some = names[first : first + AT_ONCE]
            self.start(some)
            wait_for(lambda: all(map(self.is_connected, some)), PATIENCE, f"{', '.join(some)} to connect")  # noqa: B023
            for name in some:
                os.setpriority(os.PRIO_PROCESS, self.processes[name].pid, TRAINING)

    def is_connected(self, name: str) -> bool:
        """Whether its SuperNode has ever been accepted."""
        return "SuperNode ID" in self.log(name)

    def log(self, name: str) -> str:
        """What a site has written."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def leave(self, names: list[str]) -> None:
        """Stop sites in order, as a service manager does."""
        for name in names:
            self.processes[name].terminate()
        self.here -= {*names}

    def kill(self, name: str) -> None:
        """Kill a site and its SuperNode at once, like a power failure."""
        for pid in [self.processes[name].pid, *descendants(self.processes[name].pid)]:
            os.kill(pid, signal.SIGKILL)
        self.here.remove(name)

    def memory(self) -> list[int]:
        """Bytes of each running site, without what it shares with the process it was forked from."""
        return [sum(map(own_bytes, family(self.processes[name].pid))) for name in self.here]


class Story:
    """A run with absences and deaths, step by step as its rounds go by."""

    def __init__(self, sites: Sites, out: Path, rounds: int, serve: Any) -> None:
        self.sites, self.out, self.rounds, self.serve = sites, out, rounds, serve
        self.dice = random.Random(0)
        self.away: list[str] = []
        self.killed: list[str] = []
        self.stayed: list[set[str]] = []  # by round, the sites that ran from its start to its end
        self.memory: dict[str, int] = {}

    def play(self, processes: dict[str, Any]) -> None:
        """Let sites come and go until the run is over."""
        for number in range(self.rounds):
            here = set(self.sites.here)
            if 0 < number < self.rounds - 1:
                back, self.away = self.away, self.dice.sample(sorted(here), max(1, round(AWAY * len(here))))
                self.sites.leave(self.away)
                self.sites.start(back)
                for _ in range(ceil((KILLED - len(self.killed)) / (self.rounds - 1 - number))):
                    self._kill(number)
            elif number:
                self.sites.start(self.away)
            self._wait(partial(self._round_is_over, number))
            self.stayed.append(here & self.sites.here)
        self.memory = {name: most_resident(process.pid) for name, process in processes.items()}
        self.memory["a site"] = max(self.sites.memory())
        self._wait(lambda: self.serve.poll() is not None)

    def _kill(self, number: int) -> None:
        """Kill a random site while it carries out its order of this round."""
        name = self.dice.choice(sorted(self.sites.here))
        self._wait(lambda: f"round {number + 1} of" in self.sites.log(name))
        self.sites.kill(name)
        self.killed.append(name)

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.serve.poll():
                raise RuntimeError(f"the server: expected exit code 0, got {self.serve.poll()}: see its log")
            time.sleep(0.2)

    def _round_is_over(self, number: int) -> bool:
        return len(events_of(self.out, "round")) > number

    def rows(self, name: str) -> Iterator[Row]:
        """What became of the sites, and the processes' memory."""
        yield from accounts(name, self.out, set(self.sites.files), self.stayed, self.killed)
        for process, size in self.memory.items():
            yield Row(f"{name}: memory of {process} at most", size / MB, "MB")


def accounts(name: str, out: Path, everyone: set[str], stayed: list[set[str]], killed: list[str]) -> Iterator[Row]:
    """What a run's folder says about replies, absences and results.

    `stayed` holds by round the sites that ran from its start to its end.
    """
    rounds = events_of(out, "round")
    replied = [
        {event["client"] for event in events_of(out, "client") if event["round"] == n} for n in range(len(rounds))
    ]
    mixed = [set[str]() for _ in rounds]
    for event in events_of(out, "aggregation"):
        if event["part"] == "encoder":
            mixed[event["round"]] |= set(event["members"])
    for event, members in zip(rounds, mixed, strict=True):
        yield Row(f"{name}: round {event['round'] + 1}, {len(members)} replies", event["seconds"], "s")
    came, used = sum(map(len, replied)), sum(len(a & b) for a, b in zip(replied, mixed, strict=True))
    yield Row(f"{name}: replies in an aggregation", used / came, f"of {came}", at_least=1)
    named = [len(members | set(event["refused"])) for members, event in zip(mixed, rounds, strict=True)]
    total = len(everyone) * len(rounds)
    yield Row(f"{name}: clients aggregated or named as missing", sum(named) / total, f"of {total}", at_least=1)
    missed = sum(len(ran - members) for ran, members in zip(stayed, mixed, strict=True))
    yield Row(f"{name}: times a running site missed a round", missed, f"of {sum(map(len, stayed))}")
    result = json.loads((out / "result.json").read_text("utf-8"))
    alive = everyone - {*killed}
    yield Row(
        f"{name}: survivors with a result",
        len(alive & set(result["clients"])) / len(alive),
        f"of {len(alive)}",
        at_least=1,
    )
    dead = len({*killed} & set(result["missing"])) / len(killed)
    yield Row(f"{name}: killed sites named as missing", dead, f"of {len(killed)}", at_least=1)


def events_of(out: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in a run's folder so far."""
    path = out / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n") and f'"{kind}"' in line]
    return [event for event in events if event["event"] == kind]


def measure(count: int, rounds: int, deadline: float, folder: Path) -> Iterator[Row]:
    """Run a federation of this many sites in a folder."""
    settings = [f"clients={json.dumps(clients(count))}", f"rounds={rounds}", "participation={fraction: 1}"]
    experiment = Experiment.load("scenes_1000", settings)
    names, keys, out = [spec.name for spec in experiment.specs], folder / "keys", folder / "run"
    make_keys(keys, names)
    config = folder / "experiment.yaml"
    config.write_text(experiment.to_yaml(), "utf-8")
    with ExitStack() as stack:
        link = stack.enter_context(Link(keys, "127.0.0.1:0", logs=folder))
        link.register(names)
        put_first(link.processes["superlink"].pid, link.processes["proxy"].pid)
        sites = stack.enter_context(Sites(experiment, keys, link.public, folder / "sites"))
        began = time.monotonic()
        sites.start_all()
        name = f"{count} sites"
        yield Row(f"{name}: all connected after", time.monotonic() - began, "s")
        parts = {"the SuperLink": [link.processes["superlink"].pid], "the proxy": [link.processes["proxy"].pid]}
        parts["a site"] = [pid for process in sites.processes.values() for pid in family(process.pid)]
        for part, used in busy(parts).items():
            share = 1000 * used / (count if part == "a site" else 1)
            yield Row(f"{name}: {part} while all wait for orders", share, "CPU-ms/s")
        command = ["fedhca2", "flower", "serve", str(config), "--superlink", link.superlink.address, "--spool"]
        command += ["--keys", str(keys), "--out", str(out), "--deadline", str(deadline)]
        command += ["--min-clients", str(count - 2 * round(AWAY * count) - KILLED)]
        serve = start(command, folder / "serve", folder / "serve.log")
        stack.callback(stop, [serve])
        put_first(serve.pid)
        story = Story(sites, out, rounds, serve)
        story.play(
            {"the server": serve, "the SuperLink": link.processes["superlink"], "the proxy": link.processes["proxy"]}
        )
        yield from story.rows(name)


def put_first(*pids: int) -> None:
    """Let all threads of the server's processes go before the sites, if this user may."""
    with suppress(PermissionError):
        for pid in pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), SERVER)


def busy(parts: dict[str, list[int]]) -> dict[str, float]:
    """The processor time that processes use in a second, by part."""
    before = {part: sum(map(processor_time, pids)) for part, pids in parts.items()}
    time.sleep(IDLE)
    return {part: (sum(map(processor_time, pids)) - before[part]) / IDLE for part, pids in parts.items()}


def processor_time(pid: int) -> float:
    """The seconds of processor time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"should have seen {what} within {seconds:g} s")
        time.sleep(0.2)


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    try:
        children = [
            int(word)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *descendants(pid)]


def own_bytes(pid: int) -> int:
    """The memory that would be free without this process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


@cache
def _warm() -> Any:
    """What forks sites, at their priority."""
    os.environ |= FRUGAL
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    warm, before = import_module("warm"), set(descendants(os.getpid()))
    warm._forking()
    for pid in set(descendants(os.getpid())) - before:
        os.setpriority(os.PRIO_PROCESS, pid, SITES)
    return warm.Warm


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure 20 sites; if `quick`, as few as have all roles."""
    with tempfile.TemporaryDirectory(prefix="fedhca2-sites-") as folder:
        yield from measure(8 if quick else 20, rounds=3, deadline=240.0, folder=Path(folder))


def main() -> None:
    """Print the table of one federation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds for a round")
    parser.add_argument("--folder", type=Path, help="a new folder to keep; by default a temporary one")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds should be at least 3: nobody leaves in the first and the last")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all processes are stopped in order
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedhca2-sites-")))
        folder.mkdir(parents=True, exist_ok=True)
        show(measure(options.sites, options.rounds, options.deadline, folder))


if __name__ == "__main__":
    main()
