"""Attention within windows as one kernel, against the compiled parts that a step uses now.

    python benchmarks/window_attention.py    # on a GPU: each stage of Swin-T, and a whole step, both ways
    python benchmarks/window_attention.py --launch    # how the kernels are started best
    TRITON_INTERPRET=1 python benchmarks/window_attention.py --check    # on a CPU: values and gradients alone

A candidate for `fedhca2.models.fast`. `AlignedAttention` writes padded queries, keys and values, scores, and
probabilities to memory, forwards and backwards. One kernel reads queries, keys and values and writes the result; the
backward one computes the probabilities again. Each program takes windows of one head in turn, and sums the
gradient of the bias in registers, always in the same order.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import torch
import triton
import triton.language as tl
from row import Row, show
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedhca2.clients import DeviceSlot
from fedhca2.compiling import SETTINGS
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import build_clients
from fedhca2.models import fast
from fedhca2.models.fast import NEVER, AlignedAttention
from gpu import pure_step, title


@dataclass
class Launch:
    """How a kernel is started: programs in all, warps of each, windows that it reads ahead, registers of a thread."""

    programs: int
    warps: int
    stages: int
    registers: int | None = None  # as many as it likes


FORWARD, BACKWARD = Launch(4096, 4, 2), Launch(2048, 4, 1, 168)
LAUNCHES = {  # that `--launch` tries
    "forwards": (FORWARD, list(product((1024, 2048, 4096, 8192), (4, 8), (1, 2), (None,)))),
    "backwards": (BACKWARD, list(product((512, 1024, 2048, 4096), (4, 8), (1, 2), (None, 168, 128)))),
}
# Channels, heads, and side of the map of each stage of Swin-T, with images of 512×512.
STAGES = [(96, 3, 128), (192, 6, 64), (384, 12, 32), (768, 24, 16)]
IMAGES, WINDOW = 8, 7


@triton.jit  # type: ignore[untyped-decorator]
def _shares(q, k, bias, mask, window, windows, scale, masked: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    scores = scale * tl.dot(q, tl.trans(k), input_precision="ieee") + bias
    if masked:
        places = tl.arange(0, SIZE)
        scores += tl.load(mask + (window % windows) * SIZE * SIZE + places[:, None] * SIZE + places[None, :])
    shares = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return shares / tl.sum(shares, axis=1)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv, bias, mask, out, scale, windows, places, count, heads,
    masked: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, depth = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    there = (rows < places)[:, None]
    own = tl.load(bias + (head * SIZE + rows[:, None]) * SIZE + rows[None, :])
    for window in tl.range(program, count, tl.num_programs(0), num_stages=STAGES):
        at = (window * places + rows)[:, None] * heads
        first = qkv + (3 * at + head) * DEPTH + depth[None, :]
        q = tl.load(first, mask=there, other=0)
        k = tl.load(first + heads * DEPTH, mask=there, other=0)
        v = tl.load(first + 2 * heads * DEPTH, mask=there, other=0)
        shares = _shares(q, k, own, mask, window, windows, scale, masked, SIZE)
        attended = tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        tl.store(out + (at + head) * DEPTH + depth[None, :], attended.to(v.dtype), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    qkv, bias, mask, gradient, to_qkv, to_bias, scale, windows, places, count, heads,
    masked: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, depth = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    there = (rows < places)[:, None]
    square = rows[:, None] * SIZE + rows[None, :]
    of_bias = tl.zeros((SIZE, SIZE), tl.float32)
    for window in tl.range(program, count, tl.num_programs(0), num_stages=STAGES):
        at = (window * places + rows)[:, None] * heads
        offset = (3 * at + head) * DEPTH + depth[None, :]
        q = tl.load(qkv + offset, mask=there, other=0)
        k = tl.load(qkv + offset + heads * DEPTH, mask=there, other=0)
        v = tl.load(qkv + offset + 2 * heads * DEPTH, mask=there, other=0)
        of_out = tl.load(gradient + (at + head) * DEPTH + depth[None, :], mask=there, other=0)
        own = tl.load(bias + head * SIZE * SIZE + square)
        shares = _shares(q, k, own, mask, window, windows, scale, masked, SIZE)
        of_v = tl.dot(tl.trans(shares.to(v.dtype)), of_out, input_precision="ieee")
        tl.store(to_qkv + offset + 2 * heads * DEPTH, of_v.to(q.dtype), mask=there)
        of_shares = tl.dot(of_out, tl.trans(v), input_precision="ieee")
        of_scores = shares * (of_shares - tl.sum(shares * of_shares, axis=1)[:, None])
        of_bias += of_scores
        rounded = of_scores.to(q.dtype)
        of_q = tl.dot(rounded, k, input_precision="ieee")
        tl.store(to_qkv + offset, (scale * of_q).to(q.dtype), mask=there)
        of_k = tl.dot(tl.trans(rounded), q, input_precision="ieee")
        tl.store(to_qkv + offset + heads * DEPTH, (scale * of_k).to(q.dtype), mask=there)
    tl.store(to_bias + (program * heads + head) * SIZE * SIZE + square, of_bias)


@torch.library.custom_op("fedhca2::window_attention", mutates_args=())
def window_attention(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend within windows: [W, P, C] of qkv [W, P, 3·C], a bias [heads, S, S] and a mask [W of an image, S, S].

    S is a power of two; the bias of places that do not exist is so low that nobody attends to them.
    """
    (count, places, width), (heads, size, _) = qkv.shape, bias.shape
    out = qkv.new_empty(count, places, width // 3)
    _forward_kernel[(_programs(FORWARD, count, heads), heads)](
        qkv.contiguous(), bias.contiguous(), mask, out, scale, 1 if mask is None else len(mask), places, count, heads,
        masked=mask is not None, DEPTH=width // 3 // heads, SIZE=size, STAGES=FORWARD.stages,
        num_warps=FORWARD.warps, maxnreg=FORWARD.registers,
    )  # fmt: skip
    return out


@window_attention.register_fake
def _(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    count, places, width = qkv.shape
    return qkv.new_empty(count, places, width // 3)


@torch.library.custom_op("fedhca2::window_attention_backward", mutates_args=())
def window_attention_backward(
    gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The gradients of qkv and of the bias."""
    (count, places, width), (heads, size, _) = qkv.shape, bias.shape
    programs = _programs(BACKWARD, count, heads)
    of_qkv, of_bias = torch.empty_like(qkv), bias.new_empty(programs, *bias.shape)
    _backward_kernel[(programs, heads)](
        qkv.contiguous(), bias.contiguous(), mask, gradient.contiguous(), of_qkv, of_bias, scale,
        1 if mask is None else len(mask), places, count, heads,
        masked=mask is not None, DEPTH=width // 3 // heads, SIZE=size, STAGES=BACKWARD.stages,
        num_warps=BACKWARD.warps, maxnreg=BACKWARD.registers,
    )  # fmt: skip
    return of_qkv, of_bias.sum(dim=0)


@window_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *kept, ctx.scale = inputs
    ctx.save_for_backward(*kept)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_qkv, of_bias = window_attention_backward(gradient, *ctx.saved_tensors, ctx.scale)
    return of_qkv, of_bias, None, None


window_attention.register_autograd(_backward, setup_context=_keep)


def _programs(shape: Launch, count: int, heads: int) -> int:
    return min(count, -(-shape.programs // heads))


class FusedAttention(WindowAttention):
    """timm's window attention with one kernel between the projections."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention within windows [windows, places, channels]; `mask` is [windows of an image, places, places]."""
        places = x.shape[1]
        missing = max(16, 1 << (places - 1).bit_length()) - places
        bias = functional.pad(self._get_rel_pos_bias()[0], (0, missing), value=NEVER)
        bias = functional.pad(bias, (0, 0, 0, missing))
        if mask is not None:
            mask = functional.pad(mask, (0, missing, 0, missing)).to(torch.bfloat16)  # all its values are exact
        attended = window_attention(self.qkv(x), bias, mask, self.scale)
        return self.proj_drop(self.proj(attended))  # type: ignore[no-any-return]


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
    found = module(x, mask)
    (found * torch.linspace(-1, 1, found.numel(), device=x.device).view_as(found)).sum().backward()
    return [found.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]  # type: ignore[list-item]


def check(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """Compare values and gradients with those of timm's attention."""
    for masked in (False, True):
        x = torch.randn(8, WINDOW**2, 64, generator=torch.Generator().manual_seed(0)).to(device)
        mask = torch.where(torch.rand(4, WINDOW**2, WINDOW**2) < 0.3, -100.0, 0.0).to(device) if masked else None
        results = []
        for kind in (WindowAttention, FusedAttention):
            with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                results.append(with_gradients(attention(kind, 64, 2).to(device), x, mask))
        for found, expected in zip(*reversed(results), strict=True):
            assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


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


def stage_rows(channels: int, heads: int, side: int) -> Iterator[Row]:
    """Measure attention of one stage, forwards and backwards, both ways."""
    windows = (-(-side // WINDOW)) ** 2
    x = torch.randn(IMAGES * windows, WINDOW**2, channels, device="cuda", requires_grad=True)
    mask = torch.where(torch.rand(windows, WINDOW**2, WINDOW**2, device="cuda") < 0.1, -100.0, 0.0)
    for kind in (AlignedAttention, FusedAttention):
        module = attention(kind, channels, heads).cuda()
        module.compile(**SETTINGS)

        def work(module: nn.Module = module) -> None:
            x.grad = None
            module.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                found = module(x, mask)
            found.backward(torch.ones_like(found))

        yield Row(f"attention, {channels} channels, {kind.__name__}", milliseconds(work), "ms")


def launch_rows() -> Iterator[Row]:
    """Measure both kernels alone in each stage, started in several ways; the fastest of each is a row."""
    for channels, heads, side in STAGES:
        windows, places, size = (-(-side // WINDOW)) ** 2, WINDOW**2, 64
        qkv = torch.randn(IMAGES * windows, places, 3 * channels, device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(heads, size, size, device="cuda")
        mask = torch.zeros(windows, size, size, device="cuda", dtype=torch.bfloat16)
        gradient = torch.randn(IMAGES * windows, places, channels, device="cuda", dtype=torch.bfloat16)
        given = {
            "forwards": partial(window_attention, qkv, bias, mask, 0.2),
            "backwards": partial(window_attention_backward, gradient, qkv, bias, mask, 0.2),
        }
        for name, (shape, launches) in LAUNCHES.items():
            found = {}
            for launch in launches:
                shape.programs, shape.warps, shape.stages, shape.registers = launch
                found[launch] = milliseconds(given[name], repeats=10)
            programs, warps, stages, registers = best = min(found, key=found.__getitem__)
            how = f"{programs} programs, {warps} warps, {stages} stages, {registers or 'all'} registers"
            yield Row(f"attention alone, {channels} channels, {name}: {how}", found[best], "ms")


def step_rows() -> Iterator[Row]:
    """Measure a whole step of Swin-T at full size, both ways."""
    smaller = ["data.outdoor.train=80", "data.indoor.train=8", "data.outdoor.val=8", "data.indoor.val=8"]
    setting = Experiment.load("scenes_full", smaller)
    data = open_data(setting)
    shards = assign_shards(setting, data)
    before = fast.AlignedAttention
    for kind in (AlignedAttention, FusedAttention):
        fast.AlignedAttention = kind  # type: ignore[misc]
        place = DeviceSlot(torch.device("cuda", 0), "compiled")
        client = build_clients(setting, data, shards, place)[0]
        yield Row(f"step, {title(client)}, {kind.__name__}", 1000 * pure_step(client), "ms")
    fast.AlignedAttention = before  # type: ignore[misc]


def rows(quick: bool = False) -> Iterator[Row]:
    """Yield every row as it is measured; if `quick`, without the whole step."""
    check("cuda", torch.float32, 1e-5)
    check("cuda", torch.bfloat16, 2e-2)
    for channels, heads, side in STAGES:
        yield from stage_rows(channels, heads, side)
    if not quick:
        yield from step_rows()


def main() -> None:
    """Print the table, or only check the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", action="store_true", help="find out how the kernels are started best")
    parser.add_argument("--check", action="store_true", help="only compare with timm's attention, on a CPU")
    asked = parser.parse_args()
    if asked.check:
        check("cpu", torch.float32, 1e-5)
        print("values and gradients are those of timm's attention")
    else:
        show(launch_rows() if asked.launch else rows())


if __name__ == "__main__":
    main()
