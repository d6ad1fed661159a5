"""Per-example products g^T a of a wide layer, used without being written out.

A layer is read twice: for the squares of every product, and for their weighted sum. Both come from
one compiled kernel that forms a product by the same instructions, so the norms are those of what is
added, bit for bit, also where products run in tf32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.rounding import TINY

__all__ = ["product_squares", "weighted_products", "written_products"]

_PROGRAMS = 1056  # enough of them to keep a large GPU busy


class _Tile(NamedTuple):
    rows: int
    columns: int
    positions: int
    warps: int


_FEW, _MANY = _Tile(128, 128, 16, 8), _Tile(128, 64, 32, 4)  # positions; the fastest of six
_HALF = _Tile(128, 64, 64, 4)  # the fastest of eight


def _tile(a: Tensor) -> _Tile:
    if a.element_size() == 2:
        return _HALF
    return _FEW if a.shape[1] <= _FEW.positions else _MANY


# One binary for squares and sums: what differs between the two is not compiled in.
@triton.jit(do_not_specialize=["summing", "batch", "share"])
def _products(
    a_ptr, g_ptr, factor_ptr, out_ptr, squares_ptr, summing, batch, positions, d, p, share,
    a_example, a_position, a_column, g_example, g_position, g_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(d, COLUMNS)
    rows = (tile // tiles) * ROWS + tl.arange(0, ROWS)
    columns = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, POSITIONS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for number in range(split * share, tl.minimum(split * share + share, batch)):
        example = tl.cast(number, tl.int64)
        factor = tl.load(factor_ptr + example)
        live = tl.where(factor > 0.0, positions, 0)  # a dropped example may hold nan
        product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(0, live, POSITIONS):
            here = start + at
            g = tl.load(
                g_ptr + example * g_example + here[None, :] * g_position + rows[:, None] * g_column,
                mask=(here[None, :] < live) & (rows[:, None] < p), other=0.0,
            )  # fmt: skip
            a = tl.load(
                a_ptr + example * a_example + here[:, None] * a_position
                + columns[None, :] * a_column,
                mask=(here[:, None] < live) & (columns[None, :] < d), other=0.0,
            )  # fmt: skip
            product = tl.dot(g, a, product, input_precision="tf32")
        if summing != 0:
            total += factor * product
        else:
            squares = tl.sum(tl.sum(product * product, axis=1).to(tl.float64), axis=0)
            tl.store(squares_ptr + example * tl.num_programs(0) + tile, squares)
    if summing != 0:
        place = out_ptr + split * p * d + rows[:, None].to(tl.int64) * d + columns[None, :]
        tl.store(place, total, mask=(rows[:, None] < p) & (columns[None, :] < d))


def product_squares(a: Tensor, g: Tensor) -> Tensor:
    """(B,) squares of |g_b^T a_b| from above, for a: (B, T, d) and g: (B, T, p) in float32."""
    squares = torch.empty(len(a), _tiles(a, g), dtype=torch.float64, device=a.device)
    _launch(a, g, _ones(a), _share(a, g, len(a)), squares)
    return squares.sum(1).add_(TINY * a.shape[2] * g.shape[2])


def written_products(a: Tensor, g: Tensor) -> Tensor:
    """(B, p, d): the products themselves."""
    out = torch.empty(len(a), g.shape[2], a.shape[2], device=a.device)
    _launch(a, g, _ones(a), 1, out)
    return out


def weighted_products(a: Tensor, g: Tensor, factors: Tensor, chain: int) -> Tensor:
    """(p, d) = sum_b f_b g_b^T a_b; at most `chain` examples are added in one float32 chain."""
    share = _share(a, g, chain)
    parts = (triton.cdiv(len(a), share), g.shape[2], a.shape[2])
    out = torch.empty(parts, device=a.device)
    _launch(a, g, factors.float(), share, out)
    return out[0] if len(out) == 1 else out.sum(0, dtype=torch.float64).float()


def _ones(a: Tensor) -> Tensor:
    return torch.ones(len(a), device=a.device)


def _tiles(a: Tensor, g: Tensor) -> int:
    tile = _tile(a)
    return int(triton.cdiv(g.shape[2], tile.rows) * triton.cdiv(a.shape[2], tile.columns))


def _share(a: Tensor, g: Tensor, most: int) -> int:
    """Examples for each program, so that all together keep the device busy."""
    splits = triton.cdiv(_PROGRAMS, _tiles(a, g))
    return max(1, min(most, triton.cdiv(len(a), splits)))


def _launch(a: Tensor, g: Tensor, factors: Tensor, share: int, out: Tensor) -> None:
    """Squares into a float64 tensor, sums into a float32 one."""
    summing = out.dtype is torch.float32
    other = torch.empty(1, dtype=torch.float64 if summing else torch.float32, device=a.device)
    (batch, positions, d), tile = a.shape, _tile(a)
    _products[(_tiles(a, g), triton.cdiv(batch, share))](
        a, g, factors, *((out, other) if summing else (other, out)), int(summing),
        batch, positions, d, g.shape[2], share, *a.stride(), *g.stride(),
        ROWS=tile.rows, COLUMNS=tile.columns, POSITIONS=tile.positions, num_warps=tile.warps,
    )  # fmt: skip
