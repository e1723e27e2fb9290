"""Measure the cost and error of secure aggregation, and show why it does not use Flower's masks.

python benchmarks/secagg.py sums            # one sum of six clients: Flower's SecAgg+ as is, and ours
python benchmarks/secagg.py sketch          # FedHCA²'s weights from sketches, compared with the exact ones
python benchmarks/secagg.py rounds          # rounds of six small sites over loopback, with and without
python benchmarks/secagg.py masks           # find one of Flower's masks by brute force (two minutes on one core)
"""

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from flwr.app import ConfigRecord
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key
from numba import njit
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from wire import second_round

from fedhca2.aggregation.rows import projection
from fedhca2.clients import DeviceSlot
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.flower.local import run_local
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.sum_server import sketch_row
from fedhca2.messages import Order
from fedhca2.methods import ConflictAverse
from fedhca2.params import Slot
from fedhca2.run_folder.records import Watcher
from fedhca2.seeds import derive

ENCODER = Slot("encoder")
CLIENTS, VALUES, CLIP = 6, 1_000_000, 8.0
TARGET, MODULUS, MOST = 2**22, 2**32, 1000.0  # Flower's defaults


class Flower:
    """Clients of Flower's SecAgg+, built from the functions of its mod."""

    def __init__(self, rows):
        self.mod = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
        self.rows, self.shapes = rows, [(1,), rows[0].shape]
        settings = {Key.SAMPLE_NUMBER: len(rows), Key.SHARE_NUMBER: len(rows), Key.THRESHOLD: len(rows) // 2 + 1}
        settings |= {Key.CLIPPING_RANGE: CLIP, Key.TARGET_RANGE: TARGET, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: MOST}
        self.states = [self.mod.SecAggPlusState(nid=number) for number in range(1, len(rows) + 1)]
        for state in self.states:
            self.mod._setup(state, ConfigRecord(settings))
            state.public_keys_dict = {}

    def masked(self):
        """Return what the server gets from each client, as sent."""
        keys = {str(state.nid): [state.pk1, state.pk2] for state in self.states}
        sent = [self.mod._share_keys(state, keys) for state in self.states]
        masked = []
        for state, row in zip(self.states, self.rows, strict=True):
            letters = [
                (source.nid, text)
                for source, own in zip(self.states, sent, strict=True)
                for target, text in zip(own[Key.DESTINATION_LIST], own[Key.CIPHERTEXT_LIST], strict=True)
                if target == state.nid
            ]
            record = {Key.SOURCE_LIST: [source for source, _ in letters], Key.CIPHERTEXT_LIST: [t for _, t in letters]}
            parameters = ndarrays_to_parameters([row])
            answer = self.mod._collect_masked_vectors(state, ConfigRecord(record), int(MOST), parameters)
            masked.append(answer[Key.MASKED_PARAMETERS])
        return masked

    def mean(self, masked):
        """Compute what its workflow computes if no client drops out."""
        everybody = [state.nid for state in self.states]
        record = ConfigRecord({Key.ACTIVE_NODE_ID_LIST: everybody, Key.DEAD_NODE_ID_LIST: []})
        share_lists = [self.mod._unmask(state, record)[Key.SHARE_LIST] for state in self.states]
        total = sum(bytes_to_ndarray(each[1]) for each in masked)
        for number in range(len(self.states)):
            seed = combine_shares([shares[number] for shares in share_lists])
            total = total - pseudo_rand_gen(seed, MODULUS, self.shapes)[1]
        return dequantize([(total % MODULUS) / len(masked)], CLIP, TARGET)[0]


def sums() -> None:
    from secure_clients import Clients, summing

    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 0.05, VALUES).astype(np.float32) for _ in range(CLIENTS)]
    exact = np.mean(np.stack(rows), axis=0, dtype=np.float64)
    table = Table(
        "", "s", "MB up per client", "largest error", title=f"one mean of {CLIENTS} rows of {VALUES:,} values"
    )
    began = perf_counter()
    flower = Flower(rows)
    masked = flower.masked()
    mean = flower.mean(masked)
    spent, size = perf_counter() - began, sum(map(len, masked[0])) / 1e6
    table.add_row("Flower's SecAgg+", f"{spent:.2f}", f"{size:.1f}", f"{np.abs(mean - exact).max():.1e}")
    names = [f"client-{number}" for number in range(CLIENTS)]
    began = perf_counter()
    clients = Clients(dict(zip(names, map(torch.from_numpy, rows), strict=True)), clip=CLIP)
    mean = clients.add(summing(dict.fromkeys(names, 1 / CLIENTS), VALUES)).rows[0]
    spent, size = perf_counter() - began, 4 * VALUES / 1e6
    table.add_row("ours", f"{spent:.2f}", f"{size:.1f}", f"{np.abs(mean.double().numpy() - exact).max():.1e}")
    Console().print(table)


