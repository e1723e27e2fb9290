"""The same federation here, in Flower's simulation and in NVIDIA FLARE's simulator: seconds and memory.

    python benchmarks/peers.py ours
    python benchmarks/peers.py flower         # needs pip install 'flwr[simulation]'
    python benchmarks/peers.py nvflare        # needs pip install nvflare

FedAvg over four clients with one task and a model of 6.9 million parameters, each of which takes one step
of AdamW with a batch of eight small arrays in a round. Every run is a process of its own; a round takes the difference
between runs of 22 rounds and of two, divided by 20, and all the rest is the start. Processor seconds are less
disturbed by other work than clock seconds. They, and the most memory that all processes of a run have together (PSS),
are sampled twice a second. CHECKPOINT_EVERY=0 turns off our checkpoints of all clients after every round.
"""

import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS, BATCH, SENSORS, READINGS, CLASSES = 4, 8, 3, 64, 4
WIDTH, LENGTH = 16, 2240
SHORT, LONG = 2, 22


class Wide(nn.Module):
    """An encoder of one large layer."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = [WIDTH]
        self.large = nn.Linear(SENSORS * READINGS, WIDTH * LENGTH)

    def forward(self, readings: Tensor) -> list[Tensor]:
        return [self.large(readings.flatten(1)).relu().unflatten(1, (WIDTH, LENGTH))]


class Pool(nn.Module):
    """A decoder."""

    def __init__(self, channels: list[int], width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(sum(channels), width)

    def forward(self, maps: list[Tensor]) -> Tensor:
        return self.hidden(maps[0].mean(dim=2)).relu()


class Line(nn.Linear):
    """A head."""


class Net(nn.Module):
    """The same model in one piece, for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(Wide(), Pool([WIDTH], 32), nn.Linear(32, CLASSES))

    def forward(self, readings: Tensor) -> Tensor:
        return self.parts(readings)


class Readings:
    """Random inputs and classes."""

    shape, labels = (SENSORS, READINGS), {"fault": [f"class {i}" for i in range(CLASSES)]}

    def __init__(self, split: str, count: int = BATCH * CLIENTS) -> None:
        rng = np.random.default_rng(0)
        self.inputs, self.classes = rng.normal(size=(count, *self.shape)), rng.integers(0, CLASSES, count)

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"input": self.inputs[index], "fault": self.classes[index]}


def take_step(net: nn.Module) -> None:
    """One step of AdamW, as a client of the others takes it."""
    data = Readings("train", BATCH)
    inputs, classes = torch.tensor(data.inputs, dtype=torch.float32), torch.tensor(data.classes)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    nn.functional.cross_entropy(net(inputs), classes).backward()
    optimizer.step()


def ours(rounds: int, folder: Path) -> None:
    from fedhca2 import Experiment, run

    here = Path(__file__).resolve()
    experiment = Experiment.parse(
        {
            "rounds": rounds,
            "method": "fedavg",
            "tasks": {"fault": "classification"},
            "model": {
                name: f"{here}:{kind}" for name, kind in (("encoder", "Wide"), ("decoder", "Pool"), ("head", "Line"))
            }
            | {"decoder_width": 32},
            "training": {"batch_size": BATCH, "schedule": {"warmup_epochs": 0}},
            "checkpoints": {"every": int(os.environ.get("CHECKPOINT_EVERY", "1"))},
            "data": {"readings": {"kind": f"{here}:Readings"}},
            "clients": [{"data": "readings", "tasks": ["fault"], "copies": CLIENTS}],
        }
    )
    run(experiment, folder / "run", quiet=True)


def flower(rounds: int, folder: Path) -> None:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()

    @client.train()
    def train(message, context):
        net = Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        take_step(net)
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": BATCH})}
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def main(grid, context):
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        result = strategy.start(grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds)
        assert len(result.train_metrics_clientapp) == rounds, "not all rounds had replies"

    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}})


def nvflare(rounds: int, folder: Path) -> None:
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.recipe.sim_env import SimEnv

    about = {
        "name": "peers",
        "min_clients": CLIENTS,
        "num_rounds": rounds,
        "train_script": str(Path(__file__).resolve()),
    }
    recipe = FedAvgRecipe(model=Net(), train_args="--client", **about)
    recipe.execute(SimEnv(num_clients=CLIENTS, num_threads=CLIENTS, workspace_root=str(folder))).get_result()
    assert list(folder.rglob("FL_global_model.pt")), "no model was aggregated"


def nvflare_client() -> None:
    import nvflare.client as flare

    flare.init()
    net = Net()
    while flare.is_running():
        net.load_state_dict(flare.receive().params)
        take_step(net)
        flare.send(flare.FLModel(params=net.state_dict()))


def measure(name: str, rounds: int) -> np.ndarray:
    """Clock seconds, processor seconds and most GB of a run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        began, most, used = perf_counter(), 0.0, dict[int, float]()
        log = Path(folder) / "log"
        environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
        command = [sys.executable, __file__, name, str(rounds), folder]
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
        ):
            while process.poll() is None:
                seen = _tree(process.pid)
                used |= seen
                most = max(most, sum(map(_pss, seen)))
                sleep(0.5)
        if process.returncode:
            raise RuntimeError(f"{name}: expected exit code 0, got {process.returncode}\n{log.read_text()[-3000:]}")
        return np.array([perf_counter() - began, sum(used.values()), most / 1e6])


def _tree(root: int) -> dict[int, float]:
    """The processor seconds of a process and of all its descendants."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid], used[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    pids = [root]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return {pid: used.get(pid, 0.0) for pid in pids}


def _pss(pid: int) -> float:
    """A process's share of memory, in kB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return float(next((line.split()[1] for line in lines if line.startswith("Pss:")), 0))


if __name__ == "__main__":
    if sys.argv[1:] == ["--client"]:
        nvflare_client()
    elif len(sys.argv) == 4:
        work = getattr(import_module("peers"), sys.argv[1])  # others look classes up by their module, which is no main
        work(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        for peer in sys.argv[1:]:
            short, long = (measure(peer, rounds) for rounds in (SHORT, LONG))
            each = (long - short) / (LONG - SHORT)
            start = short - SHORT * each
            print(f"{peer}: a round {each[1]:.1f} CPU-s ({each[0]:.1f} s), start and end {start[1]:.1f} CPU-s", end=" ")
            print(f"({start[0]:.1f} s), {long[2]:.2f} GB")
