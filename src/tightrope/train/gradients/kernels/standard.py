"""Gradients of standardised weights taken back to the weights that are trained, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["taken_back"]


@triton.jit
def _taken_back(
    g_ptr, used_ptr, scale_ptr, places_ptr, out_ptr, channels, length, uses,
    PLACED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = row % channels
    at = tl.arange(0, BLOCK)
    inside = at < length
    start = g_ptr + row * uses * length
    if PLACED:
        g = tl.zeros((BLOCK,), dtype=tl.float32)
        for use in range(uses):
            place = tl.load(places_ptr + use * length + at, mask=inside, other=0)
            g += tl.load(start + use * length + place, mask=inside, other=0.0).to(tl.float32)
    else:
        g = tl.load(start + at, mask=inside, other=0.0).to(tl.float32)
    used = tl.load(used_ptr + channel * length + at, mask=inside, other=0.0)
    left = g - tl.sum(g, 0) / length - used * tl.sum(g * used, 0)
    tl.store(out_ptr + row * length + at, left * tl.load(scale_ptr + channel), mask=inside)


def taken_back(gradients: Tensor, used: Tensor, scale: Tensor, places: Tensor | None) -> Tensor:
    """(B, channels, n) in float32 from (B, channels, G, n), see `standard_convolution.taken_back`.

    used: the weights in use, (channels, n); scale: what each channel was multiplied by. A program
    does one channel of one example, whatever the others are.
    """
    batch, channels, uses, length = gradients.shape
    out = torch.empty(batch, channels, length, dtype=torch.float32, device=gradients.device)
    block = triton.next_power_of_2(length)
    table = scale if places is None else places.to(torch.int32).contiguous()
    _taken_back[(batch * channels,)](
        gradients.contiguous(), used.contiguous(), scale.contiguous(), table, out,
        channels, length, uses, PLACED=places is not None, BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return out
