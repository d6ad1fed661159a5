"""Per-example weight gradients of Conv2d without writing the patches out.

For each example the gradient is a product (P, T) x (T, C k k); the patch values are read from the
image as the product needs them, and the squares are summed as it goes. This is for small layers,
where a launch costs more than the work; large ones are faster with the patches written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.rounding import lower_layers

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.geometry import Convolution

__all__ = ["convolution_gradients", "unfold"]

_MOST_TILES = 1024  # whose squares are added in float32, see clip.NORM_ERROR


@triton.jit
def _gradients(
    x_ptr, g_ptr, out_ptr, squares_ptr, outputs, inputs, positions, width,
    x_batch, x_channel, x_row, x_column, g_batch, g_channel, g_row, g_column,
    height_in, width_in, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row_block, column_block = tl.program_id(0), tl.program_id(1)
    example = tl.program_id(2).to(tl.int64)
    row = row_block * ROWS + tl.arange(0, ROWS)
    column = column_block * COLUMNS + tl.arange(0, COLUMNS)
    channel = column // (KERNEL_H * KERNEL_W)
    tap = column % (KERNEL_H * KERNEL_W)
    tap_h = (tap // KERNEL_W) * DILATE_H - PAD_H
    tap_w = (tap % KERNEL_W) * DILATE_W - PAD_W
    k = tl.arange(0, DEPTH)
    x_base = x_ptr + example * x_batch + channel[:, None] * x_channel
    g_base = g_ptr + example * g_batch + row[:, None] * g_channel
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, positions, DEPTH):
        t = start + k
        top, side = t // width, t % width
        inside = (row < outputs)[:, None] & (t < positions)[None, :]
        g = tl.load(g_base + top[None, :] * g_row + side[None, :] * g_column,
                    mask=inside, other=0.0)  # fmt: skip
        h = top[None, :] * STRIDE_H + tap_h[:, None]
        w = side[None, :] * STRIDE_W + tap_w[:, None]
        seen = (h >= 0) & (h < height_in) & (w >= 0) & (w < width_in)
        seen = seen & (column < inputs)[:, None] & (t < positions)[None, :]
        x = tl.load(x_base + h * x_row + w * x_column, mask=seen, other=0.0)
        total = tl.dot(g, tl.trans(x), total, input_precision=PRECISION)
    part = example * (tl.num_programs(0) * tl.num_programs(1))
    part += row_block * tl.num_programs(1) + column_block
    lost = ROWS * COLUMNS * 1.1754944e-38  # squares that underflow, see rounding.TINY
    tl.store(squares_ptr + part, tl.sum(tl.sum(total * total, 1), 0) + lost)
    target = out_ptr + example * outputs * inputs + row[:, None] * inputs + column[None, :]
    tl.store(target, total, mask=(row < outputs)[:, None] & (column < inputs)[None, :])


def convolution_gradients(x: Tensor, g: Tensor, geometry: Convolution) -> tuple[Tensor, Tensor]:
    """Squared norms (B,) and the gradients (B, *weight shape); in tf32 if convolutions may be."""
    outputs, channels, *kernel = geometry.weight_shape
    inputs = channels * kernel[0] * kernel[1]
    batch = g.shape[0]
    rows = 16 if outputs <= 16 else 32 if outputs <= 32 else 64 if outputs <= 64 else 128
    columns = 64 if inputs <= 64 or rows == 128 else 128
    grid = (triton.cdiv(outputs, rows), triton.cdiv(inputs, columns), batch)
    squares = torch.empty(batch, grid[0] * grid[1], dtype=torch.float32, device=g.device)
    out = torch.empty(batch, *geometry.weight_shape, dtype=torch.float32, device=g.device)
    _gradients[grid](
        x, g, out, squares, outputs, inputs, g.shape[2] * g.shape[3], g.shape[3],
        *x.stride(), *g.stride(), x.shape[2], x.shape[3], *kernel,
        *geometry.stride, *geometry.padding, *geometry.dilation,
        ROWS=rows, COLUMNS=columns, DEPTH=32, PRECISION="tf32" if lower_layers() else "ieee",
        num_warps=4 if rows < 128 else 8, num_stages=2,
    )  # fmt: skip
    return _added(squares), out


def _added(squares: Tensor) -> Tensor:
    """(B,) from the squares of the tiles."""
    if squares.shape[1] == 1:
        return squares.view(-1)
    many = squares.shape[1] > _MOST_TILES
    return squares.sum(1, dtype=torch.float64).float() if many else squares.sum(1)


@triton.jit
def _unfold(
    x_ptr, out_ptr, inputs, positions, width, each, x_batch, x_channel, x_row, x_column,
    height_in, width_in, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATE_H: tl.constexpr, DILATE_W: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    example = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = row // (KERNEL_H * KERNEL_W)
    tap = row % (KERNEL_H * KERNEL_W)
    h = ((t // width) * STRIDE_H - PAD_H)[None, :] + ((tap // KERNEL_W) * DILATE_H)[:, None]
    w = ((t % width) * STRIDE_W - PAD_W)[None, :] + ((tap % KERNEL_W) * DILATE_W)[:, None]
    inside = (row < inputs)[:, None] & (t < positions)[None, :]
    seen = inside & (h >= 0) & (h < height_in) & (w >= 0) & (w < width_in)
    source = x_ptr + example * x_batch + channel[:, None] * x_channel + h * x_row + w * x_column
    values = tl.load(source, mask=seen, other=0.0)
    place = (example // each) * inputs * each + example % each
    line = row[:, None].to(tl.int64) * each * positions
    target = out_ptr + place * positions + line + t[None, :]
    tl.store(target, values, mask=inside)


def unfold(x: Tensor, geometry: Convolution, space: list[int], each: int = 1) -> Tensor:
    """(B, C k k, each * T): the patches of (B * each, C, H, W), zero padding included."""
    _, channels, *kernel = geometry.weight_shape
    inputs, positions = channels * kernel[0] * kernel[1], space[0] * space[1]
    shape = (len(x) // each, inputs, each * positions)
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    block = min(256, max(16, triton.next_power_of_2(positions)))
    rows = max(1, 2048 // block)
    _unfold[(triton.cdiv(positions, block), triton.cdiv(inputs, rows), len(x))](
        x, out, inputs, positions, space[1], each, *x.stride(), x.shape[2], x.shape[3], *kernel,
        *geometry.stride, *geometry.padding, *geometry.dilation,
        ROWS=rows, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out
