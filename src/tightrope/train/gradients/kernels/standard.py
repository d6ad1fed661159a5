"""Gradients of standardised weights taken back to the weights that are trained, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["taken_back"]


@triton.jit
def _taken_back(g_ptr, used_ptr, scale_ptr, out_ptr, channels, length, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = row % channels
    at = tl.arange(0, BLOCK)
    inside = at < length
    g = tl.load(g_ptr + row * length + at, mask=inside, other=0.0).to(tl.float32)
    used = tl.load(used_ptr + channel * length + at, mask=inside, other=0.0)
    left = g - tl.sum(g, 0) / length - used * tl.sum(g * used, 0)
    tl.store(out_ptr + row * length + at, left * tl.load(scale_ptr + channel), mask=inside)


def taken_back(gradients: Tensor, used: Tensor, scale: Tensor) -> Tensor:
    """(B, *shape) in float32, in the order of memory in which they came.

    used: the weights in use, shape; scale: what each channel was multiplied by. A program does one
    channel of one example, whatever the others are.
    """
    last = not gradients.is_contiguous()  # then the input channels are innermost
    if last:
        gradients, used = gradients.movedim(2, -1), used.movedim(1, -1)
    rows, used = gradients.contiguous(), used.contiguous()
    channels, length = len(used), used[0].numel()
    out = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    block = triton.next_power_of_2(length)
    _taken_back[(len(rows) * channels,)](
        rows, used, scale.contiguous(), out, channels, length,
        BLOCK=block, num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return out.movedim(-1, 2) if last else out
