"""Holds everything reserved and spent against the total: one number, one limit.

Which composition is valid depends on who chooses the releases (docs/ledger.md):
- along the way, by looking at earlier ones: a filter. For a total mu the Gaussian one: squares of
  mu add (Smith, Thakurta 2022; Koskela, Tobaben, Honkela 2023). For every other total the Renyi one
  (Feldman, Zrnic 2021, Theorem 4.3) at several orders that were fixed when the data set was added;
  each holds with a share of delta, and one that is not exceeded is enough;
- in advance: the exact composition of dominating pairs (Zhu, Dong, Wang 2022, Theorem 10).
Runs that overlap in time cost the same (Haney et al. 2023; Vadhan, Zhang 2023).

Error: every number is rounded up, every limit down.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, final

import numpy as np

from tightrope.accounting import account
from tightrope.errors import DoesNotApply
from tightrope.guarantee import gaussian
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.renyi.optimal import one_sided_gamma
from tightrope.ledger.reservation import Charge
from tightrope.ledger.terms import IN_ADVANCE, Terms, Total
from tightrope.process import Process, parts_of

_UP, _DOWN = 1.0 + 1e-12, 1.0 - 1e-12
_FINE = (1.0 + np.geomspace(0.1, 400.0, 120)).tolist()
_AROUND = (0.4, 0.55, 0.75, 1.4)  # of the best order less 1
_LARGE_DELTA = 1e-3  # to share it costs more than further orders bring


class Meter(Protocol):
    """used: a certified upper bound, in the unit of the limit; it grows with every release.
    width: how many numbers a price has.
    """

    limit: float
    unit: str
    width: int

    def price(self, process: Process) -> tuple[float, ...]: ...
    def used(self, charges: Counter[Charge]) -> float: ...


def meter_of(terms: Terms) -> Meter:
    """The composition that is proved for how the releases of this data set are chosen."""
    if terms.total.mu is not None:
        return GaussianMeter(terms.total.mu)
    if terms.choices == IN_ADVANCE:
        return ExactMeter(terms.total)
    return RenyiMeter(terms.total, terms.orders)


def with_orders(terms: Terms) -> Terms:
    """The terms with the orders of the filter in them, which stay for the life of the data set."""
    if terms.total.mu is not None or terms.choices == IN_ADVANCE or terms.orders:
        return terms
    epsilon, delta = _pair_of(terms.total)
    # the order at which Gaussian noise, whose divergence is order * mu^2 / 2, goes furthest
    best = max(_FINE, key=lambda order: _renyi_limit(order, epsilon, delta / 2.0) / order)
    others = () if delta > _LARGE_DELTA else (1.0 + (best - 1.0) * part for part in _AROUND)
    return replace(terms, orders=(best, *others))


@final
class GaussianMeter:
    """mu^2 adds, whoever chose the noise; for releases with a Gaussian guarantee only."""

    def __init__(self, mu: float) -> None:
        self.limit, self.unit, self.width = mu * mu * (1.0 - 1e-15), "mu squared", 1

    def price(self, process: Process) -> tuple[float, ...]:
        return (_squared_mu(process),)

    def used(self, charges: Counter[Charge]) -> float:
        added = math.fsum(charge.price[0] * count for charge, count in charges.items())
        return added * (1.0 + 1e-15)


@final
class RenyiMeter:
    """Renyi divergences of one order add, whoever chose the releases.

    The first order has half of delta and the others share the rest (docs/ledger.md, "Several
    orders"). The number is the share of its limit at the order where that is least.
    """

    def __init__(self, total: Total, orders: tuple[float, ...]) -> None:
        self.orders, self.width = orders, len(orders)
        self.limit, self.unit = 1.0, "share of the Renyi filter"
        epsilon, delta = _pair_of(total)
        halves = [0.5, *[0.5 / (len(orders) - 1)] * (len(orders) - 1)] if orders[1:] else [1.0]
        shares = zip(orders, halves, strict=True)
        self._limits = np.array([_renyi_limit(a, epsilon, delta * part) for a, part in shares])

    def price(self, process: Process) -> tuple[float, ...]:
        return _renyi(process, self.orders)

    def used(self, charges: Counter[Charge]) -> float:
        if not charges:
            return 0.0
        prices = np.array([charge.price for charge in charges])
        sums = np.array(list(charges.values()), dtype=np.float64) @ prices
        return float(np.min(sums / self._limits)) * (_UP + len(charges) * 1e-15)


@final
class ExactMeter:
    """The exact composition of releases that were chosen without looking at earlier ones."""

    def __init__(self, total: Total) -> None:
        self.total, self.limit, self.width = total, total.limit, 0
        rates = total.false_positive_rate
        about = "advantage" if rates is None else f"hit rate at {rates:g} false alarms"
        self.unit = about if total.epsilon is None else f"delta at epsilon {total.epsilon:g}"

    def price(self, process: Process) -> tuple[float, ...]:
        _guarantee(process, self.limit)  # refuses what has none
        return ()

    def used(self, charges: Counter[Charge]) -> float:
        return self.total.of(self.together(charges)).upper if charges else 0.0

    def together(self, charges: Counter[Charge]) -> Guarantee:
        """The guarantee of all of them; equal kinds are composed as one."""
        kinds: Counter[Any] = Counter()
        for charge, count in charges.items():
            for part, times in parts_of(charge.process).items():
                kinds[part] += times * count
        return compose([_guarantee(kind, self.limit) for kind in kinds], list(kinds.values()))


def _pair_of(total: Total) -> tuple[float, float]:
    """An (epsilon, delta) that forces the total. It bounds a hit rate by delta + e^epsilon times
    the false alarms; of such pairs, the one that lets Gaussian noise go furthest."""
    target = total.target()
    if target.true_positive_rate is None:
        return target.epsilon, target.delta
    hits, alarms = target.true_positive_rate, target.false_positive_rate
    steepest = math.log(hits / alarms) if alarms > 0.0 else 30.0
    epsilons = np.linspace(0.0, steepest, 200, endpoint=False).tolist()
    pairs = [(e, (hits - math.exp(e) * alarms) * _DOWN - 1e-16) for e in epsilons]
    return max((p for p in pairs if p[1] > 0.0), key=lambda p: float(gaussian.mu(*p)))


@lru_cache(maxsize=1024)
def _renyi_limit(order: float, epsilon: float, delta: float) -> float:
    """The largest Renyi divergence that forces (epsilon, delta), rounded down."""
    return float(one_sided_gamma(order, epsilon, delta)[0])


@lru_cache(maxsize=4096)
def _squared_mu(kind: Process) -> float:
    found = [f.outcome for f in account(kind, check="off").certified]
    mus = [g.mu for g in found if isinstance(g, GaussianGuarantee)]
    if not mus:
        raise DoesNotApply(
            f"The total of this data set is a Gaussian mu, and nothing proves one for {kind}: only "
            "Gaussian noise without sampling has a mu that holds at every delta. Spend from a data "
            "set with a total of epsilon and delta."
        )
    return min(mus) ** 2 * (1.0 + 1e-15)


@lru_cache(maxsize=4096)
def _renyi(kind: Process, orders: tuple[float, ...]) -> tuple[float, ...]:
    found = account(kind, check="off")
    return tuple(found.renyi(order).upper for order in orders)


@lru_cache(maxsize=4096)
def _guarantee(kind: Process, delta: float) -> Guarantee:
    """The exact one, where there is one and it composes: no other does better together."""
    found = account(kind, check="off")
    pairs = (f.outcome for f in found.certified if isinstance(f.outcome, Guarantee))
    exact = (g for g in pairs if g.validity is Validity.EXACT and g.directions() is not None)
    return next(exact, None) or found.guarantee(delta)
