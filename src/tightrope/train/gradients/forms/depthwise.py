"""Depthwise convolutions: every channel has a kernel of its own, so no product is worth patches.

The gradient of a channel at a tap of its kernel is the sum over positions of the output gradient
times the input that the tap sees there: a convolution of the input with the output gradient as
kernel (Rochette et al. 2019), in which every channel of every example is a channel of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.kernels import usable

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.geometry import Convolution

__all__ = ["depthwise_gradients", "is_depthwise"]

_FEW_POSITIONS = 16  # up to which the library is faster channels last
_CONVOLVE = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}


def is_depthwise(convolution: Convolution) -> bool:
    """Whether each output channel reads one input channel, and there are several."""
    return bool(convolution.groups > 1 and convolution.weight_shape[1] == 1)


def depthwise_gradients(x: Tensor, g: Tensor, convolution: Convolution) -> Tensor:
    """(B, *weight shape) in float32 or wider, from (B, C, *space) and (B, P, *out)."""
    if g.dim() == 4 and usable(x, g):
        from tightrope.train.gradients.kernels.depthwise import written_depthwise

        return written_depthwise(x, g, convolution)
    x, g = full_precision(x), full_precision(g)
    channels = x.shape[0] * x.shape[1]
    x = x.reshape(1, channels, *x.shape[2:])
    if g.dim() == 4 and g.shape[2:].numel() <= _FEW_POSITIONS:
        x = x.contiguous(memory_format=torch.channels_last)
    found = _CONVOLVE[g.dim()](
        x,
        g.reshape(-1, 1, *g.shape[2:]),
        stride=convolution.dilation,
        padding=convolution.padding,
        dilation=convolution.stride,
        groups=channels,
    )
    for dim, size in enumerate(convolution.kernel, start=2):  # a stride may leave some input over
        found = found.narrow(dim, 0, size)
    return found.reshape(len(g), *convolution.weight_shape)
