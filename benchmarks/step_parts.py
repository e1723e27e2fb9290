"""Where the time of a training step on a GPU goes, and what its bytes alone would take.

    python benchmarks/step_parts.py                                               # Swin-T, 8 images of 512×512
    python benchmarks/step_parts.py my.yaml --set training.step=captured

The step is that of an experiment's first client, in one CUDA graph, compiled unless the settings say otherwise. Kernels
are grouped by their names; the 30 that take most are printed, too. What must be written and read is what a plain step
keeps for its backward pass, once each way, as much again for the gradients of it, and weights, gradients and moments
once each way.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator

import torch
from row import Row, show
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from fedhca2.clients import DeviceSlot, on_device
from fedhca2.clients.training import PLAIN, Learner, set_mode, take_step
from fedhca2.data.batches import Batch
from fedhca2.experiment import Experiment
from gpu import GPU, clients_at, seconds

STEPS = 20
SHOWN = 30
KINDS = {  # by what is in a kernel's name; the first that fits, since compiled ones have the names of all that they do
    "compiled, with sums": r"triton_(per|red)",
    "compiled, value by value": r"triton_(poi|for)",
    "optimiser": r"multi_tensor|foreach|adam",
    "convolutions": r"conv|cudnn|fprop|dgrad|wgrad|implicit",
    "matrix products": r"gemm|cutlass|nvjet|xmma|cublas|splitk|wgmma",
    "normalisation": r"batch_norm|layer_norm|GammaBeta",  # before indexing: their types check the bounds of indices
    "indexing": r"index|scatter|gather|sort",
    "copies and fills": r"memcpy|memset|copy|fill|cat",
}
COPIED = 2**30  # bytes
# Bytes a parameter: weight, gradient and two moments in float32, and the weight as autocast uses it, once each way.
OF_PARAMETER = 2 * (4 * 4 + 2)


def kind_of(kernel: str) -> str:
    """The kind of a kernel.

    >>> kind_of("batch_norm_backward_kernel<float>(GenericPackedTensorAccessor<float, IndexBoundsCheck<3, int>>)")
    'normalisation'
    >>> kind_of("triton_per_fused_convolution_native_layer_norm_3")
    'compiled, with sums'
    >>> kind_of("void at::native::reduce_kernel<512, 1>")
    'others'
    """
    return next((kind for kind, names in KINDS.items() if re.search(names, kernel, re.IGNORECASE)), "others")


def step_bytes(learner: Learner, batch: Batch) -> int:
    """What a step must write and read. Takes a plain step."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in learner.model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        take_step(learner.model, learner.optimizer, batch, learner.training.precision)
    return 4 * sum(sizes.values()) + OF_PARAMETER * sum(parameter.numel() for parameter in learner.model.parameters())


def copy_rate() -> float:
    """Bytes that a copy on the GPU writes and reads in a second."""
    source, target = (torch.zeros(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    target.copy_(source)
    return 2 * COPIED / min(seconds(lambda: target.copy_(source)) for _ in range(5))


def rows(quick: bool = False) -> Iterator[Row]:
    """Yield every row of Swin-T's step as it is measured."""
    few = ["data.outdoor.train=80", "data.indoor.train=8"]
    yield from rows_of(Experiment.load("scenes_full", [*few, "training.step=captured"] if quick else few), at_most=12.0)


def rows_of(setting: Experiment, at_most: float | None = None) -> Iterator[Row]:
    """Yield every row of an experiment's first client as it is measured."""
    slot = DeviceSlot(GPU, "captured" if setting.training.step == "captured" else "compiled")
    client = clients_at(slot, setting)[0]
    assert slot.captures is not None
    with on_device(client):
        set_mode(client.personal.model, PLAIN.frozen)
        batch = next(client.batches(0))
        least = step_bytes(client.personal, batch) / copy_rate()
        step = slot.captures.step(client.personal, batch, PLAIN)

        def steps() -> None:
            for _ in range(STEPS):
                step(batch)

        steps()
        whole = seconds(steps) / STEPS
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            steps()
            torch.cuda.synchronize()
    yield Row("a step", 1000 * whole, "ms", at_most)
    yield Row("its bytes alone", 1000 * least, "ms")
    spent, count = Counter[str](), Counter[str]()
    events = sorted(profiled.key_averages(), key=lambda event: event.device_time_total, reverse=True)
    for event in events:
        spent[kind_of(event.key)] += event.device_time_total / STEPS
        count[kind_of(event.key)] += event.count / STEPS
    for kind, took in spent.most_common():
        yield Row(f"{kind}, {count[kind]:.0f} kernels", took / 1000, "ms a step")
    for event in events[:SHOWN]:
        print(f"  {event.device_time_total / STEPS:7.0f} µs {event.count / STEPS:5.1f} × {event.key[:110]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    show(rows_of(Experiment.load(options.experiment, options.set)) if options.experiment else rows())
