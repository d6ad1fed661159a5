"""The shape of a layer rule."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.train.gradients.forms import Form
from tightrope.train.gradients.recorder import Recorder

__all__ = ["Forms", "LayerRule", "positions", "show", "shows", "summed", "trainable"]

Forms = list[tuple[nn.Parameter, Form]]
# (module, its input, the gradient of its output) -> forms of the gradients of its parameters
LayerRule = Callable[[Any, Tensor, Tensor], Forms]


def shows(recorder: Recorder) -> bool:
    """Whether a replaced forward pass goes step by step, as the one to be differentiated does.

    While recording is paused a checkpointed part is run again, which must save the same tensors.
    """
    return recorder.active or (recorder.paused and torch.is_grad_enabled())


def show(recorder: Recorder, *use: Any, **keywords: Any) -> None:
    """Note a use of a layer, unless it is only run again."""
    if recorder.active:
        recorder.note(*use, **keywords)


def positions(values: Tensor) -> Tensor:
    """(B, *, d) as (B, T, d)."""
    if values.dim() == 3:
        return values
    return values.reshape(values.shape[0], prod(values.shape[1:-1]), values.shape[-1])


def trainable(parameter: Tensor | None) -> bool:
    """Whether a form is wanted for it."""
    return parameter is not None and parameter.requires_grad


def summed(values: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Sum with a float32 accumulator and result, also for half precision."""
    wide = values.dtype in (torch.float32, torch.float64)
    return values.sum(dim, dtype=None if wide else torch.float32)
