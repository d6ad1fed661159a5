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
from tightrope.train.gradients.forms.geometry import in_order
from tightrope.train.gradients.forms.patches import Patches
from tightrope.train.gradients.owners import Owners

__all__ = ["Mapped"]


@final
class Mapped(Form):
    """inner: gradients of the weight in use; back: linear, (B, N) as it wrote them to (B, n)."""

    def __init__(
        self, inner: Patches, back: Callable[[Tensor, bool], Tensor], shape: torch.Size
    ) -> None:
        self._inner, self._back, self._shape = inner, back, shape
        self._kept: Tensor | None = None  # (B, n)

    def together(self, owners: Owners) -> Mapped:
        return Mapped(self._inner.together(owners), self._back, self._shape)

    def settle(self) -> None:
        if self._shrinks:
            self._keep()

    @property
    def _shrinks(self) -> bool:
        """Whether what is taken back is smaller than the images it is made from."""
        return self._inner.holds_more_than(self._shape.numel())

    def squared_norms(self) -> Tensor:
        return torch.cat([blocked_squares(rows) for _, rows in self._parts()])

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return self._in_order(sum_of_parts(self._parts(), factors, chain)).contiguous()

    def dense(self) -> Tensor:
        return self._in_order(self._keep())

    def _in_order(self, rows: Tensor) -> Tensor:
        return in_order(rows, self._shape, last=self._inner.last)

    def zero(self, examples: Tensor) -> None:
        if self._kept is not None:
            self._kept = zero_examples(self._kept, examples)
        else:
            self._inner.zero(examples)

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """(B, n) in the order of the inner form: in another they would have to be copied."""
        if self._kept is not None or self._inner.instantiated or self._shrinks:
            rows = self._keep()
            yield slice(0, len(rows)), rows
            return
        for part, rows in self._inner.parts():
            yield part, self._back(rows, self._inner.last)

    def _keep(self) -> Tensor:
        if self._kept is None:
            parts = [self._back(rows, self._inner.last) for _, rows in self._inner.parts()]
            self._kept = parts[0] if len(parts) == 1 else torch.cat(parts)
            self._inner.drop()
        return self._kept
