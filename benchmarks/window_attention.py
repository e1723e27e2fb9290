"""Attention within windows as one kernel, against the compiled parts that a step uses now.

    python benchmarks/window_attention.py    # on a GPU: each stage of Swin-T, and a whole step, both ways
    TRITON_INTERPRET=1 python benchmarks/window_attention.py --check    # on a CPU: values and gradients alone

A candidate for `fedhca2.models.fast`. `AlignedAttention` writes padded queries, keys and values, scores, and
probabilities to memory, forwards and backwards. One kernel reads queries, keys and values and writes the result; the
backward one computes the probabilities again. Each program of it takes the windows of one head in turn, so that the
gradient of the bias is summed in registers, always in the same order.
"""

import argparse
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch
import triton
import triton.language as tl
from row import Row, show
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn
from torch.testing import assert_close

from fedhca2.clients import DeviceSlot
from fedhca2.compiling import SETTINGS
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import build_clients
from fedhca2.models import fast
from fedhca2.models.fast import AlignedAttention
from gpu import pure_step, title

PROGRAMS = 1024  # of the backward kernel, so that the whole GPU is busy
# Channels, heads, and side of the map of each stage of Swin-T, with images of 512×512.
STAGES = [(96, 3, 128), (192, 6, 64), (384, 12, 32), (768, 24, 16)]
IMAGES, WINDOW = 8, 7


