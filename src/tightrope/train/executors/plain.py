"""The program without a compiler: on the CPU, and for debugging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch, empty_batch
from tightrope.train.gradients.rounding import no_autocast
from tightrope.train.gradients.sums import ClippedSums, Passed, losses_of
from tightrope.train.program.capture import Program, leaves_of

# Those that are trained; by the name of the loss that trains them where there are several.
Parameters = Sequence[nn.Parameter] | Mapping[str, Sequence[nn.Parameter]]


def flat(parameters: Parameters) -> list[nn.Parameter]:
    """All of them, in the order of the sums."""
    if isinstance(parameters, Mapping):
        return [p for own in parameters.values() for p in own]
    return list(parameters)


class Plain:
    """Clipped sums of batches of up to `size` rows; see `gradients.sums.ClippedSums`."""

    how = "plain"

    def __init__(
        self, program: Program, labels: dict[fx.Node, Any], size: int, parameters: Parameters
    ) -> None:
        self.sums = ClippedSums(program, labels, size, parameters)
        self.size = size

    @property
    def parameters(self) -> Sequence[Any]:
        """Those trained, in the order of the sums."""
        return self.sums.parameters

    def passes(self, leaves: list[Tensor]) -> Passed:
        """Forward and backward pass of a batch that is filled up."""
        with no_autocast(leaves[0].device):
            return self.sums.passes(*self.sums.inputs(leaves))

    def clipped_sum(
        self, batch: tuple[Any, ...], clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """batch: the arguments of the loss, of n <= size rows; with the losses of its rows."""
        leaves, rows = tensors_in(batch, self.size)
        if rows == 0:
            return nothing(self.parameters, leaves)
        leaves, present = filled_up(leaves, rows, self.size)
        return self.sum_of(leaves, present, rows, clip, chain)

    def sum_of(
        self, leaves: list[Tensor], present: Tensor | None, rows: int, clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """Of a batch that is filled up; without the rows that filled it."""
        passed = self.passes(leaves)
        losses = losses_of(passed)
        found = self.sums.total(passed, present, clip, chain)
        if rows == losses.shape[0]:
            return found, losses
        squares, factors = found.squared_norms[:rows], found.factors[:, :rows]
        dropped = int((~squares.isfinite()).sum()) if found.nonfinite else 0
        return found._replace(
            examples=rows, squared_norms=squares, factors=factors, nonfinite=dropped
        ), losses[:rows]


def tensors_in(batch: tuple[Any, ...], size: int) -> tuple[list[Tensor], int]:
    """The tensors of a batch in the order of the program's inputs, and how many rows it has."""
    plain = all(isinstance(value, Tensor) for value in batch)
    leaves = list(batch) if plain else leaves_of(batch)
    rows = leaves[0].shape[0]
    if rows > size or any(leaf.shape[0] != rows for leaf in leaves):
        raise InvalidInput(
            f"The program takes batches of up to {size} rows, the same number in each tensor; got "
            f"{[len(leaf) for leaf in leaves]}. Larger batches are done in parts."
        )
    return leaves, rows


def nothing(parameters: Sequence[Any], leaves: list[Tensor]) -> tuple[ClippedBatch, Tensor]:
    """What a batch without rows gives."""
    return empty_batch(parameters), leaves[0].new_zeros(0, dtype=torch.float32)


def filled_up(leaves: list[Tensor], rows: int, size: int) -> tuple[list[Tensor], Tensor | None]:
    """A batch of `size` rows, and which of them are examples: None where all are.

    Copies of the first row are as well-behaved as the batch itself. Rows are independent, by the
    proof of the program, so they touch nothing else; their factor is zero.
    """
    if rows == size:
        return leaves, None
    present = torch.arange(size, device=leaves[0].device) < rows
    return [torch.cat([x, x[:1].expand(size - rows, *x.shape[1:])]) for x in leaves], present
