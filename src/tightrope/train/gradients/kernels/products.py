"""Per-example products g^T a of a layer, used without being written out.

A layer is read twice: for the squares of every product, and for their weighted sum. Both come from
one compiled kernel that forms a product by the same instructions, so the norms are those of what is
added, bit for bit, also where products run in tf32. Convolutions read the images where their
patches lie; no patch is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.kernels.tokens import added
from tightrope.train.gradients.rounding import TINY

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.patches import Convolution

__all__ = ["Operands", "images", "rows", "squares_of", "weighted_sum_of", "written"]

_PROGRAMS = 1056  # enough of them to keep a large GPU busy


class _Tile(NamedTuple):
    rows: int
    columns: int
    positions: int
    warps: int
    stages: int


_FEW, _MANY = _Tile(128, 128, 16, 8, 3), _Tile(128, 64, 32, 4, 3)  # positions, in tf32
# In bfloat16, the fastest of many: rows; images of few positions with many outputs, and of many.
_HALF, _WIDE, _LONG = _Tile(64, 128, 64, 4, 3), _Tile(128, 128, 64, 8, 3), _Tile(64, 128, 128, 4, 2)


# One binary for squares and sums: what differs between the two is not compiled in. Examples and
# blocks of positions are one loop, so that the next example is read while one is multiplied. One
# position as a constant is more than the compiler can bear.
@triton.jit(do_not_specialize=["summing", "batch", "share", "positions"])
def _products(
    a_ptr, g_ptr, factor_ptr, out_ptr, squares_ptr, summing, batch, positions, d, p, share,
    a_example, a_view, a_row, a_column, a_channel, g_example, g_position, g_column,
    channels, height_in, width_in,
    CONVOLUTION: tl.constexpr, SPACE: tl.constexpr, WIDTH: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    tiles = tl.cdiv(d, COLUMNS)
    rows = (tile // tiles) * ROWS + tl.arange(0, ROWS)
    columns = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, POSITIONS)
    if CONVOLUTION:
        tap = columns // channels
        tap_h, tap_w = (tap // KERNEL_W) * DILATE_H - PAD_H, (tap % KERNEL_W) * DILATE_W - PAD_W
        channel = columns % channels
    blocks = tl.cdiv(positions, POSITIONS)
    first = split * share
    count = tl.minimum(share, batch - first)
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for number in range(count * blocks):
        block = number % blocks
        example = (first + number // blocks).to(tl.int64)
        here = block * POSITIONS + at
        g = tl.load(
            g_ptr + example * g_example + here[None, :] * g_position + rows[:, None] * g_column,
            mask=(here[None, :] < positions) & (rows[:, None] < p), other=0.0,
        )  # fmt: skip
        inside = (here[:, None] < positions) & (columns[None, :] < d)
        if CONVOLUTION:
            place = here % SPACE
            h = (place // WIDTH)[:, None] * STRIDE_H + tap_h[None, :]
            w = (place % WIDTH)[:, None] * STRIDE_W + tap_w[None, :]
            inside = inside & (h >= 0) & (h < height_in) & (w >= 0) & (w < width_in)
            offset = (here // SPACE)[:, None] * a_view + h * a_row + w * a_column
            offset += channel[None, :] * a_channel
        else:
            offset = here[:, None] * a_column + columns[None, :] * a_channel
        a = tl.load(a_ptr + example * a_example + offset, mask=inside, other=0.0)
        product = tl.dot(g, a, product, input_precision="tf32")
        if block == blocks - 1:
            if summing != 0:
                factor = tl.load(factor_ptr + example)
                if factor > 0.0:  # a dropped example may hold nan
                    total += factor * product
            else:
                squares = tl.sum(tl.sum(product * product, axis=1).to(tl.float64), axis=0)
                tl.store(squares_ptr + example * tl.num_programs(0) + tile, squares)
            product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if summing != 0:
        start = out_ptr + split.to(tl.int64) * p * d
        place = start + rows[:, None].to(tl.int64) * d + columns[None, :]
        tl.store(place, total, mask=(rows[:, None] < p) & (columns[None, :] < d))


class Operands(NamedTuple):
    """a: rows (B, T, d), or images; g: (B, T, p); and how the kernel reads them."""

    a: Tensor
    g: Tensor
    d: int
    reads: tuple[int, ...]  # strides of a, of g, and sizes
    shape: dict[str, Any]

    def tile(self) -> _Tile:
        if self.a.element_size() == 2:
            _, positions, outputs = self.g.shape
            if self.shape["CONVOLUTION"] and positions >= _LONG.positions:
                return _LONG
            return _WIDE if self.shape["CONVOLUTION"] and outputs > _HALF.rows else _HALF
        return _FEW if self.g.shape[1] <= _FEW.positions else _MANY

    def tiles(self) -> int:
        tile = self.tile()
        return int(triton.cdiv(self.g.shape[2], tile.rows) * triton.cdiv(self.d, tile.columns))

    def share(self, most: int) -> int:
        """Examples for each program, so that all together keep the device busy."""
        splits = triton.cdiv(_PROGRAMS, self.tiles())
        return max(1, min(most, triton.cdiv(len(self.g), splits)))


_OF_IMAGES = "SPACE WIDTH KERNEL_W STRIDE_H STRIDE_W PAD_H PAD_W DILATE_H DILATE_W"
_NO_CONVOLUTION = {"CONVOLUTION": False} | dict.fromkeys(_OF_IMAGES.split(), 0)


def rows(a: Tensor, g: Tensor) -> Operands:
    """Of a linear layer."""
    example, position, channel = a.stride()
    reads = (example, 0, 0, position, channel, *g.stride(), 1, 1, 1)
    return Operands(a, g, a.shape[2], reads, _NO_CONVOLUTION)


def images(x: Tensor, g: Tensor, geometry: Convolution, each: int = 1) -> Operands:
    """Of a convolution over x: (B * each, C, H, W); columns are ordered (kh, kw, C)."""
    x = x.contiguous(memory_format=torch.channels_last)
    g = g.contiguous(memory_format=torch.channels_last)
    view, channel, row, column = x.stride()
    height, width = g.shape[2:]
    g = g.permute(0, 2, 3, 1).reshape(len(g) // each, each * height * width, g.shape[1])
    (kernel_h, kernel_w), (stride_h, stride_w) = geometry.kernel, geometry.stride
    (pad_h, pad_w), (dilate_h, dilate_w) = geometry.padding, geometry.dilation
    reads = (each * view, view, row, column, channel, *g.stride())
    sizes = (x.shape[1], x.shape[2], x.shape[3])
    steps = {"STRIDE_H": stride_h, "STRIDE_W": stride_w, "DILATE_H": dilate_h, "DILATE_W": dilate_w}
    space = {"CONVOLUTION": True, "SPACE": height * width, "WIDTH": width}
    shape = space | {"KERNEL_W": kernel_w, "PAD_H": pad_h, "PAD_W": pad_w} | steps
    return Operands(x, g, kernel_h * kernel_w * x.shape[1], (*reads, *sizes), shape)


def squares_of(operands: Operands) -> Tensor:
    """(B,) squares of |g_b^T a_b| from above."""
    batch, _, p = operands.g.shape
    squares = torch.empty(batch, operands.tiles(), dtype=torch.float64, device=operands.g.device)
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
    a, g, tile = operands.a, operands.g, operands.tile()
    summing = out.dtype is not torch.float64
    other = torch.empty(1, dtype=torch.float64 if summing else torch.float32, device=g.device)
    (batch, positions, p) = g.shape
    _products[(operands.tiles(), triton.cdiv(batch, share))](
        a, g, factors, *((out, other) if summing else (other, out)), int(summing),
        batch, positions, operands.d, p, share, *operands.reads, **operands.shape,
        ROWS=tile.rows, COLUMNS=tile.columns, POSITIONS=tile.positions,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