@triton.jit  # type: ignore[untyped-decorator]
def _scores(q, k, bias, mask, window, head, scale, windows, places, masked: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    there = (rows < places) & (columns < places)
    at = rows * places + columns
    scores = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
    scores += tl.load(bias + head * places * places + at, mask=there, other=0)
    if masked:
        scores += tl.load(mask + (window % windows) * places * places + at, mask=there, other=0)
    return tl.where(columns < places, scores, float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv, bias, mask, out, logs, scale, windows, places,
    masked: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    window, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, depth = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    there = (rows < places)[:, None]
    own = qkv + (window * places + rows)[:, None] * (3 * HEADS * DEPTH) + head * DEPTH + depth[None, :]
    q = tl.load(own, mask=there, other=0)
    k = tl.load(own + HEADS * DEPTH, mask=there, other=0)
    v = tl.load(own + 2 * HEADS * DEPTH, mask=there, other=0)
    scores = _scores(q, k, bias, mask, window, head, scale, windows, places, masked, SIZE)
    largest = tl.max(scores, axis=1)
    shares = tl.exp(scores - largest[:, None])
    total = tl.sum(shares, axis=1)
    shares = shares / total[:, None]
    attended = tl.dot(shares.to(v.dtype), v, input_precision="ieee")
    to = out + (window * places + rows)[:, None] * (HEADS * DEPTH) + head * DEPTH + depth[None, :]
    tl.store(to, attended.to(v.dtype), mask=there)
    tl.store(logs + (window * HEADS + head) * places + rows, largest + tl.log(total), mask=rows < places)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    qkv, bias, mask, logs, gradient, to_qkv, to_bias, scale, windows, places, count,
    masked: tl.constexpr, HEADS: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, depth = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    there = (rows < places)[:, None]
    of_bias = tl.zeros((SIZE, SIZE), tl.float32)
    for window in range(program, count, tl.num_programs(0)):
        offset = (window * places + rows)[:, None] * (3 * HEADS * DEPTH) + head * DEPTH + depth[None, :]
        q = tl.load(qkv + offset, mask=there, other=0)
        k = tl.load(qkv + offset + HEADS * DEPTH, mask=there, other=0)
        v = tl.load(qkv + offset + 2 * HEADS * DEPTH, mask=there, other=0)
        at = (window * places + rows)[:, None] * (HEADS * DEPTH) + head * DEPTH + depth[None, :]
        of_out = tl.load(gradient + at, mask=there, other=0)
        scores = _scores(q, k, bias, mask, window, head, scale, windows, places, masked, SIZE)
        log = tl.load(logs + (window * HEADS + head) * places + rows, mask=rows < places, other=0)
        shares = tl.where(there, tl.exp(scores - log[:, None]), 0.0)
        of_v = tl.dot(tl.trans(shares.to(v.dtype)), of_out, input_precision="ieee")
        of_shares = tl.dot(of_out, tl.trans(v), input_precision="ieee")
        of_scores = shares * (of_shares - tl.sum(shares * of_shares, axis=1)[:, None])
        of_bias += of_scores
        rounded = of_scores.to(q.dtype)
        of_q = scale * tl.dot(rounded, k, input_precision="ieee")
        of_k = scale * tl.dot(tl.trans(rounded), q, input_precision="ieee")
        tl.store(to_qkv + offset, of_q.to(q.dtype), mask=there)
        tl.store(to_qkv + offset + HEADS * DEPTH, of_k.to(q.dtype), mask=there)
        tl.store(to_qkv + offset + 2 * HEADS * DEPTH, of_v.to(q.dtype), mask=there)
    at = (program * HEADS + head) * places * places + rows[:, None] * places + rows[None, :]
    tl.store(to_bias + at, of_bias, mask=there & (rows < places)[None, :])


@torch.library.custom_op("fedhca2::window_attention", mutates_args=())
def window_attention(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within windows: [W, P, C] of qkv [W, P, 3·C], a bias [heads, P, P] and a mask [W of an image, P, P].

    Also returns the logarithms of the softmax's sums, [W, heads, P].
    """
    (count, places, width), heads = qkv.shape, len(bias)
    out = qkv.new_empty(count, places, width // 3)
    logs = torch.empty(count, heads, places, dtype=torch.float32, device=qkv.device)
    _forward_kernel[(count, heads)](
        qkv.contiguous(), bias.contiguous(), mask, out, logs, scale, 1 if mask is None else len(mask), places,
        masked=mask is not None, HEADS=heads, DEPTH=width // 3 // heads, SIZE=_size(places),
    )  # fmt: skip
    return out, logs


@window_attention.register_fake
def _(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    count, places, width = qkv.shape
    logs = torch.empty(count, len(bias), places, dtype=torch.float32, device=qkv.device)
    return qkv.new_empty(count, places, width // 3), logs


@torch.library.custom_op("fedhca2::window_attention_backward", mutates_args=())
def window_attention_backward(
    gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, logs: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The gradients of qkv and of the bias."""
    (count, places, width), heads = qkv.shape, len(bias)
    programs = min(count, -(-PROGRAMS // heads))
    of_qkv, of_bias = torch.empty_like(qkv), bias.new_empty(programs, *bias.shape)
    _backward_kernel[(programs, heads)](
        qkv.contiguous(), bias.contiguous(), mask, logs, gradient.contiguous(), of_qkv, of_bias, scale,
        1 if mask is None else len(mask), places, count,
        masked=mask is not None, HEADS=heads, DEPTH=width // 3 // heads, SIZE=_size(places),
    )  # fmt: skip
    return of_qkv, of_bias.sum(dim=0)


@window_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, logs: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bias, mask, ctx.scale = inputs
    ctx.save_for_backward(qkv, bias, mask, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    of_qkv, of_bias = window_attention_backward(gradient, *ctx.saved_tensors, ctx.scale)
    return of_qkv, of_bias, None, None


window_attention.register_autograd(_backward, setup_context=_keep)


def _size(places: int) -> int:
    return max(16, 1 << (places - 1).bit_length())


class FusedAttention(WindowAttention):
    """timm's window attention with one kernel between the projections."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention within windows [windows, places, channels]; `mask` is [windows of an image, places, places]."""
        attended, _ = window_attention(self.qkv(x), self._get_rel_pos_bias()[0], mask, self.scale)
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
    parser.add_argument("--check", action="store_true", help="only compare with timm's attention, on a CPU")
    if parser.parse_args().check:
        check("cpu", torch.float32, 1e-5)
        print("values and gradients are those of timm's attention")
    else:
        show(rows())


if __name__ == "__main__":
    main()
