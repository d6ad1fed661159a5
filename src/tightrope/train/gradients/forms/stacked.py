"""A parameter whose blocks of rows are used apart: the packed projections of attention."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.forms.base import Form
from tightrope.train.gradients.owners import Owners

__all__ = ["Stacked"]


@final
class Stacked(Form):
    """parts: forms of consecutive blocks of the parameter's first dimension."""

    def __init__(self, parts: tuple[Form, ...]) -> None:
        self.parts = parts

    def squared_norms(self) -> Tensor:
        return torch.stack([part.squared_norms() for part in self.parts]).sum(0)

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return torch.cat([part.weighted_sum(factors, chain) for part in self.parts])

    def together(self, owners: Owners) -> Stacked:
        return Stacked(tuple(part.together(owners) for part in self.parts))

    def dense(self) -> Tensor:
        return torch.cat([part.dense() for part in self.parts], dim=1)

    def zero(self, examples: Tensor) -> None:
        for part in self.parts:
            part.zero(examples)
