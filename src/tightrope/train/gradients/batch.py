"""From forms to the clipped sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from tightrope.train.clip import Clip
from tightrope.train.gradients.forms import Form
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.rounding import RELATIVE

__all__ = ["ClippedBatch", "Factors", "empty_batch", "find_factors", "sum_forms"]


@final
@dataclass(frozen=True)
class ClippedBatch:
    """The sum of clipped per-example gradients, before any noise.

    sums: one tensor for each parameter of the engine, in float32 or wider.
    norms: (B,) per-example norms as used for clipping (upper bounds, within rounding);
        inf for an example whose gradient was not finite.
    clipped_fraction: share of the examples that were scaled down.
    nonfinite: examples with a non-finite gradient; they contribute exactly zero.
    """

    sums: tuple[Tensor, ...]
    examples: int
    norms: Tensor
    clipped_fraction: Tensor
    nonfinite: int


@final
@dataclass(frozen=True)
class Factors:
    """rows: (parameters, B); bad: the examples to be dropped, None where all are finite."""

    rows: Tensor
    norms: Tensor
    bad: Tensor | None
    nonfinite: int

    def batch(self, sums: Sequence[Tensor]) -> ClippedBatch:
        """Together with the sums."""
        clipped = (self.rows < 1).any(0).float().mean()
        return ClippedBatch(tuple(sums), len(self.norms), self.norms, clipped, self.nonfinite)


def empty_batch(parameters: Sequence[nn.Parameter]) -> ClippedBatch:
    """No example: exactly zero, so that a step releases noise alone."""
    sums = tuple(torch.zeros_like(full_precision(p.detach())) for p in parameters)
    none = torch.zeros(0, device=sums[0].device)
    return ClippedBatch(sums, 0, none, torch.zeros((), device=none.device), 0)


def find_factors(squared: Tensor, clip: Clip, scale: float) -> Factors:
    """squared: (parameters, B) squared norms of gradients multiplied by `scale`."""
    squared = squared.mul_((1 + RELATIVE) ** 2 / scale**2)
    rows = clip.factors(squared).expand(squared.shape)
    total = squared.sum(0)
    bad = ~total.isfinite()
    nonfinite = int(bad.sum())
    norms = total.sqrt_()
    if not nonfinite:
        return Factors(rows, norms, None, 0)
    return Factors(rows.masked_fill(bad, 0), norms.masked_fill(bad, torch.inf), bad, nonfinite)


def sum_forms(form: Form, factors: Factors, row: int, scale: float) -> Tensor:
    """The clipped sum of one parameter."""
    if factors.bad is not None:
        form.zero(factors.bad)
    rows = factors.rows[row]
    return form.weighted_sum(rows if scale == 1.0 else rows / scale)
