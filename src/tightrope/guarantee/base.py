"""Guarantee: a proved statement about a process, and how to read it.

A `Guarantee` is certified. Each answer is an `Interval` around the best number the guarantee
implies: its safe end (upper for a privacy loss, lower for a type II error) always holds for the
process; where `validity` is EXACT the other end holds for the process too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import overload

import numpy as np

from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.tradeoff import Profile, gaussian_mu, tradeoff
from tightrope.numerics.interval import Interval, IntervalArray
from tightrope.numerics.rounding import ULP
from tightrope.process import Adjacency
from tightrope.process.adjacency import unit_name
from tightrope.validate import (
    FloatArray,
    check_count,
    check_probability,
    check_real,
    one_number,
)

_ULPS = 4.0 * ULP
_UP, _TINY = 600, 5e-324  # a power of two for products of small numbers; the smallest double
_FEW_POINTS = 16  # of a trade-off curve, that are asked one by one


class Validity(Enum):
    """How a statement relates to the truth about the process.

    >>> from tightrope import GaussianMechanism, account
    >>> print(account(GaussianMechanism(noise_multiplier=2.0)).guarantee().validity)
    exact
    """

    EXACT = "exact"
    BOUND = "bound"
    ESTIMATE = "estimate"

    def __str__(self) -> str:
        return self.value


class Views(ABC):
    """The four ways to ask how private something is: for one number, or for an array of them.

    An array is answered by an array of the same shape.
    """

    @overload
    def epsilon(self, delta: float) -> Interval: ...
    @overload
    def epsilon(self, delta: FloatArray) -> IntervalArray: ...
    def epsilon(self, delta: float | FloatArray) -> Interval | IntervalArray:
        """The smallest epsilon with (epsilon, delta)-DP."""
        return _each(self._one_epsilon, delta, "delta")

    @overload
    def delta(self, epsilon: float) -> Interval: ...
    @overload
    def delta(self, epsilon: FloatArray) -> IntervalArray: ...
    def delta(self, epsilon: float | FloatArray) -> Interval | IntervalArray:
        """The smallest delta with (epsilon, delta)-DP."""
        return _each(self._one_delta, epsilon, "epsilon")

    @overload
    def renyi(self, order: float) -> Interval: ...
    @overload
    def renyi(self, order: FloatArray) -> IntervalArray: ...
    def renyi(self, order: float | FloatArray) -> Interval | IntervalArray:
        """The smallest gamma with (order, gamma)-Renyi DP."""
        return _each(self._one_renyi, order, "order")

    @overload
    def tradeoff(self, type_i: float) -> Interval: ...
    @overload
    def tradeoff(self, type_i: FloatArray) -> IntervalArray: ...
    def tradeoff(self, type_i: float | FloatArray) -> Interval | IntervalArray:
        """The smallest type II error of any test between neighbours at type I error `type_i`.

        A whole curve of sampled steps is read from one set of values of the profile: wider than
        one point at a time, about a thousandth of the hit rate.
        """
        if np.size(type_i) > _FEW_POINTS:
            points = np.asarray(check_probability(type_i, "type_i"))
            found = self._curve(points.reshape(-1))
            if found is not None:
                shape = points.shape
                return IntervalArray(found.lower.reshape(shape), found.upper.reshape(shape))
        return _each(self._one_tradeoff, type_i, "type_i")

    @abstractmethod
    def _one_epsilon(self, delta: float) -> Interval: ...

    @abstractmethod
    def _one_delta(self, epsilon: float) -> Interval: ...

    @abstractmethod
    def _one_renyi(self, order: float) -> Interval: ...

    @abstractmethod
    def _one_tradeoff(self, type_i: float) -> Interval: ...

    def _curve(self, type_i: FloatArray) -> IntervalArray | None:
        """The trade-off function at many points at once, where that is cheaper."""
        return None


def _each(
    ask: Callable[[float], Interval], value: float | FloatArray, name: str
) -> Interval | IntervalArray:
    """The answer to one question, or to each of an array of them."""
    if isinstance(value, float | str) or np.ndim(value) == 0:
        return ask(value)  # type: ignore[arg-type]
    values = np.asarray(check_real(value, name, finite=False))
    return IntervalArray.of([ask(float(one)) for one in values.reshape(-1)], values.shape)


class Guarantee(Views):
    """A certified privacy statement; immutable.

    >>> from tightrope import GaussianMechanism, account
    >>> promise = account(GaussianMechanism(noise_multiplier=2.0)).guarantee()
    >>> print(promise.epsilon(delta=1e-5), promise.advantage())
    [1.993091404, 1.993091405] [0.1974126513, 0.1974126514]
    """

    adjacency: Adjacency
    validity: Validity

    def profile(self) -> Profile | None:
        """Bounds on delta(epsilon) that are cheaper than `delta`, where there are such."""
        return None

    def proves(self, epsilon: float, delta: float) -> bool:
        """Whether this guarantee implies (epsilon, delta)-DP."""
        return self.delta(epsilon).upper <= delta

    def _one_tradeoff(self, type_i: float) -> Interval:
        return tradeoff(self, type_i)

    def gaussian_mu(self, smallest_delta: float = 1e-12) -> Interval:
        """The smallest mu whose Gaussian profile covers this one down to `smallest_delta`."""
        return gaussian_mu(self, smallest_delta)

    # --- whom it protects ------------------------------------------------------------------------
    @property
    def records(self) -> int:
        """The most records of one user that are protected together."""
        return 1

    @property
    def unit_of_privacy(self) -> str:
        return unit_name(self.records)

    @property
    def two_sided(self) -> bool:
        """Do both ends of epsilon and delta hold for the process?"""
        return self.validity is Validity.EXACT

    def as_bound(self) -> Guarantee:
        """For a process that loses no more than this one, which stands in for it: no lower ends."""
        known = self.validity is Validity.BOUND
        return self if known else replace(self, validity=Validity.BOUND)  # type: ignore[type-var]

    def loss_known(self, found: Interval) -> Interval:
        """The answer about the process from an epsilon or delta: a bound has no lower end."""
        return found if self.two_sided else Interval(0.0, found.upper)

    def renyi_known(self, found: Interval) -> Interval:
        return found if self.validity is Validity.EXACT else Interval(0.0, found.upper)

    def error_known(self, found: Interval, type_i: float) -> Interval:
        """The answer about a type II error: above a bound, only that guessing does no worse."""
        return found if self.validity is Validity.EXACT else Interval(found.lower, 1.0 - type_i)

    # --- composition -----------------------------------------------------------------------------
    def directions(self) -> tuple[Components, ...] | None:
        """Dominating pairs, one entry for each order of the neighbours (one if symmetric).

        None where the guarantee is not known through a pair of distributions.
        """
        return None

    def __matmul__(self, other: Guarantee) -> Guarantee:
        """This release and `other` together, on the same data."""
        return _composed([self, other], [1, 1])

    def __pow__(self, times: int) -> Guarantee:
        """This release, `times` times with fresh randomness."""
        return _composed([self], [times])

    def group(self, size: int) -> Guarantee:
        """The guarantee for `size` records that are added or removed (or replaced) together."""
        size = check_count(size, "size", low=1)
        if size == 1:
            return self
        from tightrope.guarantee.kinds.group import group  # a kind of guarantee, built on this one

        return group(self, size)

    def as_replace_one(self) -> Guarantee:
        """The same guarantee for replacing one record: one removal and one addition."""
        if self.adjacency is Adjacency.REPLACE_ONE:
            return self
        from tightrope.guarantee.kinds.group import replaced  # a kind of guarantee, as above

        return replaced(self)

    # --- what it means for a person --------------------------------------------------------------
    @overload
    def true_positive_rate(self, false_positive_rate: float) -> Interval: ...
    @overload
    def true_positive_rate(self, false_positive_rate: FloatArray) -> IntervalArray: ...
    def true_positive_rate(
        self, false_positive_rate: float | FloatArray
    ) -> Interval | IntervalArray:
        """The best hit rate of an attacker who accepts this rate of false alarms."""
        missed = self.tradeoff(false_positive_rate)
        if isinstance(missed, Interval):
            return hit_rate(missed)
        each = IntervalArray(missed.lower.reshape(-1), missed.upper.reshape(-1))
        return IntervalArray.of(map(hit_rate, each), missed.lower.shape)

    def advantage(self) -> Interval:
        """Membership advantage: the largest (hit rate - false alarm rate) of any attack."""
        return self.delta(0.0)

    def posterior(self, prior: float, false_positive_rate: float) -> Interval:
        """Belief of an attacker with this prior after an alarm of the best such attack."""
        return belief(prior, false_positive_rate, self.tradeoff(false_positive_rate))


class DerivedGuarantee(Guarantee):
    """A bound read off another guarantee, for the same neighbours and users."""

    inner: Guarantee

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        return self.inner.adjacency

    @property
    def records(self) -> int:
        return self.inner.records

    @property
    def validity(self) -> Validity:  # type: ignore[override]
        return Validity.BOUND


def _composed(parts: Sequence[Guarantee], times: Sequence[int]) -> Guarantee:
    """Composition chooses among the kinds of guarantees, which are built on the class above."""
    from tightrope.guarantee.compose import compose

    return compose(parts, times)


# ---- What a type II error f(a) means: an attacker who knows everything but the one record accepts
# the rate a of false alarms. Smaller errors are stronger attacks, so `type_ii.lower` gives the
# upper end of each answer. Wasserman and Zhou 2010; Dong, Roth and Su 2019, Section 2; Bayes' rule.
def hit_rate(type_ii: Interval) -> Interval:
    """The best true positive rate at the type I error where `type_ii` was read: 1 - type_ii."""
    return _outward(1.0 - type_ii.upper, 1.0 - type_ii.lower)


def belief(prior: float, false_positive_rate: float, type_ii: Interval) -> Interval:
    """Belief that the record was used, after an alarm of the best attack at this FPR.

    From a prior p it is p TPR/(p TPR + (1 - p) FPR). A false positive rate of 0 with any true
    positive leaves no doubt: belief 1.
    """
    pi = one_number(check_probability(prior, "prior"), "prior")
    fpr = one_number(
        check_probability(false_positive_rate, "false_positive_rate"), "false_positive_rate"
    )
    hit = hit_rate(type_ii)
    low = _bayes(pi, fpr, hit.lower) if hit.lower > 0.0 or fpr > 0.0 else pi
    high = _bayes(pi, fpr, hit.upper) if hit.upper > 0.0 or fpr > 0.0 else pi
    return _outward(low, high)


def _bayes(prior: float, false_positive_rate: float, true_positive_rate: float) -> float:
    prior_up, alarm_up = math.ldexp(prior, _UP), math.ldexp(false_positive_rate, _UP)
    hit, false_alarm = prior_up * true_positive_rate, (1.0 - prior) * alarm_up
    return hit / (hit + false_alarm) if hit > 0.0 else 0.0


def _outward(low: float, high: float) -> Interval:
    """The interval widened by some roundings; below 1e-308 by a multiple of the smallest double."""
    below, above = low * (1.0 - _ULPS) - _TINY, high * (1.0 + _ULPS) + (_TINY if high else 0.0)
    return Interval(max(below, 0.0), min(above, 1.0))
