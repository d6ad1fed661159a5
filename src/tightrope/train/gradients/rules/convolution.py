"""Conv1d, Conv2d and Conv3d, with groups, dilation, stride and every padding mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tightrope.train.gradients.forms import Convolution, Dense, Mapped, Patches
from tightrope.train.gradients.rules.base import Forms, summed, trainable
from tightrope.train.standard_convolution import StandardConv2d, taken_back
from tightrope.train.symmetric_convolution import SymmetricConv2d

__all__ = ["convolution", "standard_convolution", "symmetric_convolution"]

AnyConv = nn.Conv1d | nn.Conv2d | nn.Conv3d


def convolution(module: AnyConv, x: Tensor, g: Tensor) -> Forms:
    forms: Forms = []
    if trainable(module.weight):
        x, padding = _seen_by_the_kernel(module, x)
        geometry = Convolution(
            module.weight.shape, module.stride, padding, module.dilation, module.groups
        )
        forms.append((module.weight, Patches(x, g, geometry)))
    if module.bias is not None and trainable(module.bias):
        forms.append((module.bias, Dense(summed(g.flatten(2), 2))))
    return forms


def standard_convolution(module: StandardConv2d, x: Tensor, g: Tensor) -> Forms:
    """The same, with the gradients taken back to the weights before they were standardised."""
    weight = module.weight.detach()

    def back(rows: Tensor, last: bool) -> Tensor:
        return taken_back(rows, weight, last=last)

    return [
        (p, Mapped(form, back, weight.shape) if isinstance(form, Patches) else form)
        for p, form in convolution(module, x, g)
    ]


def symmetric_convolution(module: SymmetricConv2d, x: Tensor, g: Tensor) -> Forms:
    """The same, summed over the eight ways in which a weight is used."""
    if not trainable(module.weight):
        return []
    weight = module.weight.detach()
    used = torch.Size((module.out_channels, *weight.shape[1:]))
    x, padding = _seen_by_the_kernel(module, x)
    geometry = Convolution(used, module.stride, padding, module.dilation, 1)

    def back(rows: Tensor, last: bool) -> Tensor:
        return taken_back(rows, weight, last=last, places=module.uses(last=last))

    return [(module.weight, Mapped(Patches(x, g, geometry), back, weight.shape))]


def _seen_by_the_kernel(module: AnyConv, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input and the zero padding still to be added on both sides of it.

    Circular, reflected, replicated and one-sided ("same", even kernels) padding is done here, so
    that norm and gradient see the same values.
    """
    if module.padding_mode == "zeros" and not isinstance(module.padding, str):
        return x, tuple(module.padding)
    none = (0,) * (x.dim() - 2)
    pads = list(module._reversed_padding_repeated_twice)
    if not any(pads):
        return x, none
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(x, pads, mode=mode), none
