"""Per-example gradients of scale and shift in one pass over input and output gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["channel_scale_and_shift", "row_scale_and_shift"]


@triton.jit
def _rows(
    x_ptr, g_ptr, out_ptr, positions, width, share, eps,
    WIDTH: tl.constexpr, CENTRE: tl.constexpr,
):  # fmt: skip
    chunk, example = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    scale = tl.zeros((WIDTH,), dtype=tl.float32)
    shift = tl.zeros((WIDTH,), dtype=tl.float32)
    first = chunk * share
    for t in range(first, tl.minimum(first + share, positions)):
        offset = (example * positions + t) * width + column
        x = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        if CENTRE:
            x = tl.where(inside, x - tl.sum(x, 0) / width, 0.0)
        spread = tl.sum(x * x, 0) / width
        scale += g * x * (1.0 / tl.sqrt(spread + eps))
        shift += g
    target = out_ptr + (example * tl.num_programs(0) + chunk) * 2 * width + column
    tl.store(target, scale, mask=inside)
    tl.store(target + width, shift, mask=inside)


def row_scale_and_shift(x: Tensor, g: Tensor, eps: float, *, centre: bool) -> tuple[Tensor, Tensor]:
    """LayerNorm (centre) or RMSNorm over the last dimension of (B, T, d): (B, d) twice."""
    x, g = x.contiguous(), g.contiguous()
    batch, positions, width = x.shape
    chunks = max(1, min(positions, triton.cdiv(528, batch)))
    share = max(1, triton.cdiv(positions, chunks))
    chunks = max(1, triton.cdiv(positions, share))
    out = torch.empty(batch, chunks, 2, width, dtype=torch.float32, device=x.device)
    size = triton.next_power_of_2(width)
    _rows[(chunks, batch)](
        x, g, out, positions, width, share, eps,
        WIDTH=size, CENTRE=centre, num_warps=4 if size <= 2048 else 8,
    )  # fmt: skip
    scale, shift = (out[:, 0] if chunks == 1 else out.sum(1)).unbind(1)
    return scale, shift


@triton.jit
def _channels(
    x_ptr, g_ptr, scale_ptr, shift_ptr, channels, members, space, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    group, example = tl.program_id(0), tl.program_id(1).to(tl.int64)
    base = (example * channels + group * members) * space
    length = members * space
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        at = start + lane
        total += tl.load(x_ptr + base + at, mask=at < length, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / length
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        at = start + lane
        x = tl.load(x_ptr + base + at, mask=at < length, other=0.0).to(tl.float32)
        centred = tl.where(at < length, x - mean, 0.0)
        squares += centred * centred
    inverse = 1.0 / tl.sqrt(tl.sum(squares, 0) / length + eps)
    for member in range(members):
        scale = tl.zeros((BLOCK,), dtype=tl.float32)
        shift = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, space, BLOCK):
            at = start + lane
            offset = base + member * space + at
            x = tl.load(x_ptr + offset, mask=at < space, other=0.0).to(tl.float32)
            g = tl.load(g_ptr + offset, mask=at < space, other=0.0).to(tl.float32)
            scale += g * (x - mean)
            shift += g
        target = example * channels + group * members + member
        tl.store(scale_ptr + target, tl.sum(scale, 0) * inverse)
        tl.store(shift_ptr + target, tl.sum(shift, 0))


def channel_scale_and_shift(x: Tensor, g: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """GroupNorm of (B, C, *space): (B, C) twice."""
    x, g = x.contiguous(), g.contiguous()
    batch, channels = x.shape[:2]
    space = x[0, 0].numel()
    scale = torch.empty(batch, channels, dtype=torch.float32, device=x.device)
    shift = torch.empty_like(scale)
    block = min(1024, max(16, triton.next_power_of_2(space)))
    _channels[(groups, batch)](
        x, g, scale, shift, channels, channels // groups, space, eps,
        BLOCK=block, num_warps=4 if block >= 512 else 1,
    )  # fmt: skip
    return scale, shift
