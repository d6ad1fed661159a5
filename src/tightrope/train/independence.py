"""Does any example's loss depend on another example?

If it does (batch statistics, contrastive losses, a mean hidden in the loss), clipping one example's
gradient does not bound that example's influence, and the guarantee is void.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import ModelNotPrivate
from tightrope.train.feed import Rows, to_device
from tightrope.train.losses import losses_on
from tightrope.train.modes import in_mode

__all__ = ["mixing_of_losses", "check_independent_losses"]

# Batches of different sizes may take different float32 kernels: up to this it is rounding.
ROUNDING = 1e-3
EXAMPLES = 8


def mixing_of_losses(
    model: torch.nn.Module, loss: Callable[..., Tensor], rows: Rows, device: torch.device
) -> float:
    """Largest change of one example's loss, relative to its size, when the others are left out.

    Looks at a few examples in evaluation mode (dropout off); never touches the weights.
    """
    count = min(EXAMPLES, rows.length)
    if count < 2:
        return 0.0
    with in_mode(model, training=False), torch.no_grad():
        together = _losses(model, loss, rows, np.arange(count), device)
        alone = [_losses(model, loss, rows, np.arange(i, i + 1), device) for i in range(count)]
    if together.ndim != 1 or any(one.shape != (1,) for one in alone):
        return 0.0  # not one loss per example: step() explains that better
    apart = torch.cat(alone)
    scale = apart.abs() + apart.abs().mean() + 1e-12
    change = (together - apart).abs() / scale
    return float(change[torch.isfinite(change)].max()) if torch.isfinite(change).any() else 0.0


def _losses(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    rows: Rows,
    index: Any,
    device: torch.device,
) -> Tensor:
    batch = to_device(rows.take(index.astype(np.int64)), device)
    return losses_on(model, loss, batch).detach().float()


def check_independent_losses(
    model: torch.nn.Module, loss: Callable[..., Tensor], rows: Rows, device: torch.device
) -> None:
    """Refuse a loss that mixes examples."""
    mixing = mixing_of_losses(model, loss, rows, device)
    if mixing > ROUNDING:
        raise ModelNotPrivate(
            f"The loss of an example changes by {mixing:.1%} when the other examples of the batch "
            "are left out, so examples are mixed and one example's influence is not bounded. Use a "
            "loss and layers that look at one example at a time (reduction='none', GroupNorm or "
            "LayerNorm instead of BatchNorm)."
        )
