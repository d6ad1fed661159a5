"""ln delta(epsilon) of ONE release in closed form, as an interval.

Every sampled Gaussian formula is one Gaussian profile at a moved epsilon:
remove: delta = q G(ln kappa), kappa = (e^eps - 1 + q)/q;
add:    delta = q kappa e^eps G(-ln kappa), kappa = (e^-eps - 1 + q)/q (0 when kappa <= 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from tightrope.errors import DoesNotApply
from tightrope.guarantee.gaussian import profile
from tightrope.guarantee.loss.abstract import AbstractLossPair, largest_loss
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.guarantee.loss.gaussian import (
    FixedSizeGaussianPair,
    GaussianPair,
    SampledGaussianPair,
    above_infimum,
)
from tightrope.guarantee.loss.laplace import BoundedRangePair, LaplaceMixturePair, LaplacePair
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicMixturePair
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP

__all__ = ["log_delta_single", "log_gaussian_delta", "mirrored"]

_NEVER = Interval.exact(-math.inf)  # delta = 0


def log_gaussian_delta(epsilon: float, mu: float) -> Interval:
    """ln delta of N(mu,1) against N(0,1) for every real eps (guarantee/gaussian/profile.py)."""
    low, high = profile.log_delta_bounds(epsilon, mu)
    return Interval(low, min(high, 0.0))


def _below_support(epsilon: float) -> Interval:
    """ln(1 - e^eps), where every loss is above eps < 0."""
    value = math.log(-math.expm1(epsilon))
    slack = 64.0 * ULP * (1.0 + abs(value))
    return Interval(value - slack, min(0.0, value + slack))


def mirrored(log_delta: Interval, epsilon: float) -> Interval:
    """ln(1 - e^eps + e^eps delta) for eps < 0, both terms positive."""

    def one(value: float, sign: float) -> float:
        total = -math.expm1(epsilon) + math.exp(epsilon + value)
        found = math.log(total)
        return min(0.0, found + sign * 8.0 * ULP * (1.0 + abs(found)))

    return Interval(one(log_delta.lower, -1.0), one(log_delta.upper, 1.0))


def _moved(q: float, epsilon: float) -> tuple[float, float]:
    """ln kappa with kappa = (e^eps - 1 + q)/q, and its absolute error; -inf when kappa <= 0.

    An infinite error says that only an upper bound on kappa is known, which may be 0.
    """
    if q == 1.0:
        return epsilon, 0.0
    if epsilon > 30.0:
        value = epsilon + math.log1p(-(1.0 - q) * math.exp(-epsilon)) - math.log(q)
        return value, 4.0 * ULP * (abs(value) + epsilon - math.log(q))
    left, size = (float(part) for part in above_infimum(np.asarray(epsilon), q))
    rounding = 4.0 * ULP * size
    if left < -rounding:
        return -math.inf, 0.0
    if left < 2.0 * rounding:  # within rounding of the infimum, perhaps below it
        return math.log(3.0 * rounding) - math.log(q), math.inf
    value = math.log(left) - math.log(q)
    return value, 2.0 * rounding / left + 4.0 * ULP * (abs(value) - math.log(q) + 1.0)


_Profile = Callable[[float], Interval]  # ln delta of every real epsilon


def _between(centre: float, error: float, base: _Profile) -> Interval:
    """A falling profile over [centre - error, centre + error]."""
    if error == 0.0:
        return base(centre)
    if error == math.inf:
        return Interval(-math.inf, 0.0)
    low, high = base(centre + error), base(centre - error)
    return Interval(min(low.lower, high.lower), max(low.upper, high.upper))


def _shifted(value: Interval, shift: float) -> Interval:
    slack = 4.0 * ULP * (abs(shift) + 1.0)
    return Interval(value.lower + shift - slack, min(0.0, value.upper + shift + slack))


def _gaussian(pair: GaussianPair, epsilon: float) -> Interval:
    return log_gaussian_delta(epsilon, pair.mu)


def _sampled(pair: SampledGaussianPair, epsilon: float) -> Interval:
    base = partial(log_gaussian_delta, mu=pair.mu)
    if pair.direction == "remove":
        return _sampled_removed(pair.rate, epsilon, base)
    return _sampled_added(pair.rate, epsilon, base)


def _sampled_removed(rate: float, epsilon: float, base: _Profile) -> Interval:
    kappa, error = _moved(rate, epsilon)
    if kappa == -math.inf or error == math.inf:  # below the support, or within 3 rounding/q
        return _below_support(epsilon)
    return _shifted(_between(kappa, error, base), math.log(rate))


def _sampled_added(rate: float, epsilon: float, base: _Profile) -> Interval:
    kappa, error = _moved(rate, -epsilon)
    if kappa == -math.inf:
        return _NEVER
    if error == math.inf:  # kappa G(-ln kappa) increases with kappa
        most = base(-kappa).upper + math.log(rate) + epsilon + kappa
        return Interval(-math.inf, min(0.0, most + 8.0 * ULP * (abs(most) + abs(epsilon) + 1.0)))
    part = _shifted(_between(-kappa, error, base), math.log(rate) + epsilon + kappa)
    return Interval(part.lower - error, min(0.0, part.upper + error))


def _fixed_size(pair: FixedSizeGaussianPair, epsilon: float) -> Interval:
    if epsilon < 0.0:
        return mirrored(_fixed_size(pair, -epsilon), epsilon)
    kappa, error = _moved(pair.rate, epsilon)
    base = partial(log_gaussian_delta, mu=pair.mu)
    return _shifted(_between(kappa, error, base), math.log(pair.rate))


def _laplace(pair: LaplacePair, epsilon: float) -> Interval:
    return _log_laplace_delta(epsilon, pair.top)


def _log_laplace_delta(epsilon: float, top: float) -> Interval:
    """1 - e^{(eps - top)/2}, |eps| <= top."""
    if epsilon >= top:
        return _NEVER
    gap = epsilon if epsilon <= -top else 0.5 * (epsilon - top)
    value = math.log(-math.expm1(gap))
    error = 4.0 * ULP * (1.0 + (abs(epsilon) + top) / abs(gap) + abs(value))
    return Interval(value - error, min(0.0, value + error))


def _bounded_range(pair: BoundedRangePair, epsilon: float) -> Interval:
    """(1 - e^{(eps - top)/2})^2/(1 - e^-top), |eps| <= top."""
    if epsilon >= pair.top:
        return _NEVER
    if epsilon <= -pair.top:
        return _below_support(epsilon)
    half = _log_laplace_delta(epsilon, pair.top)
    scale = -math.log(-math.expm1(-pair.top))
    slack = 8.0 * ULP * (1.0 + abs(scale))
    return Interval(2.0 * half.lower + scale - slack, min(0.0, 2.0 * half.upper + scale + slack))


def _laplace_mixture(pair: LaplaceMixturePair, epsilon: float) -> Interval:
    """Both: P - e^eps Q = q (Lap(1) - kappa Lap(0)) for x >= 0, kappa that of eps + ln A(0)."""
    top, both = 1.0 / pair.scale, pair.plus and pair.minus
    base = partial(_log_laplace_delta, top=top)
    if both and epsilon < 0.0:
        return mirrored(_laplace_mixture(pair, -epsilon), epsilon)
    if epsilon >= largest_loss(((pair, 1),)).upper:
        return _NEVER
    if not pair.plus:
        return _sampled_added(pair.rate, epsilon, base)
    if not both:
        return _sampled_removed(pair.rate, epsilon, base)
    moved = epsilon + float(pair.log_arm(np.zeros(1))[0])
    slack = 8.0 * ULP * (1.0 + abs(epsilon) + abs(moved))
    low, high = (_sampled_removed(pair.rate, moved + way * slack, base) for way in (1.0, -1.0))
    return Interval(low.lower, high.upper)


def _discrete(pair: DiscretePair, epsilon: float) -> Interval:
    """Both ends of every loss and mass."""
    ends = []
    for way, infinite in ((-1.0, pair.least_infinite_mass), (1.0, pair.infinite_mass)):
        gaps = np.array(pair.losses) + way * pair.loss_error - epsilon
        logs = pair.log_masses + way * pair.log_errors
        total = float(np.exp(logs[gaps > 0.0]) @ -np.expm1(-gaps[gaps > 0.0])) + infinite
        value = math.log(total) if total > 0.0 else -math.inf
        ends.append(value + way * ULP * (len(gaps) + 8.0 + 2.0 * _size(value)))
    return Interval(ends[0], min(0.0, ends[1]))


def _mixture(pair: GaussianMixturePair, epsilon: float) -> Interval:
    """P(x > x*) - e^eps Q(x > x*) with L(x*) = eps, between proved points around x*.

    Turned round, 1 - e^eps + e^eps delta(-eps), where eps < 0. Masses are right to 1e-13.
    """
    if epsilon < 0.0:
        return mirrored(_mixture(pair.reversed(), -epsilon), epsilon)
    if epsilon >= pair.support[1] * (1.0 + 4.0 * ULP):
        return _NEVER
    if epsilon >= pair.support[1]:  # it is rounded: perhaps just below the largest loss
        before = (_mixture(pair, epsilon * (1.0 - step)).upper for step in (1e-15, 1e-12, 1e-8))
        return Interval(-math.inf, min(before))
    low, high = (float(end) for end in pair.brackets(epsilon))
    plus, minus = pair.arms
    at = np.array([low, high])
    with_them, without = np.exp(plus.log_above(at)), np.exp(minus.log_below(-at) + epsilon)
    size = 1e-13 * (with_them[0] + without[0]) * (1.0 + epsilon)
    most = with_them[0] - without[1] + size
    least = float(np.max(with_them - without)) - size  # any test proves a lower bound
    lower = math.log(least) if least > 0.0 else -math.inf
    return Interval(lower, min(0.0, math.log(max(most, 1e-320))))


def _public(pair: PublicMixturePair, epsilon: float) -> Interval:
    """delta is the mean of the parts' deltas."""
    parts = [(math.log(w), log_delta_single(part, epsilon)) for w, part in pair.parts]
    lower = float(np.logaddexp.reduce([w + found.lower for w, found in parts]))
    upper = float(np.logaddexp.reduce([w + found.upper for w, found in parts]))
    low, high = (8.0 * ULP * (1.0 + _size(end)) for end in (lower, upper))
    return Interval(lower - low, min(0.0, upper + high))


def _size(value: float) -> float:
    return abs(value) if math.isfinite(value) else 0.0


_RULES = {
    GaussianPair: _gaussian,
    SampledGaussianPair: _sampled,
    FixedSizeGaussianPair: _fixed_size,
    LaplacePair: _laplace,
    BoundedRangePair: _bounded_range,
    LaplaceMixturePair: _laplace_mixture,
    DiscretePair: _discrete,
    GaussianMixturePair: _mixture,
    PublicMixturePair: _public,
}


def log_delta_single(pair: AbstractLossPair, epsilon: float) -> Interval:
    """ln delta(epsilon) of one release of `pair`; -inf when delta is 0."""
    rule = _RULES.get(type(pair))
    if rule is None:
        raise DoesNotApply(
            f"No closed form of the profile is known for {type(pair).__name__}; known are "
            f"{', '.join(kind.__name__ for kind in _RULES)}. Use the lattice method instead."
        )
    return rule(pair, epsilon)  # type: ignore[operator,no-any-return]