@njit
def find(observed, count):
    """Find the 28-bit seed of the mask between two Flower clients: try MT19937 with each until all values fit."""
    state = np.empty(398 + len(observed) + 1, np.uint32)
    for packed in range(count):
        seed = (packed & 127) | (packed >> 7 & 127) << 8 | (packed >> 14 & 127) << 16 | (packed >> 21 & 127) << 24
        state[0] = np.uint32(seed)
        for k in range(1, len(state)):
            last = state[k - 1]
            state[k] = np.uint32(np.uint32(1812433253) * (last ^ (last >> np.uint32(30))) + np.uint32(k))
        fits = True
        for j in range(len(observed)):
            both = (state[j + 1] & np.uint32(0x80000000)) | (state[j + 2] & np.uint32(0x7FFFFFFF))
            value = state[j + 398] ^ (both >> np.uint32(1))
            if state[j + 2] & np.uint32(1):
                value ^= np.uint32(0x9908B0DF)
            value ^= value >> np.uint32(11)
            value ^= (value << np.uint32(7)) & np.uint32(0x9D2C5680)
            value ^= (value << np.uint32(15)) & np.uint32(0xEFC60000)
            value ^= value >> np.uint32(18)
            if np.uint32(observed[j] + value) > TARGET:
                fits = False
                break
        if fits:
            return seed
    return -1


