"""Attention within windows as one kernel, against compiled parts.

    python benchmarks/window_attention.py    # on a GPU: each stage of Swin-T, and a whole step, both ways
    python benchmarks/window_attention.py --launch    # how the kernels are started best
    TRITON_INTERPRET=1 python benchmarks/window_attention.py --check    # on a CPU: values and gradients alone

`AlignedAttention` writes padded queries, keys and values, scores, and probabilities to memory, forwards and backwards;
`FusedAttention` does not.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from time import perf_counter

import torch
from row import Row, show
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn
from torch.testing import assert_close

from fedhca2.clients import DeviceSlot
from fedhca2.compiling import SETTINGS
from fedhca2.experiment import Experiment
from fedhca2.models import fast
from fedhca2.models.fast import AlignedAttention, FusedAttention
from fedhca2.models.window_attention import BACKWARD, FORWARD, side, window_attention, window_attention_backward
from gpu import FEW, GPU, clients_at, pure_step, title

LAUNCHES = {  # that `--launch` tries
    "forwards": (FORWARD, list(product((264, 528, 1024, 2048), (4, 8), (1, 2, 3), (None,)))),
    "backwards": (BACKWARD, list(product((132, 264, 528, 1024), (4, 8), (1, 2), (None, 168)))),
}
# Channels, heads, and side of the map of each stage of Swin-T, with images of 512×512.
STAGES = [(96, 3, 128), (192, 6, 64), (384, 12, 32), (768, 24, 16)]
IMAGES, WINDOW = 8, 7


def attention(kind: type[WindowAttention], channels: int, heads: int) -> WindowAttention:
    """The same attention, computed in one of the ways."""
    torch.manual_seed(0)
    module = WindowAttention(channels, num_heads=heads, window_size=WINDOW)
    nn.init.normal_(module.relative_position_bias_table)
    module.__class__ = kind
    return module


def with_gradients(module: nn.Module, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The result, and the gradients of everything, for an arbitrary loss."""
    x = x.detach().requires_grad_()
    output = module(x, mask)
    (output * torch.linspace(-1, 1, output.numel(), device=x.device).view_as(output)).sum().backward()
    return [output.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]  # type: ignore[list-item]


def check(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """Compare values and gradients with those of timm's attention."""
    for masked in (False, True):
        x = torch.randn(8, WINDOW**2, 64, generator=torch.Generator().manual_seed(0)).to(device)
        mask = torch.where(torch.rand(4, WINDOW**2, WINDOW**2) < 0.3, -100.0, 0.0).to(device) if masked else None
        results = []
        for kind in (WindowAttention, FusedAttention):
            with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                results.append(with_gradients(attention(kind, 64, 2).to(device), x, mask))
        for computed, expected in zip(*reversed(results), strict=True):
            assert_close(computed, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


def milliseconds(work: Callable[[], object], repeats: int = 30) -> float:
    """The time of some work on the GPU, captured as a graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    began = perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return 1000 * (perf_counter() - began) / repeats


def stage_rows(channels: int, heads: int, width: int) -> Iterator[Row]:
    """Measure attention of one stage, forwards and backwards, both ways."""
    windows = (-(-width // WINDOW)) ** 2
    x = torch.randn(IMAGES * windows, WINDOW**2, channels, device="cuda", requires_grad=True)
    mask = torch.where(torch.rand(windows, WINDOW**2, WINDOW**2, device="cuda") < 0.1, -100.0, 0.0)
    for kind in (AlignedAttention, FusedAttention):
        module = attention(kind, channels, heads).cuda()
        module.compile(**SETTINGS)

        def work(module: nn.Module = module) -> None:
            x.grad = None
            module.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                output = module(x, mask)
            output.backward(torch.ones_like(output))

        yield Row(f"attention, {channels} channels, {kind.__name__}", milliseconds(work), "ms")


def launch_rows() -> Iterator[Row]:
    """Measure both kernels alone in each stage, started in several ways; the fastest of each is a row."""
    for channels, heads, width in STAGES:
        windows, positions, size = (-(-width // WINDOW)) ** 2, WINDOW**2, side(WINDOW**2)
        qkv = torch.randn(IMAGES * windows, positions, 3 * channels, device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(heads, size, size, device="cuda")
        mask = torch.zeros(windows, size, size, device="cuda", dtype=torch.bfloat16)
        gradient = torch.randn(IMAGES * windows, positions, channels, device="cuda", dtype=torch.bfloat16)
        kernels = {
            "forwards": partial(window_attention, qkv, bias, mask, 0.2),
            "backwards": partial(window_attention_backward, gradient, qkv, bias, mask, 0.2),
        }
        for name, (shape, launches) in LAUNCHES.items():
            times = {}
            for launch in launches:
                shape.programs, shape.warps, shape.stages, shape.registers = launch
                times[launch] = milliseconds(kernels[name], repeats=10)
            programs, warps, stages, registers = best = min(times, key=times.__getitem__)
            how = f"{programs} programs, {warps} warps, {stages} stages, {registers or 'all'} registers"
            yield Row(f"attention alone, {channels} channels, {name}: {how}", times[best], "ms")


def step_rows() -> Iterator[Row]:
    """Measure a whole step of Swin-T at full size, both ways."""
    for kind in (AlignedAttention, FusedAttention):
        fast.FusedAttention = kind  # type: ignore[assignment, misc]
        client = clients_at(DeviceSlot(GPU, "compiled"), Experiment.load("scenes_full", FEW))[0]
        yield Row(f"step, {title(client)}, {kind.__name__}", 1000 * pure_step(client), "ms")
    fast.FusedAttention = FusedAttention  # type: ignore[misc]


def rows(quick: bool = False) -> Iterator[Row]:
    """Yield every row as it is measured; if `quick`, without the whole step."""
    check("cuda", torch.float32, 1e-5)
    check("cuda", torch.bfloat16, 2e-2)
    for channels, heads, width in STAGES:
        yield from stage_rows(channels, heads, width)
    if not quick:
        yield from step_rows()


def main() -> None:
    """Print the table, or only check the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", action="store_true", help="find out how the kernels are started best")
    parser.add_argument("--check", action="store_true", help="only compare with timm's attention, on a CPU")
    options = parser.parse_args()
    if options.check:
        check("cpu", torch.float32, 1e-5)
        print("values and gradients are those of timm's attention")
    else:
        show(launch_rows() if options.launch else rows())


if __name__ == "__main__":
    main()
