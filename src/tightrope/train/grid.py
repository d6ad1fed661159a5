"""Contributions as whole numbers: a grid on which sums are exact.

One unit is (clip norm) / BOUND. An example's clipped gradient is rounded towards zero, coordinate
by coordinate, so its norm never rises; that it is at most BOUND units is then checked in whole
numbers, whatever clip and rounding did before. An example that fails, or whose gradient is not
finite, contributes zero: this is decided by the example alone.

Sums are int64. One example has at most 2^24 units in a coordinate, so 2^38 examples fit beside the
noise; and if sums ever wrapped round, that would be a function of the exact sum, like any other
post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["BOUND", "as_values", "on_grid", "unit", "within_bound"]

BOUND = 2**24
_TOGETHER = 2**14  # squares of at most 2^48 that add up without overflow


def unit(sensitivity: float) -> float:
    """The size of one grid step; exact, as BOUND is a power of two."""
    return sensitivity / BOUND


def on_grid(gradients: Sequence[Tensor], factors: Sequence[Tensor]) -> list[Tensor] | None:
    """factor * gradient, rounded towards zero to whole numbers; None if they are out of bounds."""
    scaled = [(g.double() * f).trunc_() for g, f in zip(gradients, factors, strict=True)]
    if not all(bool((s.abs() <= BOUND).all()) for s in scaled):  # nan is not
        return None
    whole = [s.to(torch.int64) for s in scaled]
    return whole if within_bound(whole) else None


def within_bound(whole: Sequence[Tensor]) -> bool:
    """Is the norm at most BOUND? Exactly; no coordinate may be above it."""
    return sum(_squares(w.reshape(-1)) for w in whole) <= BOUND**2


def _squares(flat: Tensor) -> int:
    """The sum of squares, as a whole number of any size."""
    parts = torch.split(flat * flat, _TOGETHER)
    return sum(torch.stack([part.sum() for part in parts]).tolist())


def as_values(sums: Sequence[Tensor], sensitivity: float) -> list[Tensor]:
    """Noisy sums in the units of the gradients. They are released: rounding is post-processing."""
    return [total.double().mul_(unit(sensitivity)) for total in sums]
