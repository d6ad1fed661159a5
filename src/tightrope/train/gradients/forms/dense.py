"""A per-example gradient that is simply written out."""

from __future__ import annotations

from typing import final

from torch import Tensor

from tightrope.train.gradients.chains import chained_total
from tightrope.train.gradients.forms.base import (
    Form,
    blocked_squares,
    full_precision,
    zero_examples,
)
from tightrope.train.gradients.owners import Owners

__all__ = ["Dense"]


@final
class Dense(Form):
    """values: (B, *shape)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def squared_norms(self) -> Tensor:
        return blocked_squares(self.values)

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return chained_total(self.values, factors, chain)

    def dense(self) -> Tensor:
        return self.values

    def together(self, owners: Owners) -> Dense:
        return Dense(owners.total(full_precision(self.values)))

    def zero(self, examples: Tensor) -> None:
        self.values = zero_examples(self.values, examples)
