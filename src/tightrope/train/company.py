"""Loops of one's own: is an example alone what it is in its batch?

What such a loop does between the batch and the losses is not known here, but it can be asked: one
example comes by itself, then its batch, and both times step() looks at the gradient of that
example's loss and releases nothing. Then the batch comes to be trained on. This is done for data
with a `collate`, before the first batch of two examples and at random later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from tightrope.errors import InvalidInput
from tightrope.train.feed import Rows, tensors_of
from tightrope.train.independence import (
    ROUNDING,
    change_of,
    collated_apart,
    refuse_mixing,
)

__all__ = ["CHANCE", "Company"]

CHANCE = 1 / 500  # of a batch to be rehearsed


@final
class Company:
    """Rehearsals of a loop over `batches(..., collate=...)`.

    size: how many losses the rehearsal under way must have; None where none is.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[Tensor], broken: Callable[[str], None]
    ) -> None:
        """broken: told what was found, before it is refused."""
        self._model, self._parameters, self._broken = model, list(parameters), broken
        self._chance, self._seen = random.Random(), False
        self.size: int | None = None
        self._place = 0
        self._found: list[tuple[float, Any]] = []

    def batches(self, rows: Rows, indices: Any, device: torch.device) -> Iterator[Any]:
        """The batches of a rehearsal, if there is one before this batch."""
        if rows.items is None or rows.collate is default_collate or len(indices) < 2:
            return
        if self._seen and self._chance.random() >= CHANCE:
            return
        whole, parts = collated_apart(rows, indices, device)
        self._place, self._found = self._chance.choice(_padded(whole, parts)), []
        for size, batch in ((1, parts[self._place]), (len(indices), whole)):
            self.size = size
            with _children_calm(self._model):
                yield batch
            if self.size is not None:
                raise InvalidInput(
                    "A batch came by which the loop is rehearsed, and step(losses) was not called "
                    "for it. Step on every batch that comes."
                )

    def take(self, losses: Tensor) -> None:
        """Note, or compare, the gradient of the one example."""
        place = self._place if len(losses) > 1 else 0
        self.size = None
        loss = losses[place]
        grads = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        self._found.append((float(loss.detach()), grads))
        if len(self._found) < 2:
            return
        (alone, own), (together, within) = self._found
        self._found = []
        half = losses.dtype.itemsize < 4 or torch.is_autocast_enabled(losses.device.type)
        moved = abs(alone - together) / (abs(alone) + abs(together) + 1e-12) / (30 if half else 1)
        mixing = max(moved, change_of(within, own, half=half))
        if mixing > ROUNDING:
            self._broken("an example alone is not what it is in its batch")
            refuse_mixing(mixing)
        self._seen = True

    def forget(self) -> None:
        """The loop was left."""
        self.size, self._found = None, []


def _padded(whole: Any, parts: list[Any]) -> list[int]:
    """Places of the examples that have another shape alone; all places if there is none."""
    shape = [t.shape[1:] for t in tensors_of(whole)]
    found = [i for i, part in enumerate(parts) if [t.shape[1:] for t in tensors_of(part)] != shape]
    return found or list(range(len(parts)))


class _children_calm:  # noqa: N801
    """All modules but the model itself in evaluation mode: no dropout, whatever the loop sets."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._modes = [(module, module.training) for module in self._model.modules()]
        self._calm(self._model)
        self._handle = self._model.register_forward_pre_hook(self._calm)

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        for module, mode in self._modes:
            module.training = mode

    def _calm(self, model: nn.Module, *_: Any) -> None:
        for module in model.modules():
            if module is not model:
                module.training = False
