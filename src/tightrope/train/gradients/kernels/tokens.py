"""Weighted sums over the examples of a batch, with float64 accumulators.

Reading the gradients takes longer than adding them in float64, so exact sums cost nothing here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["added", "weighted_rows"]

_PROGRAMS = 528  # enough of them to keep a large GPU busy
_MOST_SPLITS = 32


@triton.jit
def _weighted_rows(
    values_ptr, factor_ptr, out_ptr, batch, length, row_stride, share, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    split = tl.program_id(1).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for number in range(split * share, tl.minimum(split * share + share, batch)):
        example = tl.cast(number, tl.int64)
        factor = tl.load(factor_ptr + example)
        live = at < tl.where(factor > 0.0, length, 0)  # a dropped example may hold nan
        row = values_ptr + example * row_stride
        value = tl.load(row + at, mask=live, other=0.0).to(tl.float32)
        total += (factor * value).to(tl.float64)
    tl.store(out_ptr + split * length + at, total, mask=at < length)


def weighted_rows(values: Tensor, factors: Tensor, chain: int) -> Tensor:
    """sum_b f_b values_b of rows (B, N) in float32 or half precision, rounded to float32.

    The batch is split over programs; up to `chain` of their results are added in float32.
    """
    total = _total(values, factors, chain)
    return total if total.dtype is torch.float32 else total.float()


def _total(values: Tensor, factors: Tensor, chain: int) -> Tensor:
    values = values if values.stride(1) == 1 else values.contiguous()
    batch, length = values.shape
    if length == 0:  # of a layer without inputs
        return torch.zeros(0, device=values.device)
    block = 1024 if length >= 1024 * _PROGRAMS else 256
    blocks = triton.cdiv(length, block)
    share = triton.cdiv(batch, max(1, min(batch, _MOST_SPLITS, triton.cdiv(_PROGRAMS, blocks))))
    splits = triton.cdiv(batch, share)
    dtype = torch.float32 if splits < chain else torch.float64
    out = torch.empty(splits, length, dtype=dtype, device=values.device)
    _weighted_rows[(blocks, splits)](
        values, factors.float(), out, batch, length, values.stride(0), share,
        BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


def added(parts: Tensor) -> Tensor:
    """The sum over the first dimension, in float64."""
    ones = torch.ones(len(parts), device=parts.device)
    return _total(parts.flatten(1), ones, 1).view(parts.shape[1:])
