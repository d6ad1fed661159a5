"""The composed loss on the lattice: valid bounds on ln delta at every epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.guarantee.loss.lattice_branch import LOG_CUT_OFF
from tightrope.guarantee.loss.lattice_jumps import (
    JumpLaw,
    log_jump_sum,
    one_jump,
    several_jumps,
)
from tightrope.guarantee.loss.lattice_plan import MAX_SIZE, Plan, has_jumps
from tightrope.guarantee.loss.lattice_sketch import Sketch, log_choose
from tightrope.guarantee.loss.lattice_step import Side, step_measure
from tightrope.numerics.interval import Interval
from tightrope.numerics.lattice import LatticeMeasure, convolve, support
from tightrope.numerics.lattice_coarse import coarsened
from tightrope.numerics.lattice_tail import TailTable, tail_table
from tightrope.validate import FloatArray

__all__ = ["OneSide", "infinite_log_mass", "one_side"]

_SMALL = 4096.0  # a window this small need not be smaller


@final
@dataclass(frozen=True)
class OneSide:
    """Values and error bounds of one side (upper or lower) of the composed law."""

    plan: Plan
    side: Side
    tables: tuple[tuple[TailTable, ...], ...]  # for 0, 1, ... jumps
    laws: tuple[JumpLaw, ...]  # for 1, 2, ... jumps
    log_infinite: float  # ln P(some loss is +inf): part of both bounds
    log_left_out: float  # ln of the mass of losses and numbers of jumps that are not followed
    log_moment: float  # ln E[e^{rate L}] of the small losses where they are only bounded, or -inf
    highest: float  # largest sum of small losses

    def log_given(self, epsilon: float) -> float:
        """ln of what the upper bound adds for everything that is not followed."""
        if epsilon >= self.highest:
            return self.log_left_out
        chernoff = self.log_moment - self.plan.rate * epsilon
        return float(np.logaddexp(self.log_left_out, chernoff))

    def log_upper(self, epsilon: float) -> float:
        """ln of the upper bound on delta(epsilon)."""
        value, error = self.log_value(epsilon)
        return min(0.0, float(np.logaddexp.reduce([value, error, self.log_given(epsilon)])))

    def log_lower(self, epsilon: float) -> float:
        """ln of the lower bound on delta(epsilon)."""
        value, error = self.log_value(epsilon)
        if error >= value:
            return self.log_infinite
        return min(0.0, max(value + math.log1p(-math.exp(error - value)), self.log_infinite))

    def log_value(self, epsilon: float) -> tuple[float, float]:
        """ln of delta as computed on this side, and ln of the bound on its numerical error."""
        values, errors = [self.log_infinite], [self.log_infinite + math.log(1e-14)]
        count = self.plan.components[0][1]
        if self.tables[0]:
            value, error = _call(self.tables[0], np.array([epsilon]))
            values.append(float(value[0]))
            errors.append(float(error[0]))
        for k, law in enumerate(self.laws, start=1):
            tables = self.tables[k]
            value_k, error_k = log_jump_sum(law, lambda a, t=tables: _call(t, a), epsilon)  # type: ignore[misc]
            values.append(value_k + log_choose(count, k))
            errors.append(error_k + log_choose(count, k))
        total = float(np.logaddexp.reduce(values))
        size = max(len(t.mass) for tables in self.tables for t in tables) if any(self.tables) else 1
        rounding = math.log(2.0**-52 * (2.0 * size + 2000.0))
        return total, float(np.logaddexp.reduce([*errors, total + rounding]))


def _call(tables: tuple[TailTable, ...], points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At each point the table with the smallest error bound."""
    if len(tables) == 1:
        return tables[0].log_call(points)
    errors = np.stack([table.log_error(points) for table in tables])
    choice = errors.argmin(axis=0)
    values = np.empty_like(points)
    for i, table in enumerate(tables):
        chosen = choice == i
        if chosen.any():
            values[chosen] = table.log_call(points[chosen])[0]
    return values, errors.min(axis=0)


def infinite_log_mass(components: Components) -> Interval:
    """ln P(some loss is +inf), which no epsilon removes."""
    finite = math.fsum(n * math.log1p(-pair.infinite_mass) for pair, n in components)
    if finite == 0.0:
        return Interval.exact(-math.inf)
    value = math.log(-math.expm1(finite))
    return Interval(value - 1e-14, min(0.0, value + 1e-14))


def one_side(plan: Plan, side: Side) -> OneSide:
    small = _Small(plan, side)
    tables: list[tuple[TailTable, ...]] = [small.tables((plan.rate,), 0) if plan.followed else ()]
    tables += [small.tables(plan.ladder, k) for k in range(1, plan.jumps + 1)]
    pair, count = plan.components[0]
    log_moment = -math.inf if plan.followed else small.log_moment(plan.rate)
    given = []
    if plan.jumps:
        laws = _jump_laws(plan, side, small.end)
        given.append(_log_beyond(pair, plan.last) + math.log(count))
        if plan.jumps < count:
            k = plan.jumps + 1
            given.append(log_choose(count, k) + k * _log_beyond(pair, small.end))
    else:
        laws = ()
        given += [
            _log_beyond(p, end) + math.log(n)
            for (p, n), end in zip(plan.components, small.ends, strict=True)
            if has_jumps(p)
        ]
    given += [LOG_CUT_OFF + math.log(n) for p, n in plan.components if _is_cut_off(p)]
    log_given = float(np.logaddexp.reduce(given)) if given else -math.inf
    infinite = infinite_log_mass(plan.components)
    log_infinite = infinite.upper if side == "upper" else infinite.lower
    return OneSide(
        plan, side, tuple(tables), laws, log_infinite, log_given, log_moment, small.highest()
    )


