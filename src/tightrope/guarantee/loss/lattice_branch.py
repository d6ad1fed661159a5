"""One sampled-Gaussian branch on a lattice: base N(0,1), variable ln r, above and below.

r(s) = 1 + rate (e^{mu s - mu^2/2} - 1) is an affine function of e^{mu s}. As Q = N(0,1) sees
x = dP/dQ = r ("remove") and P = N(0,1) sees e^-L = r ("add"), both directions need the same thing:
N(0,1) moved onto the lattice ln r_i = origin + i step, above or below in the convex order of r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.gaussian import FixedSizeGaussianPair, point_of_log_ratio
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicMixturePair
from tightrope.numerics.lattice import check_size, gap_bound, gathered, lowered
from tightrope.numerics.lattice_tail import CELL_ERROR, shared_mass
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

__all__ = [
    "LOG_CUT_OFF",
    "Branch",
    "upper_branch",
    "lower_branch",
    "points_at",
    "loss_at",
    "infimum",
    "is_cut",
    "point_of",
    "far_point",
]

_ON_A_POINT = 1e-9  # of a step
_LEFT = -40.0  # N(0,1) is cut there; the upper bound adds what lies below
_BEYOND_BULK = 10.0
LOG_CUT_OFF = float(log_ndtr(_LEFT + 0.1))  # with room for rounding


@final
@dataclass(frozen=True)
class Branch:
    """Tilted masses at origin + (start + i) step, times e^-log_scale."""

    origin: float
    start: int
    masses: FloatArray
    log_scale: float
    absolute_error: float
    relative_error: float
    end: float  # the point s where its mass ends, inside the last cell


def points_at(offsets: FloatArray, rate: float, mu: float) -> FloatArray:
    """s with ln r(s) = ln(1 - rate) + offset (rate < 1) or = offset (rate = 1)."""
    if rate == 1.0:
        return offsets / mu + 0.5 * mu
    with np.errstate(divide="ignore"):
        log_expm1 = offsets + np.log(-np.expm1(-offsets))
    return (log_expm1 + math.log1p(-rate) - math.log(rate)) / mu + 0.5 * mu


def loss_at(point: float, rate: float, mu: float) -> float:
    """The offset of `points_at`, backwards."""
    u = mu * point - 0.5 * mu * mu
    if rate == 1.0:
        return u
    log_odds = math.log(rate) - math.log1p(-rate) + u
    return float(np.logaddexp(0.0, log_odds))


def infimum(rate: float) -> float:
    """The infimum of ln r, where offsets are counted from (0 where there is none)."""
    return math.log1p(-rate) if rate < 1.0 else 0.0


def upper_branch(
    rate: float, mu: float, power: float, step: float, lift: float, begin: float, end: float
) -> Branch:
    """N(0,1) on (begin, end) spread onto the lattice, times r^power.

    `lift` is the origin's offset above ln(1 - rate); 0 puts a lattice point on the infimum of L.
    """
    start, points, log_tilt, scale = _cells(rate, mu, power, step, lift, begin, end)
    low = begin if points[0] == -math.inf else max(begin, _LEFT)
    left, right = shared_mass(points, mu, log_tilt[:-1] - scale, low, end)
    masses = gathered(left, right, power * step)
    points[0] = max(float(points[0]), begin, _LEFT)
    relative = _relative_error(rate, mu, power, step, lift, start, points, masses)
    return Branch(infimum(rate) + lift, start, masses, scale, 0.0, relative, end)


def lower_branch(
    rate: float, mu: float, power: float, step: float, lift: float, begin: float, end: float
) -> Branch:
    """N(0,1) on (begin, end) below in the convex order of r, on the lattice, times r^power.

    With rate < 1 and begin = -inf the part that one step cannot resolve is merged into an atom at
    its mean, and the lattice (not `lift`) is put there.
    """
    core_log, core_lift, first = -math.inf, 0.0, None
    if rate < 1.0 and begin == -math.inf:
        lift, begin, core_log = _core(rate, mu, step, end)
        first = 1  # also where the end leaves nothing above the atom, which lies at 0
    start, points, log_tilt, scale = _cells(rate, mu, power, step, lift, begin, end, first)
    origin = infimum(rate) + lift
    if core_log > -math.inf:
        core_tilted = core_log + power * origin
        scale = max(scale, core_tilted)
        core_lift = math.exp(core_tilted - scale)
    left, right = shared_mass(points, mu, log_tilt[:-1] - scale, begin, end)
    peak = _peaks(points, mu, power * step, log_tilt - scale)
    gap = gap_bound(left, right, peak)
    masses, clipped = lowered(left, right, gap, step, power * step, core_lift)
    extended = np.append(points[0], points)
    relative = _relative_error(rate, mu, power, step, lift, start - 1, extended, masses)
    return Branch(origin, start - 1, masses, scale, clipped, relative, end)


def _cells(
    rate: float,
    mu: float,
    power: float,
    step: float,
    lift: float,
    begin: float,
    end: float,
    first: int | None = None,
) -> tuple[int, FloatArray, FloatArray, float]:
    """First index, points s_i, tilt power * ln r_i, and the largest log mass density."""
    # ends on a lattice point, up to rounding, do not begin another cell
    start = math.floor((loss_at(max(begin, _LEFT), rate, mu) - lift) / step + _ON_A_POINT)
    start = start if first is None else first
    reach = (loss_at(end, rate, mu) - lift) / step - _ON_A_POINT
    check_size(reach - start)
    stop = max(start + 3, math.ceil(reach))
    offsets = lift + step * np.arange(start, stop + 1, dtype=np.float64)
    points = points_at(np.maximum(offsets, 0.0) if rate < 1.0 else offsets, rate, mu)
    log_tilt = power * (infimum(rate) + offsets)
    inside = (points[:-1] < 0.0) & (points[1:] > 0.0)  # cells that hold s = 0
    nearest = np.where(inside, 0.0, np.minimum(np.abs(points[:-1]), np.abs(points[1:])))
    scale = float((log_tilt[:-1] - 0.5 * nearest * nearest).max())
    return start, points, log_tilt, scale


def _peaks(points: FloatArray, mu: float, tilt: float, log_tilt: FloatArray) -> FloatArray:
    """(largest density of r) * (r_{i+1} - r_i): phi(s) e^{-mu (s - s_i)} (e^{mu d} - 1)/mu."""
    d = np.diff(points)
    at = np.exp(log_tilt - 0.5 * points * points) / math.sqrt(2.0 * math.pi)
    with np.errstate(over="ignore", invalid="ignore"):
        width = np.expm1(np.minimum(mu * d, 700.0)) / mu
        back = math.exp(min(-tilt, 700.0))
        peak = np.maximum(at[:-1] * width, at[1:] * back * (-np.expm1(-mu * d) / mu))
        # ln density is -s^2/2 - mu s + const, largest at s = -mu
        top = np.nonzero((points[:-1] < -mu) & (points[1:] > -mu))[0]
        inside = np.exp(log_tilt[top] + 0.5 * mu * mu + mu * points[top]) / math.sqrt(2 * math.pi)
        peak[top] = np.maximum(peak[top], inside * width[top])
    return peak


def _core(rate: float, mu: float, step: float, end: float) -> tuple[float, float, float]:
    """Lift of the mean of r below the point one step above that mean, that point, its log mass.

    Where the branch ends before that point, everything is merged.
    """

    log_rate_odds = math.log(rate) - math.log1p(-rate)

    def mean_offset(offset: float) -> tuple[float, float]:
        log_expm1 = offset + math.log(-math.expm1(-offset))
        s = min((log_expm1 - log_rate_odds) / mu + 0.5 * mu, end)
        log_odds = log_rate_odds + float(log_ndtr(s - mu) - log_ndtr(s))
        return max(log_odds, 0.0) + math.log1p(math.exp(-abs(log_odds))), s

    low, high = step, 2.0 * step
    while high - mean_offset(high)[0] < step:
        low, high = high, 2.0 * high
    from scipy.optimize import brentq  # slow to import, and seldom needed

    top = brentq(lambda x: x - mean_offset(x)[0] - step, low, high, xtol=1e-300, rtol=1e-15)
    lift, s = mean_offset(float(top))
    return lift, s, float(log_ndtr(s))


def _relative_error(
    rate: float,
    mu: float,
    power: float,
    step: float,
    lift: float,
    start: int,
    points: FloatArray,
    masses: FloatArray,
) -> float:
    """Rounding of exponents and of the cell ends, as a share of the total mass."""
    offsets = lift + step * (start + np.arange(len(masses)))
    share = -np.expm1(-np.maximum(offsets, 0.0)) if rate < 1.0 else 1.0  # d ln r / d(mu s)
    # with rate < 1 everything left of s = -9 has mass 1e-19, so its rounding does not count
    size = np.abs(points if rate == 1.0 else np.maximum(points, -9.0))
    if not masses.any():
        return CELL_ERROR
    each = size * size + np.abs(power * (offsets + infimum(rate))) + 20.0
    ends = (abs(power) + 1.0) * share * (mu * size + mu * mu - math.log(rate) + 4.0)
    return float((4.0 * ULP * (each + ends)) @ masses / masses.sum()) + CELL_ERROR


# ---- which losses a lattice leaves out, and from where: a point s, or the loss of a public mixture
def is_cut(pair: AbstractLossPair) -> bool:
    """Do its losses have no end, so that those too rare to matter count as infinite?"""
    if isinstance(pair, PublicMixturePair):
        return any(is_cut(part) for _, part in pair.parts)
    return pair.has_jumps or pair.has_rare_losses


def point_of(pair: AbstractLossPair, loss: float) -> float:
    """The point s with this loss, or about there, for a law that is to end there.

    Fixed-size batches have no points left of mu/2. No law is meant to end before it begins: that
    comes of losses too close together for a double, and then it ends beyond them.
    """
    if isinstance(pair, PublicMixturePair):
        return loss
    if isinstance(pair, GaussianMixturePair):
        return pair.point(loss)
    rate, mu = getattr(pair, "rate", 1.0), getattr(pair, "mu", 1.0)
    point = float(point_of_log_ratio(loss, rate, mu))
    if isinstance(pair, FixedSizeGaussianPair):
        return max(point, 0.5 * mu)
    return point if point > _LEFT else _BEYOND_BULK


def far_point(pair: AbstractLossPair) -> float:
    """A point s beyond all that counts of a pair that is not cut."""
    return 40.0 + 1.5 * float(getattr(pair, "mu", 0.0))