def masks() -> None:
    """Recover the first of three clients' row from what the server and the third know; SecAgg should prevent it."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 0.05, 1000) for _ in range(3)]
    flower = Flower(rows)
    values = np.concatenate([bytes_to_ndarray(each) for each in flower.masked()[0]])
    first, _, third = flower.states

    def stream(seed):
        return np.concatenate(pseudo_rand_gen(seed, MODULUS, flower.shapes))

    agreed = generate_shared_key(bytes_to_private_key(third.sk1), bytes_to_public_key(first.pk1))
    left = (values - stream(first.rd_seed) + stream(agreed)) % MODULUS  # unmasking reveals this seed
    observed = left[1:9].astype(np.uint32)
    find(observed, 1)
    began = process_time()
    seed = find(observed, 2**28)
    spent = process_time() - began
    row = (left + stream(int(seed).to_bytes(4, "little")))[1:] % MODULUS * (2 * CLIP / TARGET) - CLIP
    print(f"found in {spent:.0f} CPU-s; its row, correlation {np.corrcoef(row, rows[0])[0, 1]:.6f}")


def small(method: dict, secure: dict | None, rounds: int) -> Experiment:
    scenes = {"kind": "scenes", "size": [32, 32], "val": 1}
    clients = [{"data": "outdoor", "split": ["semseg", "normals", "edge", "sal"], "name": "o"}]
    clients += [{"data": "indoor", "split": ["depth", "normals"], "name": "i"}]
    data = {
        "outdoor": {**scenes, "domain": "outdoor", "train": 8},
        "indoor": {**scenes, "domain": "indoor", "train": 4},
    }
    return Experiment.parse(
        {
            "name": "secagg",
            "rounds": rounds,
            "method": method,
            "model": {"encoder": {"name": "swin_micro"}, "decoder_width": 8},
            "training": {"batch_size": 2, "learning_rate": 1e-3, "schedule": {"warmup_epochs": 0}},
            "data": data,
            "clients": clients,
            "secure_aggregation": secure,
        }
    )


def farthest(ours: dict, others: dict) -> float:
    """Return the largest difference of any value in any model."""
    return max(float((others[file][key] - tensor).abs().max()) for file in ours for key, tensor in ours[file].items())


def rounds() -> None:
    cases = {
        "fedavg": ({"name": "fedavg"}, {}),
        "fedhca2, decoders local": ({"name": "fedhca2", "decoder": None}, {"sketch": 1024, "clip": 1.0}),
    }
    columns = ("second round", "MB up", "MB down", "s", "models off by, after one round")
    table = Table(*columns, title="six sites over loopback")
    for name, (method, secure) in cases.items():
        models = {}
        for settings in (None, secure):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                run_local(small(method, settings, 1), out, Watcher(), NetworkSettings())
                models[settings is None] = {file.name: load_file(file) for file in (out / "models").iterdir()}
                out = Path(folder) / "two"
                run_local(small(method, settings, 2), out, Watcher(), NetworkSettings())
                up, down, seconds, _ = second_round(out)
            off = ""
            if settings is not None:
                off = f"{farthest(models[True], models[False]):.1e}"
            title = f"{name}{'' if settings is None else ', secure'}"
            table.add_row(title, f"{up / 1e6:.2f}", f"{down / 1e6:.2f}", f"{seconds:.1f}", off)
    Console().print(table)


def guess_row(sketched: torch.Tensor, seed: int, numel: int) -> torch.Tensor:
    """Guess a row from its sketch alone: each value from the sum that contains it."""
    size = len(sketched)
    signs, shifts = projection(numel, size, derive(seed, "sketch", 0, str(ENCODER)))
    turned = torch.cat([sketched.roll(-int(shift)) for shift in shifts])
    return turned[:numel] * signs


def sketch() -> None:
    """Compare sketches of real updates of six small clients; fifty projections for each sketch size."""
    experiment = small({"name": "fedhca2", "decoder": None}, None, 1)
    data = open_data(experiment)
    plans = plan_clients(experiment, data, assign_shards(experiment, data), DeviceSlot(torch.device("cpu")))
    fleet = InProcess([plan.build() for plan in plans])
    orders = {name: Order(0, upload={"encoder": "updates"}) for name in fleet.profiles}
    updates = torch.stack([reply.rows[ENCODER] for reply in fleet.perform(orders, lambda *_: None).values()]).double()
    gram, numel = updates @ updates.T, updates.shape[1]
    exact, lengths = ConflictAverse().weights(gram), gram.diagonal().sqrt()
    title = f"{len(updates)} updates of {numel:,} values"
    columns = ("cosines off by", "√(2/k)", "a off by", "Ũ off by", "cosine of a guess", "√(k/D)")
    table = Table("k", *columns, title=title)
    for size in (64, 256, 1024, 4096, 16384):
        off: list[list[float]] = [[], [], [], []]
        for seed in range(50):
            sketches = torch.stack([sketch_row(row, size, seed, ENCODER, 0) for row in updates]).double()
            estimate = sketches @ sketches.T
            change = ConflictAverse().weights(estimate) - exact
            guess = guess_row(sketches[0], seed, numel)
            off[0].append(float(((estimate - gram) / torch.outer(lengths, lengths)).square().mean().sqrt()))
            off[1].append(float((change / exact.mean()).square().mean().sqrt()))
            off[2].append(float((change @ updates).norm() / (exact @ updates).norm()))
            off[3].append(float(torch.nn.functional.cosine_similarity(guess, updates[0], dim=0)))
        cosines, weights, sums, guesses = (np.sqrt(np.mean(np.square(each))) for each in off)
        numbers = (cosines, np.sqrt(2 / size), weights, sums, guesses, np.sqrt(size / numel))
        table.add_row(str(size), *(f"{number:.3f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sums", "sketch", "rounds", "masks"])
    {"sums": sums, "sketch": sketch, "rounds": rounds, "masks": masks}[parser.parse_args().what]()
