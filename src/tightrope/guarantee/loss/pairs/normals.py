"""Unit-variance normals, plain and sampled: rounding, cells, and N(0,1) on the lattice of ln r.

r(s) = 1 + rate (e^{mu s - mu^2/2} - 1) is an affine function of e^{mu s}. As Q = N(0,1) sees
x = dP/dQ = r ("remove") and P = N(0,1) sees e^-L = r ("add"), both directions need the same thing:
N(0,1) moved onto the lattice ln r_i = origin + i step, above or below in the convex order of r.
Above, mass is spread so that P and Q keep theirs (connect-the-dots); below, the chords are lowered.
Both are of second order in the step, and both survive composition because delta is the expectation
of a convex function. docs/certificate_argument.md, 6.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from tightrope.guarantee.loss.abstract import (
    POINTS_BEYOND,
    AbstractLossPair,
    Group,
    Side,
    extreme,
)
from tightrope.guarantee.loss.pairs.sampling import log_ratio
from tightrope.numerics.lattice import (
    LatticeMeasure,
    check_size,
    gap_bound,
    gathered,
    lowered,
    normalised,
)
from tightrope.numerics.lattice_tail import CELL_ERROR, shared_mass
from tightrope.numerics.quadrature import LOG_ROOT_2PI
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_positive, check_real, one_number


def normal_error(point: FloatArray, slack: FloatArray) -> FloatArray:
    """Error of log_ndtr(+-point) (2 ulp of its value) when `point` itself is off by `slack`."""
    x = np.abs(np.where(np.isfinite(point), point, 0.0))
    # |d log_ndtr| <= |x| + 1, and |log_ndtr| <= x^2/2 + ln(x+2) + 1
    return (x + 1.0) * slack + 4.0 * ULP * (0.5 * x * x + np.log(x + 2.0) + 1.0)


def variation_of_normals(mu: float) -> float:
    """Phi(mu/2) - Phi(-mu/2)."""
    return math.erf(mu / (2.0 * math.sqrt(2.0)))


def check_rate(rate: ArrayLike) -> float:
    return one_number(check_real(rate, "rate", low=0.0, high=1.0, open_low=True), "rate")


def check_mu(mu: ArrayLike) -> float:
    return one_number(check_positive(mu, "mu"), "mu")


def normal_edges(mu: float, order: float, cells: int) -> tuple[FloatArray, FloatArray]:
    """Points s that are equally far apart, and the losses of an unsampled Gaussian there."""
    points = np.linspace(-POINTS_BEYOND, order * mu + POINTS_BEYOND, cells + 1)
    return points, mu * points - 0.5 * mu**2


def log_normal_moment(mu: float, order: float) -> float:
    """ln of a bound on E_Q[x^order] beyond the last of these points, x <= e^{mu s - mu^2/2}."""
    return 0.5 * order * (order - 1.0) * mu**2 + float(log_ndtr(1e-6 - POINTS_BEYOND))


# ---- On a lattice
GRID_STEP = 0.06  # of s, in rough pictures of a law
_ON_A_POINT = 1e-9  # of a step
LEFT = -40.0  # N(0,1) is cut there; the upper bound adds what lies below
BEYOND_BULK = 10.0
LOG_CUT_OFF = float(log_ndtr(LEFT + 0.1))  # with room for rounding


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
    low = begin if points[0] == -math.inf else max(begin, LEFT)
    left, right = shared_mass(points, mu, log_tilt[:-1] - scale, low, end)
    masses = gathered(left, right, power * step)
    points[0] = max(float(points[0]), begin, LEFT)
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
    start = math.floor((loss_at(max(begin, LEFT), rate, mu) - lift) / step + _ON_A_POINT)
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


BRANCH = {"upper": upper_branch, "lower": lower_branch}


def branch_measure(
    branch: Branch, step: float, rate: float, lost: float, *, closed: bool = True
) -> LatticeMeasure:
    return normalised(
        branch.origin + branch.start * step,
        step,
        branch.masses,
        branch.log_scale,
        rate,
        branch.absolute_error + lost,
        branch.relative_error,
        closed=closed,
    )


def normal_measure(mu: float, side: Side, step: float, rate: float) -> LatticeMeasure:
    # tilted, L is the log ratio at s ~ N((rate + 1) mu, 1); 10 deviations leave 2e-23
    centre = (rate + 1.0) * mu
    low = step * math.floor((mu * (centre - 10.0) - 0.5 * mu * mu) / step)
    begin = low / mu + 0.5 * mu
    branch = BRANCH[side](1.0, mu, rate + 1.0, step, 0.0, begin, centre + 10.0)
    lost = 4e-23 * float(branch.masses.sum())
    return branch_measure(branch, step, rate, lost, closed=False)


def end_of_tail(
    q: float, mu: float, rate: float, low: float, log_other: float = -math.inf
) -> float:
    """The smallest s > low where N(0,1) above s, tilted by r^-rate, is below e^-55 of all.

    log_other: what lies elsewhere. A branch that is rare beside it would be laid out far too wide.
    """
    s = np.linspace(low, 0.5 * mu + 11.0, 400)
    tilted = log_ndtr(-s) - rate * log_ratio(s, q, mu)  # decreasing
    largest = max(float((-0.5 * s * s - rate * log_ratio(s, q, mu)).max()), log_other)
    place = int(np.searchsorted(-tilted, 55.0 - largest))
    return float(s[min(place, len(s) - 1)])


def beyond_end(branch: Branch, q: float, mu: float, rate: float, log_scale: float) -> float:
    """The mass of N(0,1) above the end of a branch, tilted by r^-rate."""
    log_r = infimum(q) + loss_at(branch.end, q, mu)
    return 1.01 * math.exp(float(log_ndtr(-branch.end)) - rate * log_r - log_scale)


def log_mass_beyond(point: float, rate: float, mu: float) -> float:
    """ln of the mass of (1-q) N(0,1) + q N(mu,1) beyond a point."""
    hit = math.log(rate) + float(log_ndtr(mu - point))
    if rate == 1.0:
        return hit
    return float(np.logaddexp(hit, math.log1p(-rate) + log_ndtr(-point)))


def rough_grid(mu: float, rate: float, begin: float) -> tuple[FloatArray, FloatArray]:
    """Losses ln r at equal steps of s from `begin` on, and ln of the masses of N(0,1) there."""
    s = np.arange(begin + 0.5 * GRID_STEP, 40.0 + 1.5 * mu, GRID_STEP)
    base = -0.5 * s * s + math.log(GRID_STEP) - LOG_ROOT_2PI
    return log_ratio(s, rate, mu), base


# ---- what pairs of a rate and a mu have in common
class AbstractNormalPair(AbstractLossPair):
    """Normals that are mu apart: every loss grows with mu, and none is infinite."""

    mu: float

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def support(self) -> tuple[float, float]:
        return (-math.inf, math.inf)

    @property
    def strength(self) -> tuple[float, ...]:
        return (self.mu,)

    @property
    def far_point(self) -> float:
        return POINTS_BEYOND + 1.5 * self.mu


class AbstractRatedPair(AbstractNormalPair):
    """Such normals, drawn with a rate: every loss grows with both."""

    rate: float

    @property
    def strength(self) -> tuple[float, ...]:
        return (self.mu, self.rate)

    def dominating(self, group: Group, side: Side) -> AbstractLossPair:
        return cast(AbstractLossPair, extreme(group, side, "rate", "mu"))


class AbstractSampledPair(AbstractRatedPair):
    """One record, drawn with a rate: L = ln r on (a part of) the line."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate(self.rate))
        object.__setattr__(self, "mu", check_mu(self.mu))

    @property
    def total_variation(self) -> float:
        return self.rate * variation_of_normals(self.mu)

    @property
    def plain_mu(self) -> float | None:
        return self.mu if self.rate == 1.0 else None

    def log_beyond(self, point: float) -> float:
        return log_mass_beyond(point, self.rate, self.mu)
