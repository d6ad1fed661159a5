"""Linear layers over positions in half precision: norms from Gram tiles, sums scaled in float32.

`gram_sums` forms the tiles of a a^T and g g^T together, multiplies them and keeps only sums; each
pair of tiles is visited once, since the matrices are symmetric.
`weighted_product` computes sum_b f_b g_b^T a_b. Multiplying the half-precision operands by f_b
first would round f_b g_b to 8 bits, which can release more than the clip norm; here it meets the
float32 accumulator instead.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["aligned", "gram_sums", "weighted_product", "weighted_rows"]


@triton.jit
def _gram_sums(
    a_ptr, g_ptr, out_ptr, positions, d, p,
    a_batch, a_row, g_batch, g_row, pairs,
    TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    example = tl.program_id(1).to(tl.int64)
    # pair -> (i, j) with j <= i; the float root is corrected by one where it rounds
    i = ((tl.sqrt(8.0 * pair + 1.0) - 1.0) / 2.0).to(tl.int32)
    i = tl.where((i + 1) * (i + 2) // 2 <= pair, i + 1, i)
    i = tl.where(i * (i + 1) // 2 > pair, i - 1, i)
    j = pair - i * (i + 1) // 2
    left, right = i * TILE + tl.arange(0, TILE), j * TILE + tl.arange(0, TILE)
    in_left, in_right = left < positions, right < positions
    k = tl.arange(0, DEPTH)

    a_gram = tl.zeros((TILE, TILE), dtype=tl.float32)
    base = a_ptr + example * a_batch
    for start in range(0, d, DEPTH):
        inside = (start + k) < d
        x = tl.load(base + left[:, None] * a_row + (start + k)[None, :],
                    mask=in_left[:, None] & inside[None, :], other=0.0)  # fmt: skip
        y = tl.load(base + right[:, None] * a_row + (start + k)[None, :],
                    mask=in_right[:, None] & inside[None, :], other=0.0)  # fmt: skip
        a_gram = tl.dot(x, tl.trans(y), a_gram)

    g_gram = tl.zeros((TILE, TILE), dtype=tl.float32)
    base = g_ptr + example * g_batch
    for start in range(0, p, DEPTH):
        inside = (start + k) < p
        x = tl.load(base + left[:, None] * g_row + (start + k)[None, :],
                    mask=in_left[:, None] & inside[None, :], other=0.0)  # fmt: skip
        y = tl.load(base + right[:, None] * g_row + (start + k)[None, :],
                    mask=in_right[:, None] & inside[None, :], other=0.0)  # fmt: skip
        g_gram = tl.dot(x, tl.trans(y), g_gram)

    twice = tl.where(i == j, 1.0, 2.0)
    product = a_gram * g_gram
    same = left[:, None] == right[None, :]
    slot = out_ptr + (example * pairs + pair) * 4
    tl.store(slot, twice * tl.sum(tl.sum(product, 1), 0))
    tl.store(slot + 1, twice * tl.sum(tl.sum(g_gram, 1), 0))
    tl.store(slot + 2, tl.sum(tl.sum(tl.where(same, product, 0.0), 1), 0))
    tl.store(slot + 3, tl.sum(tl.sum(tl.where(same, g_gram, 0.0), 1), 0))


def gram_sums(a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """(B,) each: |sum_t g_t a_t^T|^2, |sum_t g_t|^2, sum_t |a_t|^2 |g_t|^2 and sum_t |g_t|^2."""
    a, g = aligned(a), aligned(g)
    batch, positions, d = a.shape
    tile = 128 if positions > 256 else 64
    count = triton.cdiv(positions, tile)
    pairs = count * (count + 1) // 2
    out = torch.empty(batch, pairs, 4, dtype=torch.float32, device=a.device)
    _gram_sums[(pairs, batch)](
        a, g, out, positions, d, g.shape[2],
        a.stride(0), a.stride(1), g.stride(0), g.stride(1), pairs,
        TILE=tile, DEPTH=64, num_warps=8 if tile == 128 else 4, num_stages=3,
    )  # fmt: skip
    return out.sum(1).unbind(1)


@triton.jit
def _weighted_product(
    a_ptr, g_ptr, factor_ptr, out_ptr, shift_ptr, batch, positions, d, p,
    a_batch, a_row, g_batch, g_row, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    row_block, column_block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = row_block * ROWS + tl.arange(0, ROWS)
    columns = column_block * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    shift = tl.zeros((ROWS,), dtype=tl.float32)
    blocks = (positions + DEPTH - 1) // DEPTH
    first = split * share
    last = tl.minimum(first + share, batch)
    for step in range(first * blocks, last * blocks):
        example = (step // blocks).to(tl.int64)
        t = (step % blocks) * DEPTH + k
        factor = tl.load(factor_ptr + example)
        live = t < tl.where(factor > 0.0, positions, 0)  # a dropped example may hold nan
        g = tl.load(g_ptr + example * g_batch + t[:, None] * g_row + rows[None, :],
                    mask=live[:, None] & (rows < p)[None, :], other=0.0)  # fmt: skip
        a = tl.load(a_ptr + example * a_batch + t[:, None] * a_row + columns[None, :],
                    mask=live[:, None] & (columns < d)[None, :], other=0.0)  # fmt: skip
        total += factor * tl.dot(tl.trans(g), a)
        if SHIFT:
            shift += factor * tl.sum(g.to(tl.float32), 0)
    inside = (rows < p)[:, None] & (columns < d)[None, :]
    target = out_ptr + split * p * d + rows[:, None] * d + columns[None, :]
    tl.store(target, total, mask=inside)
    if SHIFT:
        tl.store(shift_ptr + split * p + rows, shift, mask=(rows < p) & (column_block == 0))


def weighted_product(
    a: Tensor, g: Tensor, factors: Tensor, *, shift: bool
) -> tuple[Tensor, Tensor | None]:
    """sum_b f_b g_b^T a_b (p, d) and, where asked for, sum_b f_b sum_t g_bt (p,)."""
    a, g = aligned(a), aligned(g)
    batch, positions, d = a.shape
    p = g.shape[2]
    rows = columns = 128 if min(d, p) >= 128 else 64
    tiles = triton.cdiv(p, rows) * triton.cdiv(d, columns)
    share = triton.cdiv(batch, max(1, min(batch, triton.cdiv(264, tiles))))
    splits = triton.cdiv(batch, share)
    out = torch.empty(splits, p, d, dtype=torch.float32, device=a.device)
    moved: Any = torch.empty(splits, p, dtype=torch.float32, device=a.device) if shift else out
    _weighted_product[(triton.cdiv(p, rows), triton.cdiv(d, columns), splits)](
        a, g, factors.float(), out, moved, batch, positions, d, p,
        a.stride(0), a.stride(1), g.stride(0), g.stride(1), share,
        ROWS=rows, COLUMNS=columns, DEPTH=64, SHIFT=shift,
        num_warps=8 if rows == 128 else 4, num_stages=3,
    )  # fmt: skip
    if splits == 1:
        return out[0], moved[0] if shift else None
    return out.sum(0), moved.sum(0) if shift else None


def aligned(values: Tensor) -> Tensor:
    """Rows that start at multiples of 16 bytes, as wide loads need; others are copied."""
    width = values.shape[2]
    step = 16 // values.element_size()
    strides = values.stride()
    if strides[2] == 1 and strides[1] % step == 0 and strides[0] % step == 0:
        return values
    room = values.new_empty(*values.shape[:2], (width + step - 1) // step * step)
    return room[:, :, :width].copy_(values)


@triton.jit
def _weighted_rows(
    values_ptr, factor_ptr, out_ptr, batch, length, row_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for number in range(batch):
        example = tl.cast(number, tl.int64)
        factor = tl.load(factor_ptr + example)
        live = at < tl.where(factor > 0.0, length, 0)
        row = values_ptr + example * row_stride
        total += factor * tl.load(row + at, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, total, mask=at < length)


def weighted_rows(values: Tensor, factors: Tensor) -> Tensor:
    """sum_b f_b values_b of half-precision rows (B, N), in float32."""
    values = values if values.stride(1) == 1 else values.contiguous()
    batch, length = values.shape
    out = torch.empty(length, dtype=torch.float32, device=values.device)
    block = 1024
    _weighted_rows[(triton.cdiv(length, block),)](
        values, factors.float(), out, batch, length, values.stride(0), BLOCK=block, num_warps=4
    )
    return out
