"""What a convolution reads: its geometry, and the patches of images, written out."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.train.gradients.buffers import scratch
from tightrope.train.gradients.kernels import usable

__all__ = ["Convolution", "in_order"]


@final
@dataclass(frozen=True)
class Convolution:
    """Geometry of a convolution with symmetric zero padding (other paddings are done before)."""

    weight_shape: torch.Size
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.weight_shape[2:])

    def unfold(self, x: Tensor, each: int = 1) -> Tensor:
        """(B * groups, each * T, d): the patches of (B * each, C, *space).

        Columns are as in `in_order`, innermost channels where `channels_last` says so.
        """
        space = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, k, s, d in zip(
                x.shape[2:], self.padding, self.kernel, self.stride, self.dilation, strict=True
            )
        ]
        if self.groups == each == 1 and self._copies:
            return x.flatten(2).transpose(1, 2)
        if self._by_kernel(x):
            from tightrope.train.gradients.kernels import convolution

            return convolution.unfold(x, self, space, each).transpose(1, 2)
        if any(self.padding):
            x = functional.pad(x, [n for n in reversed(self.padding) for _ in range(2)])
        return self._unfold_padded(x, space, each)

    @property
    def _copies(self) -> bool:
        """Whether the patches are the image itself: one tap, which sees every place once."""
        return not any(self.padding) and {*self.kernel, *self.stride} == {1}

    def _by_kernel(self, x: Tensor) -> bool:
        return self.groups == 1 and x.dim() == 4 and usable(x)

    def channels_last(self, x: Tensor) -> bool:
        """Whether a patch is written with its channels innermost.

        Where the kernel jumps, neighbouring outputs read values that lie apart; the channels of
        neighbouring places then make the longer run to copy.
        """
        jumps = self.stride[-1] > 1 and self.kernel[-1] > 1
        return jumps and self.groups == 1 and not self._by_kernel(x)

    def _unfold_padded(self, x: Tensor, space: list[int], each: int) -> Tensor:
        dims, batch, channels = range(len(space)), len(x) // each, x.shape[1]
        last = self.channels_last(x)
        x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
        step = x.stride()
        taps = [step[2 + i] * self.dilation[i] for i in dims]
        jumps = [step[2 + i] * self.stride[i] for i in dims]
        if last:
            size = (batch, each, *space, *self.kernel, channels)
            strides = (step[0] * each, step[0], *jumps, *taps, step[1])
        else:
            size = (batch, channels, *self.kernel, each, *space)
            strides = (step[0] * each, step[1], *taps, step[0], *jumps)
        patches = scratch(size, x.dtype, x.device)
        patches.copy_(x.as_strided(size, strides, x.storage_offset()))
        if last:
            return patches.view(batch, each * prod(space), -1)
        return patches.view(batch * self.groups, -1, each * prod(space)).transpose(1, 2)


def in_order(rows: Tensor, shape: torch.Size, *, last: bool) -> Tensor:
    """(*, N) as (*, *shape); last: whether the input channels are innermost."""
    lead = rows.shape[:-1]
    if not last:
        return rows.view(*lead, *shape)
    outputs, inputs, *kernel = shape
    return rows.view(*lead, outputs, *kernel, inputs).movedim(-1, len(lead) + 1)
