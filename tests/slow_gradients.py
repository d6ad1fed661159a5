"""The definition, written as slowly as it reads: one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.train.clip import Clip

__all__ = ["loop_clipped_sum", "loop_gradients"]


def loop_gradients(
    model: nn.Module, losses_of: Callable[..., Tensor], *inputs: Any
) -> list[Tensor]:
    """(B, *shape) gradients of each trainable parameter; `losses_of(model, *inputs)` gives (B,)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows: list[list[Tensor]] = [[] for _ in parameters]
    for i in range(inputs[0].shape[0]):
        loss = losses_of(model, *(x[i : i + 1] if isinstance(x, Tensor) else x for x in inputs))
        grads = torch.autograd.grad(loss.sum(), parameters, allow_unused=True)
        for row, parameter, g in zip(rows, parameters, grads, strict=True):
            row.append(torch.zeros_like(parameter) if g is None else g)
    return [
        torch.stack(row) if row else p.new_zeros(0, *p.shape)
        for row, p in zip(rows, parameters, strict=True)
    ]


def loop_clipped_sum(
    model: nn.Module, losses_of: Callable[..., Tensor], clip: Clip, *inputs: Any
) -> tuple[Tensor, ...]:
    """What a clipped sum must be."""
    grads = loop_gradients(model, losses_of, *inputs)
    squared = torch.stack([g.unsqueeze(-1).flatten(1).square().sum(1) for g in grads])
    factors = clip.factors(squared).expand(squared.shape)
    return tuple(torch.tensordot(f, g, dims=1) for f, g in zip(factors, grads, strict=True))
