"""Triton kernels of one pass: sums over examples, squares of rows, patches and small convolutions.

Weighted sums have float64 accumulators: reading the gradients takes longer than adding them so.
Small convolutions are bound by launches: for each example the gradient is a product (P, T) x
(T, C k k) whose patches are read from the image as it needs them, and squared as it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.rounding import TINY, lower_layers

if TYPE_CHECKING:
    from tightrope.train.gradients.convolution import Convolution

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


# Squares.


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


# Convolutions.

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
    return _of_tiles(squares), out


def _of_tiles(squares: Tensor) -> Tensor:
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


@triton.jit
def _depthwise(
    x_ptr, g_ptr, out_ptr, outputs, multiple, positions, width,
    x_batch, x_channel, x_row, x_column, g_batch, g_channel, g_row, g_column,
    height_in, width_in, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    POSITIONS: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    example, tap_h = tl.program_id(0).to(tl.int64), tl.program_id(2)
    channel = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, None, :]
    tap = tl.arange(0, TAPS)[None, :, None]
    at = tl.arange(0, POSITIONS)[:, None, None]
    x_base = x_ptr + example * x_batch + (channel // multiple) * x_channel
    g_base = g_ptr + example * g_batch + channel * g_channel
    total = tl.zeros((POSITIONS, TAPS, CHANNELS), dtype=tl.float32)
    for start in range(0, positions, POSITIONS):
        t = start + at
        top, side = t // width, t % width
        inside = (t < positions) & (channel < outputs)
        g = tl.load(g_base + top * g_row + side * g_column, mask=inside, other=0.0)
        h = top * STRIDE_H + tap_h * DILATE_H - PAD_H
        w = side * STRIDE_W + tap * DILATE_W - PAD_W
        seen = inside & (tap < KERNEL_W) & (h >= 0) & (h < height_in) & (w >= 0) & (w < width_in)
        x = tl.load(x_base + h * x_row + w * x_column, mask=seen, other=0.0)
        total += g.to(tl.float32) * x.to(tl.float32)
    sums = tl.expand_dims(tl.sum(total, 0), 0)
    place = ((example * outputs + channel) * KERNEL_H + tap_h) * KERNEL_W + tap
    tl.store(out_ptr + place, sums, mask=(channel < outputs) & (tap < KERNEL_W))


def written_depthwise(x: Tensor, g: Tensor, geometry: Convolution) -> Tensor:
    """(B, P, 1, kh, kw) in float32, from x: (B, C, H, W) and g: (B, P, h, w) in any layout."""
    outputs, _, *kernel = geometry.weight_shape
    out = torch.empty(len(g), *geometry.weight_shape, dtype=torch.float32, device=g.device)
    positions, channels = (16, 32) if x.stride(1) == 1 else (128, 4)
    _depthwise[(len(g), triton.cdiv(outputs, channels), kernel[0])](
        x, g, out, outputs, outputs // geometry.groups, g.shape[2] * g.shape[3], g.shape[3],
        *x.stride(), *g.stride(), x.shape[2], x.shape[3], *kernel,
        *geometry.stride, *geometry.padding, *geometry.dilation,
        POSITIONS=positions, TAPS=triton.next_power_of_2(kernel[1]), CHANNELS=channels,
        num_warps=4,
    )  # fmt: skip
    return out
