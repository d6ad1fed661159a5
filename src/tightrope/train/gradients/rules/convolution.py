"""Conv1d, Conv2d and Conv3d, with groups, dilation, stride and every padding mode."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from tightrope.train.gradients.forms import Convolution, Dense, Mapped, Patches
from tightrope.train.gradients.rules.base import Forms, summed, trainable
from tightrope.train.standard_convolution import StandardConv2d, taken_back

__all__ = ["convolution", "standard_convolution"]

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
    back = partial(taken_back, weight=module.weight.detach())
    return [
        (parameter, Mapped(form, back) if isinstance(form, Patches) else form)
        for parameter, form in convolution(module, x, g)
    ]


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
