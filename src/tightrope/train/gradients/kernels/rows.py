"""Squared norms of short rows, and of the outer products of two, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.rounding import TINY

__all__ = ["row_squares"]


@triton.jit
def _sum_of_squares(row, length, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        value = tl.load(row + start + at, mask=start + at < length, other=0.0).to(tl.float32)
        total += value * value
    return tl.sum(total, 0)


@triton.jit
def _row_squares(
    a_ptr, g_ptr, out_ptr, a_length, g_length, a_stride, g_stride, a_lost, g_lost,
    PRODUCT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    squares = _sum_of_squares(a_ptr + row * a_stride, a_length, BLOCK) + a_lost
    if PRODUCT:
        squares *= _sum_of_squares(g_ptr + row * g_stride, g_length, BLOCK) + g_lost
    tl.store(out_ptr + row, squares)


def row_squares(a: Tensor, g: Tensor | None = None) -> Tensor:
    """(B,) squares of the rows of a: (B, d), or of g a^T for g: (B, p).

    A chain has d / 512 squares, a tree of 512 chains follows; what underflows is made up for.
    """
    a = a if a.stride(1) == 1 else a.contiguous()
    other = a if g is None else g if g.stride(1) == 1 else g.contiguous()
    (batch, d), p = a.shape, other.shape[1]
    out = torch.empty(batch, dtype=torch.float32, device=a.device)
    _row_squares[(batch,)](
        a, other, out, d, p, a.stride(0), other.stride(0), d * TINY, p * TINY,
        PRODUCT=g is not None, BLOCK=512, num_warps=4,
    )  # fmt: skip
    return out