def _is_cut_off(pair: AbstractLossPair) -> bool:
    """Does its lattice leave out the points s far to the left?"""
    return isinstance(pair, SampledGaussianPair) and pair.rate < 1.0


def _log_beyond(pair: AbstractLossPair, point: float) -> float:
    """ln P(s > point) for a pair with jumps, P being the mixture there."""
    rate, mu = float(getattr(pair, "rate", 1.0)), float(getattr(pair, "mu", 1.0))
    hit = math.log(rate) + float(log_ndtr(mu - point))
    if rate == 1.0:
        return hit
    return float(np.logaddexp(hit, math.log1p(-rate) + log_ndtr(-point)))


def _jump_laws(plan: Plan, side: Side, begin: float) -> tuple[JumpLaw, ...]:
    """The sum of 1, 2, ... jumps."""
    pair = plan.components[0][0]
    rate, mu = float(getattr(pair, "rate", 1.0)), float(getattr(pair, "mu", 1.0))
    first, cells = plan.cells
    laws = [one_jump(rate, mu, begin, plan.last, first, side)]
    if plan.jumps > 1:
        args = (rate, mu, begin, plan.last, cells, plan.jumps, plan.jump_tilt, side)
        laws += several_jumps(*args)
    return tuple(laws)


class _Small:
    """Powers of the small losses, two stages of convolution where that pays."""

    def __init__(self, plan: Plan, side: Side) -> None:
        self.plan, self.side = plan, side
        self.steps: dict[float, list[LatticeMeasure]] = {}
        self.blocks: dict[float, list[LatticeMeasure]] = {}
        self.ends: list[float] = list(plan.cuts)
        self._step(plan.rate)

    @property
    def end(self) -> float:
        return self.ends[0]

    def _step(self, rate: float) -> list[LatticeMeasure]:
        if rate not in self.steps:
            built = [
                step_measure(pair, self.side, self.plan.step, rate, cut)
                for (pair, _), cut in zip(self.plan.components, self.plan.cuts, strict=True)
            ]
            self.steps[rate] = [measure for measure, _ in built]
            self.ends = [end for _, end in built]
        return self.steps[rate]

    def highest(self) -> float:
        """Largest sum of the small losses, rounded up."""
        measures = list(zip(self._step(self.plan.rate), self.plan.components, strict=True))
        if not all(m.closed for m, _ in measures):
            return math.inf
        length = [m.step * (len(m.weights) - 1) for m, _ in measures]
        tops = [n * (m.first + x) for x, (m, (_, n)) in zip(length, measures, strict=True)]
        sizes = [n * (abs(m.first) + x) for x, (m, (_, n)) in zip(length, measures, strict=True)]
        return math.fsum(tops) + 1e-14 * math.fsum(sizes)

    def log_moment(self, rate: float) -> float:
        """ln of a bound on E[e^{rate L}] of the sum: under Q it is convex in e^L."""
        measures = zip(self._step(rate), self.plan.components, strict=True)
        value = sum(n * (m.log_scale + math.log1p(m.error)) for m, (_, n) in measures)
        return value + 1e-12 * (1.0 + abs(value))

    def tables(self, rates: tuple[float, ...], skip: int) -> tuple[TailTable, ...]:
        """Tables of the composition of all but `skip` steps, one for each tilt."""
        return tuple(tail_table(self._composed(rate, skip)) for rate in rates)

    def _composed(self, rate: float, skip: int) -> LatticeMeasure:
        plan, factors = self.plan, []
        for i, (measure, (_, count)) in enumerate(
            zip(self._step(rate), plan.components, strict=True)
        ):
            left = count - skip if i == 0 else count
            if plan.factor == 1:
                factors.append((measure, left))
                continue
            whole = max(0, (count - plan.jumps) // plan.inner)
            factors.append((self._block(rate, i), whole))
            if left > whole * plan.inner:
                rest = self._power(measure, left - whole * plan.inner, rate, i)
                factors.append((coarsened(rest, plan.factor, self.side), 1))
        factors = [(measure, count) for measure, count in factors if count > 0]
        if not factors:  # every step was a jump
            step = plan.step * plan.factor
            return LatticeMeasure(0.0, step, np.array([1.0]), 0.0, rate)
        width, thetas = plan.sketch.window(rate)
        return convolve(factors, _size(width, factors), thetas)

    def _block(self, rate: float, i: int) -> LatticeMeasure:
        """`inner` steps on the coarse lattice."""
        blocks = self.blocks.setdefault(rate, [])
        while len(blocks) <= i:
            measure = self._step(rate)[len(blocks)]
            power = self._power(measure, self.plan.inner, rate, len(blocks))
            blocks.append(coarsened(power, self.plan.factor, self.side))
        return blocks[i]

    def _power(self, measure: LatticeMeasure, count: int, rate: float, i: int) -> LatticeMeasure:
        losses, logs, _ = self.plan.sketch.parts[i]
        width, thetas = Sketch(((losses, logs, count),)).window(rate)
        return convolve([(measure, count)], _size(width, [(measure, count)]), thetas)


def _size(width: float, factors: list[tuple[LatticeMeasure, int]]) -> int:
    """A power of two that holds the window or, if that is no more, the whole support."""
    exact = min(max(_SMALL, 1.01 * width / factors[0][0].step + 8.0), support(factors))
    return min(2 * MAX_SIZE, 1 << math.ceil(math.log2(max(exact, 16.0))))
