"""Accounts that run along: odometers that say what was spent, filters that refuse a step.

Which to use depends on who chose the parameters of the steps:

- chosen in advance (or without looking at the data): `Odometer`, the exact accountant. Its epsilon
  is that of a length that was fixed in advance too; whoever stops by looking at what was released
  may state `epsilon_at_will`;
- chosen along the way from what was released: `GaussianFilter` for steps without sampling,
  `RenyiFilter` for any step. The exact accountant is not proved for that case.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, final

from tightrope.accounting import Check, account
from tightrope.errors import BudgetExceeded, InvalidInput
from tightrope.guarantee import gaussian
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.renyi.optimal import one_sided_gamma as renyi_budget
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency, NoisySGD, Process, StoppedAtWill, same_adjacency
from tightrope.validate import check_count, check_delta, check_epsilon, check_order, check_positive

_ROOTS = 1.5  # square roots of the steps between two points of an odometer's grid


@final
class Odometer:
    """What a run of fixed parameters has spent so far, were its length fixed in advance.

        >>> from tightrope import NoisySGD, Odometer, PoissonSampling
        >>> meter = Odometer(NoisySGD(PoissonSampling(0.01), 1.0, steps=1), delta=1e-5)
        >>> meter.step(1000)
        >>> 1.8 < meter.epsilon().lower <= meter.epsilon().upper < 1.9
        True

    A query costs next to nothing.

    Epsilon grows with the steps, so its certified values at two step counts enclose every count
    in between: exact values are computed on a grid of step counts only.

    Error: grid points lie `growth` (1%) of the steps apart, or 1.5 square roots of them if that is
    more; the interval of `epsilon` is that of its two ends (at 100 steps about 7% of epsilon, at
    1,000 2%, from 20,000 on 0.5%). `exact_epsilon` is the narrow one.
    """

    def __init__(self, run: NoisySGD, delta: float, growth: float = 0.01) -> None:
        self.run = replace(run, steps=0)
        self.delta = check_delta(delta)
        self.growth = check_positive(growth, "growth")
        self.steps = 0
        self._known: dict[tuple[int, Check], Interval] = {}
        self._grid = (0, 1)

    def step(self, count: int = 1) -> None:
        """Record steps; call it before they are released."""
        self.steps += check_count(count, "count")

    def epsilon(self) -> Interval:
        """Certified epsilon of the steps so far, from the surrounding grid points."""
        return self.epsilon_after(self.steps)

    def epsilon_after(self, steps: int) -> Interval:
        low, high = self._surround(check_count(steps, "steps"))
        return Interval(self._at(low, "off").lower, self._at(high, "off").upper)

    def exact_epsilon(self) -> Interval:
        """The certified epsilon of exactly these steps, compared with the second method."""
        return self._at(self.steps, "quick")

    def epsilon_at_will(self) -> Interval:
        """The certified epsilon that holds at every stopping time (`theorems.stopping_times`)."""
        run = StoppedAtWill(replace(self.run, steps=self.steps))
        return account(run, check="quick").epsilon(float(self.delta))

    def allows(self, epsilon: float, count: int = 1) -> bool:
        """Would `count` more steps stay within the budget? Exact where the grid cannot tell."""
        budget, after = check_epsilon(epsilon), self.steps + check_count(count, "count")
        coarse = self.epsilon_after(after)
        if coarse.upper <= budget or coarse.lower > budget:
            return bool(coarse.upper <= budget)
        return bool(self._at(after, "quick").upper <= budget)

    def _at(self, steps: int, check: Check) -> Interval:
        if (steps, check) not in self._known:
            run = replace(self.run, steps=steps)
            self._known[steps, check] = account(run, check=check).epsilon(self.delta)
        return self._known[steps, check]

    def _surround(self, steps: int) -> tuple[int, int]:
        low, high = self._grid if steps >= self._grid[0] else (0, 1)
        while high < steps:
            apart = max(self.growth * high, _ROOTS * math.sqrt(high))
            low, high = high, high + max(1, math.ceil(apart))
        self._grid = (low, high)
        return (low, low) if steps == low else (low, high)


@final
class GaussianFilter:
    """A budget for Gaussian steps without sampling, whose noise may depend on earlier releases.

        >>> from tightrope import GaussianFilter
        >>> meter = GaussianFilter(epsilon=1.0, delta=1e-5)
        >>> meter.spend(10.0)
        >>> print(f"{meter.guarantee().epsilon(delta=1e-5).upper:.3f}")
        1.000

    Statement: as long as the sum of squared mu stays within mu_budget^2, everything released is
    mu_budget-GDP, however the noise was chosen. Source: Smith, Thakurta 2022; Koskela, Tobaben,
    Honkela 2023 (arXiv:2210.02911), Theorem 3.1.
    Conditions: each `sensitivity` is that between neighbours under the filter's `adjacency`.
    """

    def __init__(
        self, epsilon: float, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    ) -> None:
        self.adjacency = adjacency
        self.mu_budget = gaussian.mu_bounds(check_epsilon(epsilon), check_delta(delta)).lower
        self.spent = 0.0

    def spend(self, noise_multiplier: float, sensitivity: float = 1.0) -> None:
        """Account for one release before it is made; refuses the one that would exceed."""
        mu = check_positive(sensitivity, "sensitivity") / check_positive(
            noise_multiplier, "noise_multiplier"
        )
        after = math.hypot(self.spent, mu) * (1 + 1e-15)
        if after > self.mu_budget:
            raise BudgetExceeded(
                f"This release would bring mu to {after:.6g}; the budget is {self.mu_budget:.6g}. "
                "Stop here, or use more noise."
            )
        self.spent = after

    def guarantee(self) -> Guarantee:
        """What holds for everything released under this filter."""
        return GaussianGuarantee(self.mu_budget, self.adjacency)


@final
class RenyiFilter:
    """A budget for any steps, whose parameters may depend on earlier releases.

        >>> from tightrope import GaussianMechanism, RenyiFilter
        >>> meter = RenyiFilter(epsilon=3.0, delta=1e-5, order=8.0)
        >>> meter.spend(GaussianMechanism(noise_multiplier=10.0))

    Statement: at one fixed order, as long as the Renyi divergences of the steps taken sum to at
    most gamma, everything released is (order, gamma)-Renyi DP. Source: Feldman, Zrnic 2021
    (arXiv:2008.11193), Theorem 4.3.
    Conditions: all processes have the same neighbours (checked), and the order is fixed at first.
    """

    def __init__(self, epsilon: float, delta: float, order: float) -> None:
        self.order = check_order(order)
        self.budget = float(renyi_budget(self.order, check_epsilon(epsilon), check_delta(delta))[0])
        self.spent = 0.0
        self.adjacency: Adjacency | None = None

    @classmethod
    def for_plan(cls, epsilon: float, delta: float, plan: Any) -> RenyiFilter:
        """The order at which the planned process would use the least of the budget."""
        guarantee = account(plan).guarantee(delta)
        orders = [1.0 + 1.25**k for k in range(-10, 26)]
        share = {
            order: guarantee.renyi(order).upper
            / max(float(renyi_budget(order, epsilon, delta)[0]), 1e-300)
            for order in orders
        }
        best = min(share, key=lambda order: share[order])
        if not math.isfinite(share[best]):
            raise InvalidInput("The plan has no finite Renyi divergence; use another filter.")
        return cls(epsilon, delta, best)

    def spend(self, process: Process) -> None:
        """Account for one process before it runs; refuses the one that would exceed."""
        cost, adjacency = _renyi_cost(process, self.order)
        same_adjacency([self.adjacency or adjacency, adjacency])
        after = (self.spent + cost) * (1 + 1e-15)
        if after > self.budget:
            raise BudgetExceeded(
                f"This step would bring the Renyi divergence of order {self.order:.4g} to "
                f"{after:.6g}; the budget is {self.budget:.6g}. Stop here, or use more noise."
            )
        self.spent, self.adjacency = after, adjacency


@lru_cache(maxsize=64)
def _renyi_cost(process: Process, order: float) -> tuple[float, Adjacency]:
    """The certified Renyi divergence of one process; the same step again costs nothing."""
    best = account(process).best(lambda g: g.renyi(order).upper).outcome
    assert isinstance(best, Guarantee)
    return best.renyi(order).upper, best.adjacency
