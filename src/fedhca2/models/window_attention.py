"""Attention within windows as one kernel forwards and one backwards, for a GPU.

Written out, attention leaves padded queries, keys and values, scores, and probabilities in memory. These kernels read
queries, keys and values and write the result; the backward one computes the probabilities again. Each program takes
windows of one head in turn, and sums the gradient of the bias in registers, always in the same order.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass
class Launch:
    """How a kernel is started: programs in all, warps of each, windows that it reads ahead, registers of a thread."""

    programs: int
    warps: int
    stages: int
    registers: int | None = None  # as many as it likes


FORWARD, BACKWARD = Launch(1024, 4, 2), Launch(512, 4, 2)  # the fastest that were tried on an H200


@triton.jit  # type: ignore[untyped-decorator]
def _shares(q, k, bias, mask, window, windows, scale, masked: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    scores = scale * tl.dot(q, tl.trans(k), input_precision="ieee") + bias
    if masked:
        positions = tl.arange(0, SIZE)
        scores += tl.load(mask + (window % windows) * SIZE * SIZE + positions[:, None] * SIZE + positions[None, :])
    shares = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return shares / tl.sum(shares, axis=1)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv, bias, mask, out, scale, windows, positions, count, heads,
    masked: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, depth = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    there = (rows < positions)[:, None]
    own = tl.load(bias + (head * SIZE + rows[:, None]) * SIZE + rows[None, :])
    for window in tl.range(program, count, tl.num_programs(0), num_stages=STAGES):
        at = (window * positions + rows)[:, None] * heads
        first = qkv + (3 * at + head) * DEPTH + depth[None, :]
        q = tl.load(first, mask=there, other=0)
        k = tl.load(first + heads * DEPTH, mask=there, other=0)
        v = tl.load(first + 2 * heads * DEPTH, mask=there, other=0)
        shares = _shares(q, k, own, mask, window, windows, scale, masked, SIZE)
        attended = tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        tl.store(out + (at + head) * DEPTH + depth[None, :], attended.to(v.dtype), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    qkv, bias, mask, gradient, to_qkv, to_bias, scale, windows, positions, count, heads,
    masked: tl.constexpr, DEPTH: tl.constexpr, SIZE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, depth = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    there = (rows < positions)[:, None]
    square = rows[:, None] * SIZE + rows[None, :]
    of_bias = tl.zeros((SIZE, SIZE), tl.float32)
    for window in tl.range(program, count, tl.num_programs(0), num_stages=STAGES):
        at = (window * positions + rows)[:, None] * heads
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


def side(positions: int) -> int:
    """The rows and columns of a bias for windows of this many positions: a power of two.

    >>> side(49), side(9)
    (64, 16)
    """
    return max(16, 1 << (positions - 1).bit_length())


@torch.library.custom_op("fedhca2::window_attention", mutates_args=())
def window_attention(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend within windows: [W, P, C] of qkv [W, P, 3·C], a bias [heads, S, S] and a mask [W of an image, S, S].

    S is a power of two; the bias of positions that do not exist is so low that nobody attends to them.
    """
    (count, positions, width), (heads, size, _) = qkv.shape, bias.shape
    out = qkv.new_empty(count, positions, width // 3)
    _forward_kernel[(_programs(FORWARD, count, heads), heads)](
        qkv.contiguous(), bias.contiguous(), mask, out, scale,
        1 if mask is None else len(mask), positions, count, heads,
        masked=mask is not None, DEPTH=width // 3 // heads, SIZE=size, STAGES=FORWARD.stages,
        num_warps=FORWARD.warps, maxnreg=FORWARD.registers,
    )  # fmt: skip
    return out


@window_attention.register_fake
def _(qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    count, positions, width = qkv.shape
    return qkv.new_empty(count, positions, width // 3)


@torch.library.custom_op("fedhca2::window_attention_backward", mutates_args=())
def window_attention_backward(
    gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The gradients of qkv and of the bias."""
    (count, positions, width), (heads, size, _) = qkv.shape, bias.shape
    programs = _programs(BACKWARD, count, heads)
    of_qkv, of_bias = torch.empty_like(qkv), bias.new_empty(programs, *bias.shape)
    _backward_kernel[(programs, heads)](
        qkv.contiguous(), bias.contiguous(), mask, gradient.contiguous(), of_qkv, of_bias, scale,
        1 if mask is None else len(mask), positions, count, heads,
        masked=mask is not None, DEPTH=width // 3 // heads, SIZE=size, STAGES=BACKWARD.stages,
        num_warps=BACKWARD.warps, maxnreg=BACKWARD.registers,
    )  # fmt: skip
    return of_qkv, of_bias.sum(dim=0)


@window_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_qkv, of_bias = window_attention_backward(gradient, *ctx.saved_tensors, ctx.scale)
    return of_qkv, of_bias, None, None


window_attention.register_autograd(_backward, setup_context=_keep)


def _programs(shape: Launch, count: int, heads: int) -> int:
    return min(count, -(-shape.programs // heads))
