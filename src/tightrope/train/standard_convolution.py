"""Weight standardisation (Qiao et al. 2019): every output channel's weights have mean 0, norm 1.

With group normalisation it takes the place of batch normalisation in private networks (De et al.
2022). The gradient engine has a rule for this class; a layer of your own that computes its weight
inside `forward` is right too, and slower.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.kernels import usable

__all__ = ["StandardConv2d", "standardised", "taken_back"]

_LEAST = 1e-4  # added to the square of a channel's norm
_LONGEST = 16_384  # weights of a channel that one program of the kernel holds


@final
class StandardConv2d(nn.Conv2d):
    """A convolution by standardised weights."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardised(self.weight)[0], self.bias)


def standardised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weights in use, and what each channel was multiplied by."""
    inner = tuple(range(1, weight.dim()))
    centred = weight - weight.mean(inner, keepdim=True)
    scale = torch.rsqrt(centred.square().sum(inner, keepdim=True) + _LEAST)
    return centred * scale, scale


def taken_back(gradients: Tensor, weight: Tensor) -> Tensor:
    """(B, *shape) gradients of the weights in use as those of the weights that are trained."""
    weight = full_precision(weight)  # half precision never accumulates
    used, scale = standardised(weight)
    if weight.dtype is torch.float32 and weight[0].numel() <= _LONGEST and usable(gradients):
        from tightrope.train.gradients.kernels import standard

        return standard.taken_back(gradients, used, scale)
    gradients = gradients.to(weight.dtype)
    inner = tuple(range(2, gradients.dim()))
    along = (gradients * used).sum(inner, keepdim=True)
    return gradients.sub(gradients.mean(inner, keepdim=True)).sub_(used * along).mul_(scale)
