"""Per-example weight gradients of depthwise Conv2d, in one pass over the images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.geometry import Convolution

__all__ = ["written_depthwise"]


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
