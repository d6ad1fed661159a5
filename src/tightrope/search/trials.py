"""How many trials a private selection makes: a secret random number, and what that costs.

Statement: one trial is (a, g(a))-Renyi DP for every order a. K trials are run, K from the truncated
    negative binomial law (shape, g) of mean m, and the best is released. The release is
    (a, G)-Renyi DP with, for every order b > 1,
        G = g(a) + (1 + shape) ( (1 - 1/b) g(b) + ln(1/gamma)/b ) + ln(m)/(a-1).
    A pure epsilon-DP trial gives (2 + shape) epsilon in the limit: 3 epsilon for the geometric law
    (shape 1; Liu and Talwar 2019), 2 epsilon for the logarithmic one (shape 0).
Proof: A release y has the law Q(y) times the mean of f' over the step of q, the probability of an
    outcome no better, at y (f the generating function of K); by convexity of x^a y^(1-a) the
    divergence gains at most the maximum of f'(q)^a f'(q')^(1-a). Here f'(q) = m (gamma/p)^(1+shape)
    with p = 1 - (1-gamma) q, the probability of a randomised event, in [gamma, 1]. Renyi DP of
    order b gives p' <= (p e^g(b))^(1-1/b), so p'^(a-1) p^-a is at most
    e^((a-1)(1-1/b) g(b)) gamma^(-1-(a-1)/b).
Conditions: trials independent and identically distributed, score and result together released
    under the guarantee of a trial; K secret.
Validity: bound.
Source: Papernot and Steinke 2022 (arXiv:2110.03620), Theorem 2 and Definition 1.
Error: rounding; the law is sampled to 2^-53.
Vectors: tests/unit/search/test_selection.py (exact selections among finitely many outcomes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.kinds.renyi_curve import RenyiCurve
from tightrope.guarantee.selection import selection_guarantee
from tightrope.validate import FloatArray, check_positive, check_real

__all__ = ["TruncatedNegativeBinomial", "PoissonTrials"]

# Orders b over which the middle term is minimised; any of them gives a valid bound.
_ORDERS = np.concatenate([np.linspace(1.05, 10.0, 60), np.geomspace(11.0, 2000.0, 40)])
_ROUNDING = 1e-12


@final
@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """P(K = k) proportional to (1-gamma)^k prod_{l<k} (l+shape)/(l+1), k >= 1.

    shape 1 is the geometric law, shape 0 the logarithmic one; smaller gamma means more trials.
    """

    shape: float = 0.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        shape = check_real(self.shape, "shape", low=-1.0, open_low=True)
        gamma = check_real(self.gamma, "gamma", low=0.0, high=1.0, open_low=True)
        if gamma >= 1.0:
            raise InvalidInput(f"gamma must be in (0, 1); got {gamma}: 1 leaves no second trial.")
        object.__setattr__(self, "shape", float(shape))
        object.__setattr__(self, "gamma", float(gamma))

    @property
    def mean(self) -> float:
        shape, gamma = self.shape, self.gamma
        if shape == 0.0:
            return (1.0 / gamma - 1.0) / math.log(1.0 / gamma)
        return shape * (1.0 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))

    def chance(self, count: int) -> float:
        """P(K = count)."""
        if count < 1:
            return 0.0
        return math.exp(self._log_first + math.fsum(map(self._log_growth, range(1, count))))

    @property
    def _log_first(self) -> float:
        """ln P(K = 1); f'(0) = mean gamma^(1 + shape)."""
        return math.log(self.mean) + (1.0 + self.shape) * math.log(self.gamma)

    def _log_growth(self, count: int) -> float:
        """ln of P(K = count + 1) / P(K = count) = (1-gamma)(count+shape)/(count+1)."""
        return math.log1p(-self.gamma) + math.log((count + self.shape) / (count + 1))

    def draw(self, uniform: Callable[[], float]) -> int:
        """One secret number of trials, by inversion; in logarithms, as P(K = 1) may be below all
        floats. It ends where the chances fall and what is left of them is below 1e-17."""
        level, count, log_value = uniform(), 1, self._log_first
        reached, least = math.exp(log_value), math.log(1e-18 * self.gamma)
        growth = self._log_growth(count)
        while reached < level and (growth >= 0.0 or log_value > least):
            log_value, count = log_value + growth, count + 1
            reached, growth = reached + math.exp(log_value), self._log_growth(count)
        return count

    def guarantee(self, trial: Guarantee) -> RenyiGuarantee:
        """The guarantee of releasing the best of K trials."""
        term = _Selected(trial, self._extra(trial), max(math.log(self.mean), 0.0))
        return RenyiGuarantee(RenyiCurve.of(term), trial.adjacency, Validity.BOUND)

    def _extra(self, trial: Guarantee) -> float:
        """min over b of the term that does not depend on a."""
        cost = [
            (1.0 - 1.0 / b) * trial.renyi(b).upper - math.log(self.gamma) / b
            for b in _ORDERS.tolist()
        ]
        return float((1.0 + self.shape) * min(cost) * (1.0 + _ROUNDING))


@final
@dataclass(frozen=True)
class _Selected:
    """The Renyi curve of the selection, at any orders."""

    trial: Guarantee
    extra: float
    log_mean: float

    def upper(self, orders: FloatArray) -> FloatArray:
        own = np.array([self.trial.renyi(order).upper for order in np.ravel(orders).tolist()])
        added = self.extra + self.log_mean / (orders - 1.0)
        return (own.reshape(np.shape(orders)) + added) * (1.0 + _ROUNDING)


@final
@dataclass(frozen=True)
class PoissonTrials:
    """K ~ Poisson(mean); with K = 0 nothing is released. Often the cheapest for many trials."""

    mean: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", float(check_positive(self.mean, "mean")))

    def draw(self, uniform: Callable[[], float]) -> int:
        """Unit-rate waiting times that fit into the mean."""
        count, waited = 0, -math.log1p(-uniform())
        while waited < self.mean:
            count += 1
            waited -= math.log1p(-uniform())
        return count

    def guarantee(self, trial: Guarantee) -> RenyiGuarantee:
        return selection_guarantee(trial, self.mean)
