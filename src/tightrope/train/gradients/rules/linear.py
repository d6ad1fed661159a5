"""Linear layers, and the transposed linear layer that Hugging Face calls Conv1D."""

from __future__ import annotations

from torch import Tensor, nn

from tightrope.train.gradients.forms import Dense, Outer, RankOne, Shift, Signal
from tightrope.train.gradients.rules.base import Forms, positions, summed, trainable

__all__ = ["bias_form", "linear", "transposed_linear"]


def bias_form(g: Tensor) -> Dense:
    """The gradient of what is added at every position of (B, *, p)."""
    g = positions(g) if g.dim() > 2 else g
    return Dense(summed(g, 1) if g.dim() > 2 else g)


def linear(module: nn.Linear, x: Tensor, g: Tensor) -> Forms:
    if g.dim() == 2:
        return _once(module, x, g)
    forms: Forms = []
    if trainable(module.weight):
        forms.append((module.weight, Outer(positions(x), positions(g))))
    if trainable(module.bias):
        forms.append((module.bias, bias_form(g)))
    return forms


def _once(module: nn.Linear, x: Tensor, g: Tensor) -> Forms:
    """One position for each example."""
    signal = Signal(g)
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    forms: Forms = []
    if weight is not None and weight.requires_grad:
        forms.append((weight, RankOne(x, signal)))
    if bias is not None and bias.requires_grad:
        forms.append((bias, Shift(signal)))
    return forms


def transposed_linear(module: nn.Module, x: Tensor, g: Tensor) -> Forms:
    """weight is (inputs, outputs): the two sides of the outer product change places."""
    forms: Forms = []
    weight, bias = module._parameters["weight"], module._parameters["bias"]
    if weight is not None and weight.requires_grad:
        forms.append((weight, Outer(positions(g), positions(x))))
    if bias is not None and bias.requires_grad:
        forms.append((bias, bias_form(g)))
    return forms
