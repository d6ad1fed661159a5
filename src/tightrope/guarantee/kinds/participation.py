"""Sampled Gaussian steps by how often a record takes part: for noise too small for the exact law.

Statement: in each of T steps a record takes part with probability q, secretly and independently,
    and then moves the sum by at most mu standard deviations. With K ~ Bin(T, q), w = P(K >= 1) and
    e^eps' = 1 + (e^eps - 1)/w, for every eps >= 0
        delta(eps) <= sum_{k>=1} P(K = k) delta(eps'; mu sqrt(k)),
    delta(.; mu) the Gaussian profile; and D_a <= T ln(1 - q + q e^(a(a-1) mu^2/2))/(a-1).
Proof. Given the steps S it takes part in, the neighbours are mu sqrt(|S|)-Gaussian apart, and both
    have the law of S. They share the part K = 0, so by advanced joint convexity the divergence is
    at most w times a mean of those, at eps', between the law given K >= 1 of one neighbour and the
    laws given K >= 1 or K = 0 of the other; each is at most sum P(K = k | K >= 1)
    delta(eps'; mu sqrt(k)) by joint convexity. E e^((a-1) D_a) is jointly convex too.
Conditions: steps drawn afresh, K secret.
Validity: upper bound. Near the truth where mu is large: it forgets which steps they were. Lower
    ends are those of the same steps with more noise, so that their exact composition answers.
Source: Balle, Barthe and Gaboardi 2018 (arXiv:1807.01647), Theorem 2 (advanced joint convexity).
Error: counts between two edges are taken for the larger one; tails are rounded up.
Vectors: tests/attacks/test_corners.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.pairs import Direction, SampledGaussianPair
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import FloatArray, check_delta, check_order, check_real

_EDGES = 1000
_TAIL = 1e-200  # of the counts that stand for every larger one
_ROUNDING = 1e-11
_LARGEST_LOSS = 1e150  # that the Gaussian profile is asked about
_LARGEST_MU = 20.0  # of the exact composition


@final
@dataclass(frozen=True)
class ParticipationGuarantee(Guarantee):
    """`steps` Gaussian steps of this mu, each with probability `rate`."""

    rate: float
    mu: float
    steps: int
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.BOUND
    shown: float = 0.0  # the mu between a batch with the record and one without, of some data

    @property
    def two_sided(self) -> bool:
        return self.shown > 0.0

    def as_bound(self) -> ParticipationGuarantee:
        return replace(self, shown=0.0)

    @cached_property
    def _attained(self) -> LossGuarantee:
        """All other records at 0, with noise added until the exact composition can answer."""
        mu = min(self.shown, _LARGEST_MU)
        ways: tuple[Direction, ...] = ("remove", "add")
        orders = tuple(((SampledGaussianPair(self.rate, mu, w), self.steps),) for w in ways)
        return LossGuarantee(orders, self.adjacency)

    def _from(self, least: Callable[[], Interval], upper: float) -> Interval:
        lower = 0.0
        if self.two_sided:
            with suppress(NotCertified):
                lower = least().lower
        return Interval(min(lower, upper), upper)

    @property
    def without_sampling(self) -> GaussianGuarantee:
        """The record takes part in every step."""
        return GaussianGuarantee(self.mu * math.sqrt(self.steps), self.adjacency, self.validity)

    def _one_delta(self, epsilon: float) -> Interval:
        eps = check_real(epsilon, "epsilon")
        plain = self.without_sampling.delta(eps).upper
        upper = min(plain, self._delta(eps)) if eps >= 0.0 else plain
        return self._from(lambda: self._attained.delta(eps), upper)

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        low, high = 0.0, self.without_sampling.epsilon(d).upper
        if self._delta(low) <= d:
            return Interval.exact(low)
        while high - low > 1e-10 * high and high <= _LARGEST_LOSS:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._delta(middle) > d else (low, middle)
        return self._from(lambda: self._attained.epsilon(d), high)

    def _one_renyi(self, order: float) -> Interval:
        a = check_order(order)
        grown = 0.5 * a * (a - 1.0) * self.mu * self.mu
        each = float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + grown))
        return Interval.exact(self.steps * max(each, 0.0) / (a - 1.0) * (1.0 + _ROUNDING))

    def _one_tradeoff(self, type_i: float) -> Interval:
        """No release of a Gaussian step rules a neighbour out: without false alarms, no hits."""
        return Interval.exact(1.0) if type_i == 0.0 else super()._one_tradeoff(type_i)

    def directions(self) -> tuple[Components, ...] | None:
        """Composed with other releases, the sampling is forgotten."""
        return self.without_sampling.directions()

    def _delta(self, epsilon: float) -> float:
        counts, chances = _participations(self.rate, self.steps)
        ever = -math.expm1(self.steps * math.log1p(-self.rate))
        if epsilon < 30.0:
            shifted = math.log1p(math.expm1(epsilon) / ever)
        else:  # without e^eps
            shifted = epsilon - math.log(ever) + math.log1p((ever - 1.0) * math.exp(-epsilon))
        found = profile.delta_bounds(shifted * (1.0 - 1e-14), self.mu * np.sqrt(counts))[1]
        return min(1.0, float(chances @ found) * (1.0 + _ROUNDING) + _TAIL)


@lru_cache(maxsize=8)
def _participations(rate: float, steps: int) -> tuple[FloatArray, FloatArray]:
    """Counts k >= 1, increasing, and the chance of each (with those between it and the last)."""
    from scipy.stats import binom  # slow to import, and seldom needed

    most = min(steps, int(binom.isf(_TAIL, steps, rate)) + 1)
    dense = np.arange(min(most, _EDGES) + 1)
    spread = float(np.sqrt(steps * rate * (1.0 - rate)))
    around = steps * rate + spread * np.linspace(-12.0, 12.0, _EDGES)
    far = np.geomspace(1.0, most, _EDGES)
    edges = np.concatenate(
        [dense, np.clip(np.ceil(np.concatenate([around, far])), 0, most), [most]]
    )
    edges = np.unique(edges)
    tails = binom.sf(edges, steps, rate)
    chances = np.maximum(tails[:-1] - tails[1:], 0.0) + 1e-12 * tails[:-1]
    return edges[1:], chances
