"""One loss per example: what the private step needs, and what people pass instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.users import UserRows

if TYPE_CHECKING:
    from tightrope.train.feed import Batch

__all__ = ["LossFunction", "check_losses", "losses_on", "mean_of_views"]

LossFunction = Callable[..., Tensor]


def _inputs_and_targets(batch: Batch) -> tuple[Any, tuple[Any, ...]]:
    """(inputs, *targets) of a batch that is a tuple; a batch of inputs alone has no targets."""
    if isinstance(batch, (tuple, list)):
        return batch[0], tuple(batch[1:])
    return batch, ()


def losses_on(model: torch.nn.Module, loss: LossFunction, batch: Batch) -> Tensor:
    """loss(model(inputs), *targets) on a tuple; loss(model, batch) on a dictionary of tensors.

    On the rows of users, the mean of each user.
    """
    if isinstance(batch, Mapping):
        return loss(model, batch)
    if isinstance(batch, UserRows):
        return batch.mean(losses_on(model, loss, batch.rows()))
    inputs, targets = _inputs_and_targets(batch)
    return loss(model(inputs), *targets)


def mean_of_views(losses: Tensor) -> Tensor:
    """One for each example, where the losses of its views are side by side."""
    return losses if losses.ndim == 1 else losses.mean(1)


def check_losses(losses: object, size: int, views: int = 1) -> Tensor:
    """The losses, if they are a vector with one entry for each of the `size` examples.

    views: rows of the model for each example; their losses (size, views) are averaged here.
    """
    if not isinstance(losses, Tensor):
        raise InvalidInput(f"step() needs a tensor of losses; got {type(losses).__name__}.")
    if losses.ndim == 0:
        raise InvalidInput(
            "step() got a single number: a loss already averaged or summed over the batch. One "
            "example's gradient cannot be clipped any more. Use reduction='none', so that there is "
            f"one loss for each of the {size} examples."
        )
    if views > 1:
        losses = _of_examples(losses, size, views)
    if losses.ndim > 1:
        raise InvalidInput(
            f"step() got losses of shape {tuple(losses.shape)}; it needs one number per example, "
            f"shape ({size},). Average or sum each example's own losses first, for example "
            "losses.mean(dim=1). (Several views of each example: make the run with views=K.)"
        )
    if losses.shape[0] != size:
        each, rest = divmod(len(losses), size) if size else (0, 1)
        several = f" If they are of {each} views of each example, make the run with views={each}."
        raise InvalidInput(
            f"step() got {len(losses)} losses, but the sampler drew {size} examples for this part. "
            "Every example drawn must come with exactly one loss, in any order."
            + (several if each > 1 and rest == 0 else "")
        )
    if not losses.requires_grad:
        raise InvalidInput(
            "The losses do not depend on trainable parameters (no gradient is recorded). Were they "
            "computed under torch.no_grad(), detached, or is every parameter frozen?"
        )
    return losses


def _of_examples(losses: Tensor, size: int, views: int) -> Tensor:
    """One loss for each example, from those of its views, or as it was averaged already."""
    if losses.shape == (size, views):
        return losses.mean(1)
    if losses.shape != (size,):
        raise InvalidInput(
            f"step() got losses of shape {tuple(losses.shape)}; this run has {views} views of each "
            f"of the {size} examples drawn, so it needs one loss for each view, shape "
            f"({size}, {views}), or their mean for each example, shape ({size},). Losses of rows "
            f"side by side take that shape by losses.view(-1, {views})."
        )
    return losses
