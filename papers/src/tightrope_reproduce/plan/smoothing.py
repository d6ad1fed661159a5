"""Smoothing by Gaussian convolution, for losses with kinks.

f^(w) = E h(w + Z), Z ~ N(0, scale^2 I) in `dimension` dimensions, h the L-Lipschitz extension of f:
convex, L-Lipschitz, smooth with constant L sqrt(2/pi) / scale, and f <= f^ <= f + L E|Z|.
Source: Feldman et al. 2018, Theorem 33, which prints the smoothness L/scale (Pinsker's inequality;
the exact total variation gives sqrt(2/pi) of it) and the error as "= L scale sqrt(d)" where E|Z| is
smaller. Since f^ >= f (Jensen), the excess loss grows by the error once, not twice. Corollary 34's
smoothing term, eps sqrt(d)/(2 ln(1.25/delta)), is too small once ln(1/delta) > 8.

For f(w) = l(<w, x>, y) it suffices to smooth l in one dimension with scale * |x|: dimension 1.
The gradient of f^ must be computed exactly; sampling Z afresh does not give a contraction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from tightrope.process.convex import ConvexLoss
from tightrope.validate import check_count, check_positive

__all__ = ["Smoothed", "smoothed", "mean_norm", "scale_for_step"]

_SLOPE = math.sqrt(2.0 / math.pi)


@final
@dataclass(frozen=True)
class Smoothed:
    """The smoothed loss and how much it exceeds the original one at most."""

    loss: ConvexLoss
    scale: float
    error: float


def smoothed(loss: ConvexLoss, scale: float, dimension: int) -> Smoothed:
    """The loss convolved with N(0, scale^2 I)."""
    scale = check_positive(scale, "scale")
    smoothness = min(loss.smoothness, loss.lipschitz * _SLOPE / scale)
    error = loss.lipschitz * scale * mean_norm(dimension)
    # strong convexity is not claimed: the extension of f beyond its domain has none
    return Smoothed(ConvexLoss(loss.lipschitz, smoothness), scale, error)


def mean_norm(dimension: int) -> float:
    """E|Z| of a standard normal vector: sqrt(2) Gamma((d+1)/2)/Gamma(d/2), below sqrt(d)."""
    d = check_count(dimension, "dimension", low=1)
    exact = math.sqrt(2.0) * math.exp(math.lgamma(0.5 * (d + 1)) - math.lgamma(0.5 * d))
    return min(exact * (1.0 + 1e-12), math.sqrt(d))


def scale_for_step(lipschitz: float, step_size: float) -> float:
    """The smallest scale at which `step_size` <= 2 / smoothness."""
    return 0.5 * step_size * lipschitz * _SLOPE * (1.0 + 1e-12)
