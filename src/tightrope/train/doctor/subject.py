"""What the doctor asks a model: the losses and clipped sums of batches of its own choosing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tightrope.train.doctor.chance import same_chance
from tightrope.train.feed import Rows, tensors_of, to_device, with_tensors
from tightrope.train.held import as_it_was

if TYPE_CHECKING:
    from tightrope.train.feed import Batch
    from tightrope.train.samplers import Indices

__all__ = ["Answer", "Subject", "distance"]


@final
@dataclass(frozen=True)
class Answer:
    """Losses (B,) and the clipped sum of their gradients, one tensor for each parameter."""

    losses: Tensor
    sums: list[Tensor]


def distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Euclidean, over all tensors together."""
    squares = [((a - b).double() ** 2).sum() for a, b in zip(left, right, strict=True)]
    return float(torch.stack([s.cpu() for s in squares]).sum().sqrt())


@final
@dataclass(frozen=True)
class Subject:
    """A model with its engine, clip, loss and data.

    reach: the most examples that the engine gets at once.
    """

    model: torch.nn.Module
    engine: Any
    clip: Any
    losses_of: Callable[[Any], Tensor]
    rows: Rows
    reach: int
    draw: np.random.Generator

    @property
    def device(self) -> torch.device:
        device: torch.device = self.engine.parameters[0].device
        return device

    @property
    def bound(self) -> float:
        return float(self.clip.sensitivity)

    @property
    def precision(self) -> float:
        """How much coarser than float32 the weights are, at least 1."""
        worst = max(torch.finfo(p.dtype).eps for p in self.engine.parameters)
        return max(1.0, min(worst / torch.finfo(torch.float32).eps, 100.0))

    def some(self, count: int) -> NDArray[np.int64]:
        """Different records, at random."""
        return self.draw.choice(self.rows.length, min(count, self.rows.length), replace=False)

    def read(self, indices: Indices) -> Any:
        return to_device(self.rows.take(np.asarray(indices, dtype=np.int64)), self.device)

    def answer(
        self, batch: Batch, *, weights: Tensor | float | None = None, seed: int = 0
    ) -> Answer:
        """Leaves no trace in the model; weights: what the losses are multiplied by."""
        with as_it_was(self.model):
            return self.lasting_answer(batch, weights=weights, seed=seed)

    def lasting_answer(
        self, batch: Batch, *, weights: Tensor | float | None = None, seed: int = 0
    ) -> Answer:
        """What the forward pass leaves behind stays."""
        with same_chance(self.device, seed):
            losses = self.losses_of(batch)
            weighted = losses if weights is None else losses * weights
            sums = self.engine.clipped_sum(weighted, self.clip).sums
        return Answer(losses.detach(), [total.detach().clone() for total in sums])


def rows_of(batch: Batch, index: Tensor, count: int) -> Any:
    """The same batch with row i replaced by row index[i], in every tensor of `count` rows."""
    moved = [
        tensor[index.to(tensor.device)] if tensor.dim() and len(tensor) == count else tensor
        for tensor in tensors_of(batch)
    ]
    return with_tensors(batch, moved)
