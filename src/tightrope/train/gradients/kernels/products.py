"""Per-example products g^T a of a layer, used without being written out.

A layer is read twice: for the squares of every product, and for their weighted sum. Both come from
one compiled kernel that forms a product by the same instructions, so the norms are those of what is
added, bit for bit, also where products run in tf32. Convolutions read the images where their
patches lie; no patch is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from tightrope.train.gradients.kernels.boxes import image_boxes, row_boxes
from tightrope.train.gradients.kernels.pointers import image_pointers, row_pointers
from tightrope.train.gradients.kernels.tiles import Operands
from tightrope.train.gradients.kernels.tokens import added
from tightrope.train.gradients.rounding import TINY

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.geometry import Convolution

__all__ = ["Operands", "images", "rows", "squares_of", "weighted_sum_of", "written"]


def rows(a: Tensor, g: Tensor) -> Operands:
    """Of a linear layer: (B, T, d) and (B, T, p)."""
    return row_boxes(a, g) or row_pointers(a, g)


def images(x: Tensor, g: Tensor, geometry: Convolution, each: int = 1) -> Operands:
    """Of a convolution over x: (B * each, C, H, W); columns are ordered (kh, kw, C)."""
    x = x.contiguous(memory_format=torch.channels_last)
    g = g.contiguous(memory_format=torch.channels_last)
    height, width = g.shape[2:]
    g = g.permute(0, 2, 3, 1).reshape(len(g) // each, each * height * width, g.shape[1])
    shape = (each, height, width)
    return image_boxes(x, g, geometry, shape) or image_pointers(x, g, geometry, shape)


def squares_of(operands: Operands) -> Tensor:
    """(B,) squares of |g_b^T a_b| from above."""
    batch, _, p = operands.g.shape
    # Zeros: where there is no position, nothing is written.
    squares = torch.zeros(batch, operands.tiles, dtype=torch.float64, device=operands.g.device)
    _launch(operands, _ones(operands), operands.share(batch), squares)
    return squares.sum(1).add_(TINY * operands.d * p)


def written(operands: Operands, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, p, d): the products themselves; in another type no longer those of `squares_of`."""
    batch, _, p = operands.g.shape
    out = torch.empty(batch, p, operands.d, dtype=dtype, device=operands.g.device)
    _launch(operands, _ones(operands), 1, out)
    return out


def weighted_sum_of(operands: Operands, factors: Tensor, chain: int) -> Tensor:
    """(p, d) = sum_b f_b g_b^T a_b; at most `chain` examples are added in one float32 chain."""
    share = operands.share(chain)
    parts = (triton.cdiv(len(operands.g), share), operands.g.shape[2], operands.d)
    out = torch.empty(parts, device=operands.g.device)
    _launch(operands, factors.float(), share, out)
    return out[0] if len(out) == 1 else added(out).float()


def _ones(operands: Operands) -> Tensor:
    return torch.ones(len(operands.g), device=operands.g.device)


def _launch(operands: Operands, factors: Tensor, share: int, out: Tensor) -> None:
    """Squares into a float64 tensor, sums into another."""
    summing = out.dtype is not torch.float64
    nothing = torch.empty(1, dtype=torch.float64 if summing else torch.float32, device=out.device)
    grid = (operands.tiles, int(triton.cdiv(len(operands.g), share)))
    places = (out, nothing) if summing else (nothing, out)
    operands.launch(grid, factors, *places, int(summing), share)
