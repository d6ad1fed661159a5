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


def taken_back(
    rows: Tensor, weight: Tensor, *, last: bool = False, places: Tensor | None = None
) -> Tensor:
    """(B, N) gradients of the weights in use as those of the weights that are trained.

    last: whether a row is written with the input channels innermost, as the result then is. places:
    (G, n), where in each of its G uses a channel's weights stand, in the order of the rows; without
    it every weight is used once.
    """
    weight = full_precision(weight)  # half precision never accumulates
    used, scale = standardised(weight)
    used = (used.movedim(1, -1) if last else used).flatten(1)  # (channels, n)
    uses = 1 if places is None else len(places)
    gradients = rows.view(len(rows), len(used), uses, used.shape[1])
    if weight.dtype is torch.float32 and used.shape[1] <= _LONGEST and usable(rows):
        from tightrope.train.gradients.kernels import standard

        return standard.taken_back(gradients, used, scale, places).flatten(1)
    total = _of_all_uses(gradients.to(weight.dtype), places)
    along = (total * used).sum(2, keepdim=True)
    mean = total.mean(2, keepdim=True)
    return total.sub(mean).sub_(used * along).mul_(scale.view(-1, 1)).flatten(1)


def _of_all_uses(gradients: Tensor, places: Tensor | None) -> Tensor:
    """(B, channels, n) from (B, channels, G, n)."""
    if places is None:
        return gradients[:, :, 0]
    total = gradients[:, :, 0].index_select(2, places[0])
    for use in range(1, len(places)):
        total += gradients[:, :, use].index_select(2, places[use])
    return total
