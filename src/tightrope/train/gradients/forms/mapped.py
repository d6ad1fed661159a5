"""A weight that is computed from the parameter: the gradient goes back through that computation.

It is taken back for each example by itself: what cancels there must not cancel in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.chains import sum_of_parts
from tightrope.train.gradients.forms.base import Form, blocked_squares, zero_examples
from tightrope.train.gradients.forms.patches import Patches
from tightrope.train.gradients.owners import Owners

__all__ = ["Mapped"]


@final
class Mapped(Form):
    """inner: gradients of the weight in use; back: linear, (B, *shape) to (B, *shape)."""

    def __init__(self, inner: Patches, back: Callable[[Tensor], Tensor]) -> None:
        self._inner, self._back = inner, back
        self._written: Tensor | None = None  # (B, N) once it is kept

    def together(self, owners: Owners) -> Mapped:
        return Mapped(self._inner.together(owners), self._back)

    def settle(self) -> None:
        if self._inner.shrinks:
            self._keep()

    def squared_norms(self) -> Tensor:
        return torch.cat([blocked_squares(rows) for _, rows in self._parts()])

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return self._inner.in_order(sum_of_parts(self._parts(), factors, chain)).contiguous()

    def dense(self) -> Tensor:
        return self._inner.in_order(self._keep())

    def zero(self, examples: Tensor) -> None:
        if self._written is not None:
            self._written = zero_examples(self._written, examples)
        else:
            self._inner.zero(examples)

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """(B, N) as the inner form writes them: in another order they would have to be copied."""
        if self._written is not None or self._inner.instantiated:
            rows = self._keep()
            yield slice(0, len(rows)), rows
            return
        for part, gradients in self._inner.parts():
            yield part, self._inner.as_written(self._back(gradients))

    def _keep(self) -> Tensor:
        if self._written is None:
            parts = [self._back(gradients) for _, gradients in self._inner.parts()]
            rows = [self._inner.as_written(part) for part in parts]
            self._written = rows[0] if len(rows) == 1 else torch.cat(rows)
            self._inner.drop()
        return self._written
