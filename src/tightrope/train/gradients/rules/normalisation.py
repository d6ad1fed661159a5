"""Normalisations that act within one example: the gradient is a sum over positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tightrope.train.gradients.forms import Dense
from tightrope.train.gradients.kernels import usable
from tightrope.train.gradients.rules.base import Forms, positions, summed, trainable

__all__ = ["ALL", "LARGE", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


def layer_norm(module: nn.LayerNorm, x: Tensor, g: Tensor) -> Forms:
    shape = module.normalized_shape
    if _rows_fit(x, g, shape):
        return _row_kernel(module, x, g, module.eps, centre=True)
    return _trailing(
        module, functional.layer_norm(_like(x, g), shape, eps=module.eps), g, len(shape)
    )


def rms_norm(module: nn.RMSNorm, x: Tensor, g: Tensor) -> Forms:
    shape = module.normalized_shape
    if _rows_fit(x, g, shape):
        eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
        return _row_kernel(module, x, g, eps, centre=False)
    normal = functional.rms_norm(_like(x, g), shape, eps=module.eps)
    return _trailing(module, normal, g, len(shape))


def group_norm(module: nn.GroupNorm, x: Tensor, g: Tensor) -> Forms:
    if usable(x, g) and g.dim() > 2:
        from tightrope.train.gradients.kernels.normalisation import channel_scale_and_shift

        return _forms(module, *channel_scale_and_shift(x, g, module.num_groups, module.eps))
    return _channels(
        module, functional.group_norm(_like(x, g), module.num_groups, eps=module.eps), g
    )


def instance_norm(module: nn.Module, x: Tensor, g: Tensor) -> Forms:
    return _channels(module, functional.instance_norm(_like(x, g), eps=module.eps), g)


# Rules whose few sums replace gradients as large as an image.
LARGE = (group_norm, instance_norm)
ALL = (*LARGE, layer_norm, rms_norm)


def _rows_fit(x: Tensor, g: Tensor, shape: tuple[int, ...]) -> bool:
    return usable(x, g) and len(shape) == 1 and x.dim() > 2 and shape[0] <= 8192


def _row_kernel(module: nn.Module, x: Tensor, g: Tensor, eps: float, *, centre: bool) -> Forms:
    from tightrope.train.gradients.kernels.normalisation import row_scale_and_shift

    return _forms(module, *row_scale_and_shift(positions(x), positions(g), eps, centre=centre))


def _forms(module: nn.Module, scale: Tensor, shift: Tensor) -> Forms:
    forms: Forms = [(module.weight, Dense(scale))] if trainable(module.weight) else []
    bias = module._parameters.get("bias")
    if bias is not None and bias.requires_grad:
        forms.append((bias, Dense(shift)))
    return forms


def _like(x: Tensor, g: Tensor) -> Tensor:
    """Normalise in the wider of the two types, as autocast does."""
    return x.to(torch.promote_types(x.dtype, g.dtype))


def _trailing(module: nn.Module, normal: Tensor, g: Tensor, dims: int) -> Forms:
    """Scale and shift lie on the last `dims` dimensions; sum over the positions between."""
    between = tuple(range(1, g.dim() - dims))
    return _scale_and_shift(module, normal, g, between)


def _channels(module: nn.Module, normal: Tensor, g: Tensor) -> Forms:
    """Scale and shift lie on dimension 1; sum over space."""
    return _scale_and_shift(module, normal, g, tuple(range(2, g.dim())))


def _scale_and_shift(module: nn.Module, normal: Tensor, g: Tensor, over: tuple[int, ...]) -> Forms:
    forms: Forms = []
    if trainable(module.weight):
        forms.append((module.weight, Dense(_sum(normal * g, over))))
    bias = module._parameters.get("bias")
    if bias is not None and bias.requires_grad:
        forms.append((bias, Dense(_sum(g, over))))
    return forms


def _sum(values: Tensor, over: tuple[int, ...]) -> Tensor:
    return summed(values, over) if over else values
