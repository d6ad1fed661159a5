"""What a guarantee means for one person: the attacks it leaves possible.

Statement: an attacker decides whether a record was used. At false positive rate a its true positive
    rate is at most 1 - f(a), f the trade-off function. Membership advantage = max TPR - FPR =
    delta(0). Belief after an alarm, from a prior pi: pi TPR/(pi TPR + (1 - pi) FPR). Best share of
    right answers: (1 - pi) + pi delta(ln((1 - pi)/pi)) (Bayes' test). Pure epsilon-DP: belief
    after any output at most pi e^eps/(pi e^eps + 1 - pi).
Conditions: the attacker knows everything but the one record; the type II error f(a) given is
    certified.
Validity: bound on every attack; attained where f is the exact trade-off function.
Source: Wasserman and Zhou 2010; Dong, Roth and Su 2019 (arXiv:1905.02383), Section 2; Yeom et al.
    2018 (arXiv:1709.01604); Bayes' rule.
Error: a few roundings, taken outward.
Vectors: tests/unit/guarantee/test_risk.py.

A smaller type II error is a stronger attack, so `type_ii.lower` gives the upper end of each answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tightrope.errors import InvalidInput
from tightrope.guarantee.approx import tradeoff_interval
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.validate import check_epsilon, check_probability, one_number

__all__ = [
    "true_positive_rate",
    "true_positive_rate_of_approx",
    "advantage",
    "posterior",
    "posterior_of_pure",
    "accuracy",
]

_ULPS = 4.0 * ULP
_UP, _TINY = 600, 5e-324  # a power of two for products of small numbers; the smallest double


def true_positive_rate(type_ii: Interval) -> Interval:
    """The best true positive rate at the type I error where `type_ii` was read: 1 - type_ii."""
    low, high = 1.0 - type_ii.upper, 1.0 - type_ii.lower
    return _outward(low, high)


def true_positive_rate_of_approx(
    false_positive_rate: float, guarantees: list[tuple[float, float]]
) -> Interval:
    """The best true positive rate that several (epsilon, delta) guarantees of one run allow."""
    if not guarantees:
        raise InvalidInput("Give at least one (epsilon, delta) pair; got an empty list.")
    type_ii = Interval.worst([tradeoff_interval(false_positive_rate, e, d) for e, d in guarantees])
    return true_positive_rate(type_ii)


def advantage(delta_at_zero: Interval) -> Interval:
    """Membership advantage, max TPR - FPR: delta at epsilon = 0 (total variation)."""
    return delta_at_zero.clamp(0.0, 1.0)


def posterior(prior: float, false_positive_rate: float, type_ii: Interval) -> Interval:
    """Belief that the record was used, after an alarm of the best attack at this FPR.

    A false positive rate of 0 with any true positive leaves no doubt: belief 1.
    """
    pi = one_number(check_probability(prior, "prior"), "prior")
    fpr = check_probability(false_positive_rate, "false_positive_rate")
    fpr = one_number(fpr, "false_positive_rate")
    hit = true_positive_rate(type_ii)
    low = _bayes(pi, fpr, hit.lower) if hit.lower > 0.0 or fpr > 0.0 else pi
    high = _bayes(pi, fpr, hit.upper) if hit.upper > 0.0 or fpr > 0.0 else pi
    return _outward(low, high)


def posterior_of_pure(prior: float, epsilon: float) -> Interval:
    """The largest belief after any output of an epsilon-DP release."""
    pi, eps = check_probability(prior, "prior"), check_epsilon(epsilon)
    if pi in (0.0, 1.0):
        return Interval.exact(pi)
    value = pi / (pi + (1.0 - pi) * math.exp(-eps))
    return _outward(value, value)


def accuracy(delta: Callable[[float], Interval], prior: float) -> Interval:
    """The best share of right answers when a record is used with probability `prior`.

    `delta` is the profile for every real epsilon; for epsilon < 0 the symmetric rule
    delta(-e) = 1 - e^-e + e^-e delta(e) is applied here, so it is only asked for epsilon >= 0.
    """
    pi = check_probability(prior, "prior")
    if pi in (0.0, 1.0):
        return Interval.exact(1.0)
    # by symmetry the smaller of the two priors decides: (1-s) + s delta(ln((1-s)/s)), s <= 1/2
    small = min(pi, 1.0 - pi)
    part = delta(math.log1p(-small) - math.log(small) if small < 0.5 else 0.0)
    return _outward(1.0 - small + small * part.lower, 1.0 - small + small * part.upper)


def _bayes(prior: float, false_positive_rate: float, true_positive_rate: float) -> float:
    prior_up, alarm_up = math.ldexp(prior, _UP), math.ldexp(false_positive_rate, _UP)
    hit, false_alarm = prior_up * true_positive_rate, (1.0 - prior) * alarm_up
    return hit / (hit + false_alarm) if hit > 0.0 else 0.0


def _outward(low: float, high: float) -> Interval:
    """By some roundings; numbers below 1e-308 are rounded to a multiple of the smallest double."""
    below, above = low * (1.0 - _ULPS) - _TINY, high * (1.0 + _ULPS) + (_TINY if high else 0.0)
    return Interval(max(below, 0.0), min(above, 1.0))
