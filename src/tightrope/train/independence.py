"""Does any example's loss depend on another example?

If it does (batch statistics, contrastive losses, a mean hidden in the loss), clipping one example's
gradient does not bound that example's influence, and the guarantee is void.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import ModelNotPrivate
from tightrope.train.feed import Rows, slice_rows, to_device
from tightrope.train.modes import in_mode

__all__ = ["mixing_of_losses", "check_independent_losses"]

LossesOf = Callable[[Any], Tensor]  # from a batch to one loss per example

# Batches of different sizes may take different float32 kernels: up to this it is rounding.
ROUNDING = 1e-3
EXAMPLES = 8


def mixing_of_losses(
    model: torch.nn.Module, losses_of: LossesOf, rows: Rows, device: torch.device
) -> float:
    """Largest change of one example's loss, relative to its size, when the others are left out.

    Looks at a few examples in evaluation mode (dropout off); never touches the weights. They are
    read once: data may change from one reading to the next, as when images are cropped at random.
    """
    count = min(EXAMPLES, rows.length)
    if count < 2:
        return 0.0
    batch = to_device(rows.take(np.arange(count, dtype=np.int64)), device)
    with in_mode(model, training=False), torch.no_grad():
        together = losses_of(batch).float()
        alone = [losses_of(slice_rows(batch, slice(i, i + 1))).float() for i in range(count)]
    if together.ndim != 1 or any(one.shape != (1,) for one in alone):
        return 0.0  # not one loss per example: step() explains that better
    return _largest_change(together, torch.cat(alone))


def _largest_change(together: Tensor, apart: Tensor) -> float:
    finite = apart.isfinite()
    if bool((finite != together.isfinite()).any()):
        return math.inf  # as when a batch of one has no standard deviation
    if not bool(finite.any()):
        return 0.0
    together, apart = together[finite], apart[finite]
    scale = apart.abs() + apart.abs().mean() + 1e-12
    return float(((together - apart).abs() / scale).max())


def check_independent_losses(
    model: torch.nn.Module, losses_of: LossesOf, rows: Rows, device: torch.device
) -> None:
    """Refuse a loss that mixes examples."""
    mixing = mixing_of_losses(model, losses_of, rows, device)
    if mixing > ROUNDING:
        raise ModelNotPrivate(
            f"The loss of an example changes by {mixing:.1%} when the other examples of the batch "
            "are left out, so examples are mixed and one example's influence is not bounded. Use a "
            "loss and layers that look at one example at a time (reduction='none', GroupNorm or "
            "LayerNorm instead of BatchNorm)."
        )
