"""A per-example gradient that is simply written out."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.forms.base import Form, blocked_squares, zero_examples
from tightrope.train.gradients.kernels import usable

__all__ = ["Dense", "weighted_total"]


def weighted_total(values: Tensor, factors: Tensor) -> Tensor:
    """sum_i factors[i] values[i]; a matrix-vector product, which CUDA keeps in full float32."""
    flat = values if values.dim() == 2 else values.reshape(values.shape[0], -1)
    if flat.dtype in (torch.float32, torch.float64):
        total = torch.mv(flat.t(), factors.to(flat.dtype))
    elif usable(flat):
        from tightrope.train.gradients.kernels.tokens import weighted_rows

        total = weighted_rows(flat, factors)
    else:
        total = torch.mv(flat.float().t(), factors.float())
    return total if values.dim() == 2 else total.view(values.shape[1:])


@final
class Dense(Form):
    """values: (B, *shape)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def squared_norms(self) -> Tensor:
        return blocked_squares(self.values)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return weighted_total(self.values, factors)

    def dense(self) -> Tensor:
        return self.values

    def zero(self, examples: Tensor) -> None:
        self.values = zero_examples(self.values, examples)
