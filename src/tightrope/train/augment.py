"""Views of examples, made on the device where the data lie.

What is drawn here is drawn from PyTorch's own generators. It needs no secrecy: the guarantee holds
for every choice of views. The noise has generators of its own, which nothing here touches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.gradients.draws import same_draws
from tightrope.train.losses import LossFunction, losses_on
from tightrope.validate import check_count

if TYPE_CHECKING:
    from tightrope.train.feed import Batch

__all__ = ["Augment", "CropAndFlip", "check_augment", "inputs_of", "losses_of_views"]

Augment = Callable[[Tensor, int], Tensor]  # (B, ...) and K -> (B, K, ...)


@final
@dataclass(frozen=True)
class CropAndFlip:
    """Images reflected by `padding` at their borders, cut out at a random place, half of them
    mirrored: (B, C, H, W) and K -> (B, K, C, H, W)."""

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_count(self.padding, "padding", low=0)

    def __call__(self, images: Tensor, views: int) -> Tensor:
        batch, channels, height, width = images.shape
        wide = functional.pad(images, [self.padding] * 4, mode="reflect")
        count, place = batch * views, images.device
        rows = self._places(count, height, place)
        columns = self._places(count, width, place)
        if self.flip:
            mirrored = torch.randint(2, (count, 1), device=place, dtype=torch.bool)
            columns = torch.where(mirrored, columns.flip(1), columns)
        whose = torch.arange(batch, device=place).repeat_interleave(views)[:, None, None, None]
        each = torch.arange(channels, device=place)[:, None, None]
        cut = wide[whose, each, rows[:, None, :, None], columns[:, None, None, :]]
        return cut.unflatten(0, (batch, views))

    def _places(self, count: int, length: int, device: torch.device) -> Tensor:
        start = torch.randint(2 * self.padding + 1, (count, 1), device=device)
        return start + torch.arange(length, device=device)


def losses_of_views(
    model: torch.nn.Module,
    loss: LossFunction,
    batch: Any,
    views: int,
    augment: Augment | None,
) -> Tensor:
    """(B, K): `loss(model(rows), *targets)` with the views of all examples side by side.

    Without an augmentation the inputs are (B, K, ...) already.
    """
    inputs, targets = inputs_of(batch, views), batch[1:]
    inputs = inputs if augment is None else augment(inputs, views)
    if inputs.dim() < 2 or inputs.shape[1] != views:
        raise InvalidInput(
            f"This run has views={views}, so inputs must be of shape (examples, {views}, ...); "
            f"got {tuple(inputs.shape)}. Give the Trainer augment=CropAndFlip() or another "
            "function (inputs, views) -> (examples, views, ...)."
        )
    rows = (inputs.flatten(0, 1), *(t.repeat_interleave(views, 0) for t in targets))
    return losses_on(model, loss, rows).view(-1, views)


def inputs_of(batch: Batch, views: int) -> Tensor:
    """The first of (inputs, *targets)."""
    if not isinstance(batch, tuple | list) or not isinstance(batch[0], Tensor):
        raise InvalidInput(
            f"views={views} in a Trainer needs batches (inputs, *targets) of tensors; got "
            f"{type(batch).__name__}. Take the loop into your own hands: run.step(losses) with "
            "losses of shape (examples, views)."
        )
    return batch[0]


def check_augment(augment: Augment, inputs: Tensor, views: int) -> None:
    """Refuse views that depend on other examples: with the same draws, half of them replaced."""
    count = len(inputs)
    if count < 2:
        return
    half = torch.arange(count, device=inputs.device) < count // 2
    for replaced in (half, ~half):
        kept = int((~replaced).nonzero()[0])
        others = torch.where(replaced, kept, torch.arange(count, device=inputs.device))
        told, again, changed = (_drawn(augment, x, views) for x in (inputs, inputs, inputs[others]))
        if not torch.equal(told, again):
            return  # draws that cannot be repeated: the rehearsals of the run go on looking
        if not torch.equal(told[~replaced], changed[~replaced]):
            raise ModelNotPrivate(
                "The views of an example depend on the other examples of its batch (as in mixup), "
                "so one example's influence is not bounded. Augment each example alone."
            )


def _drawn(augment: Augment, inputs: Tensor, views: int) -> Tensor:
    with same_draws([inputs.device]):
        return augment(inputs, views)
