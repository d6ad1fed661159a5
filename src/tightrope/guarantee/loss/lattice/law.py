"""The composed loss on the lattice: valid bounds on ln delta at every epsilon.

docs/certificate_argument.md, 6. delta(eps) lies between the profiles of two discrete laws: losses
spread (connect-the-dots) and losses gathered (lowered chords), both of second order in the lattice
step. Rare large losses are summed beside the lattice (`jumps`), which keeps the regime
T * rate << 1 within reach.

Error: each bound contains the rounding of FFT and sums, the mass that wraps around, and, for the
upper one, the mass given away beyond the last loss and the last number of jumps. What is left
between the two bounds is discretisation, and shrinks with the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np

from tightrope.errors import ContradictoryMethods
from tightrope.guarantee.loss.abstract import (
    AbstractLossPair,
    JumpLaw,
    Jumps,
    Side,
    infinite_log_mass,
)
from tightrope.guarantee.loss.lattice.blocks import Blocks
from tightrope.guarantee.loss.lattice.plan import (
    COARSER,
    MAX_SIZE,
    LatticePlan,
    Sketch,
    SketchPart,
    log_choose,
)
from tightrope.guarantee.loss.lattice.rare_losses import compound_jumps, log_jump_sum
from tightrope.numerics.interval import Interval
from tightrope.numerics.lattice import LatticeMeasure, fitted
from tightrope.numerics.lattice_tail import TailLadder, tail_table
from tightrope.numerics.rounding import ULP


# ---- one side of the law
@final
@dataclass(frozen=True)
class OneSide:
    """Values and error bounds of one side (upper or lower) of the composed law."""

    plan: LatticePlan
    side: Side
    tables: tuple[TailLadder, ...]  # for 0, 1, ... jumps
    laws: tuple[JumpLaw, ...]  # for 1, 2, ... jumps
    log_infinite: float  # ln P(some loss is +inf), bounded from this side
    log_left_out: float  # ln of the mass of losses and numbers of jumps that are not followed
    log_moment: float  # ln E[e^{rate L}] of the small losses where they are only bounded, or -inf
    highest: float  # largest sum of small losses
    spare: float = 0.0  # see `_spare`
    log_more: float = -math.inf  # ln of the mass of numbers of jumps that are not followed
    _seen: dict[float, tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)

    def log_given(self, epsilon: float) -> float:
        """ln of what the upper bound adds for everything that is not followed."""
        if epsilon >= self.highest:
            return self.log_left_out
        chernoff = self.log_moment - self.plan.split.saddle.rate * epsilon
        return float(np.logaddexp(self.log_left_out, chernoff))

    def log_upper(self, epsilon: float) -> float:
        """ln of the upper bound on delta(epsilon)."""
        value, error = self.log_value(epsilon)
        return min(0.0, float(np.logaddexp.reduce([value, error, self.log_given(epsilon)])))

    def log_lower(self, epsilon: float) -> float:
        """ln of the lower bound on delta(epsilon)."""
        value, error = self.log_value(epsilon)
        if not error < value:
            return self.log_infinite
        return min(0.0, max(value + math.log1p(-math.exp(error - value)), self.log_infinite))

    def log_value(self, epsilon: float) -> tuple[float, float]:
        """ln of delta as computed on this side, and ln of the bound on its numerical error."""
        if epsilon in self._seen:
            return self._seen[epsilon]
        sign = 1.0 if self.side == "upper" else -1.0
        at = epsilon - sign * self.spare
        values, errors = [], []
        if self.plan.split.followed:
            value, error = self.tables[0].log_call(np.array([at]))
            values.append(float(value[0]))
            errors.append(float(error[0]))
        for k, law in enumerate(self.laws, start=1):
            ways = 0.0 if law.fft else log_choose(self.plan.goal.components[0][1], k)
            value_k, error_k = log_jump_sum(law, self.tables[k].log_call, at, self.side)
            values.append(value_k + ways)
            errors.append(error_k + ways)
        if self.side == "lower" and self.spare > 0.0:
            errors.append(self.log_more)
        values = [value + sign * self.spare for value in values]
        total = float(np.logaddexp.reduce([*values, self.log_infinite]))
        size = max(ladder.size for ladder in self.tables)
        rounding = math.log(ULP * (2.0 * size + 2000.0))
        errors += [self.log_infinite + math.log(1e-14), total + rounding]
        self._seen[epsilon] = total, float(np.logaddexp.reduce(errors)) + self.spare
        return self._seen[epsilon]


def one_side(plan: LatticePlan, side: Side) -> OneSide:
    small = _Small(plan, side)
    tables = small.tables()
    pair, count = plan.goal.components[0]
    log_moment, highest = -math.inf, -math.inf
    if not plan.split.followed:
        cut = list(zip(plan.goal.components, plan.cuts, strict=True))
        tops = [n * pair.largest_up_to(end) for (pair, n), end in cut]
        log_moment, highest = _log_moment(plan), math.fsum(tops) * (1.0 + 1e-14)
    given, log_more = [], -math.inf
    if plan.split.jumps:
        laws = _jump_laws(plan, side)
        given.append(pair.log_beyond(plan.last) + math.log(count))
        if plan.split.jumps < count:
            k = plan.split.jumps + 1
            log_more = log_choose(count, k) + k * pair.log_beyond(plan.cuts[0])
            given.append(log_more)
    else:
        laws = ()
        given += [
            p.log_beyond(end) + math.log(n)
            for (p, n), end in zip(plan.goal.components, plan.cuts, strict=True)
            if p.is_endless
        ]
    left_out = [(p.log_left_out, n) for p, n in plan.goal.components]
    given += [log + math.log(n) for log, n in left_out if log > -math.inf]
    log_given = float(np.logaddexp.reduce(given)) if given else -math.inf
    infinite = infinite_log_mass(plan.goal.components)
    log_infinite = infinite.upper if side == "upper" else infinite.lower
    return OneSide(
        plan,
        side,
        tables,
        laws,
        log_infinite,
        log_given,
        log_moment,
        highest,
        _spare(plan),
        log_more,
    )


def _log_moment(plan: LatticePlan) -> float:
    """ln of a bound on E[e^{rate L}] of the sum of small losses: under Q it is convex in e^L."""
    if plan.split.saddle.rate == 0.0:
        return 0.0
    logs = [
        n * _jumps_of(pair).log_moment(plan.split.saddle.rate, cut)
        for (pair, n), cut in zip(plan.goal.components, plan.cuts, strict=True)
    ]
    return math.fsum(logs) + 1e-12 * (1.0 + math.fsum(abs(log) for log in logs))


def _spare(plan: LatticePlan) -> float:
    """The change of epsilon and ln delta when up to `jumps` small losses are added or dropped.

    Small losses have masses 1 - p under P and 1 - q under Q, q <= p: by Jensen's inequality
    ((1 - p) R - (1 - q) k)_+ <= E[(R R' - k)_+] for one of them, R', so leaving it out changes
    delta at most by the factor 1 - p at an epsilon that is higher by ln((1 - q)/(1 - p)) <= 2 p.
    Sums of any number of jumps then share one composition of small losses.
    """
    if not plan.compound:
        return 0.0
    return 2.1 * plan.split.jumps * math.exp(plan.goal.components[0][0].log_beyond(plan.cuts[0]))


def _jumps_of(pair: AbstractLossPair) -> Jumps:
    assert pair.jumps is not None  # no plan has jumps for other pairs
    return pair.jumps


def _jump_laws(plan: LatticePlan, side: Side) -> tuple[JumpLaw, ...]:
    """The sum of 1, 2, ... jumps."""
    jumps = _jumps_of(plan.goal.components[0][0])
    (begin, *_), (first, cells) = plan.cuts, plan.cells
    if plan.compound:
        step, size = plan.jump_lattice
        count = plan.goal.components[0][1]
        args = (begin, plan.last, step, size, plan.jump_tilt, side)
        return (compound_jumps(jumps, count, *args),)
    laws = [jumps.one(begin, plan.last, first, side)]
    if plan.split.jumps > 1:
        laws += jumps.several((begin, plan.last), cells, plan.split.jumps, plan.jump_tilt, side)
    return tuple(laws)


# the measures that compose to all steps of a kind but so many
Factors = Callable[[int], list[tuple[LatticeMeasure, int]]]


class _Small:
    """Compositions of the small losses."""

    def __init__(self, plan: LatticePlan, side: Side) -> None:
        self.plan, self.side = plan, side
        self.parts, jumps = plan.split.small.parts, plan.split.jumps
        if plan.compound:  # all sums of jumps share one composition, from below the shortest
            losses, logs, count = self.parts[0]
            short = count - (plan.split.jumps if side == "lower" else 0)
            self.parts, jumps = ((losses, logs, short),), 0
        self.skipped = [jumps, *[0] * (len(self.parts) - 1)]
        self.steps: dict[float, list[Factors]] = {}

    def _blocks(self, rate: float) -> list[Factors]:
        """The measures of each component at one tilt; those of the last tilt are kept."""
        plan = self.plan
        if rate not in self.steps:
            self.steps.clear()
            self.steps[rate] = [
                self._of_one(pair, rate, cut, part, jumps)
                for (pair, _), cut, part, jumps in zip(
                    plan.goal.components, plan.cuts, self.parts, self.skipped, strict=True
                )
            ]
        return self.steps[rate]

    def _of_one(
        self, pair: AbstractLossPair, rate: float, cut: float, part: SketchPart, jumps: int
    ) -> Factors:
        plan, count = self.plan, part[2]
        if plan.levels:
            sketch, rest = Sketch((part,)), (plan.step, plan.levels, jumps, plan.nats)
            return Blocks(pair, self.side, rate, cut, sketch, *rest).factors
        measure = pair.measure(self.side, plan.step, rate, cut)
        return lambda skip: [(measure, count - skip)] if count > skip else []

    def tables(self) -> tuple[TailLadder, ...]:
        """Tables of the composition of all but 0, 1, ... steps, a ladder of tilts each."""
        split, compound = self.plan.split, self.plan.compound
        skips = [1] * min(split.jumps, 1) if compound else list(range(1, split.jumps + 1))
        ladders = [TailLadder() for _ in range(1 + len(skips))]
        if split.followed:
            ladders[0].add(tail_table(self._composed(split.saddle.rate, 0)))
        for rate in split.ladder:
            for k in skips:
                ladders[k].add(tail_table(self._composed(rate, 0 if compound else k)))
        return tuple(ladders)

    def _factors(self, rate: float, skip: int) -> list[tuple[LatticeMeasure, int]]:
        return [
            factor
            for i, blocks in enumerate(self._blocks(rate))
            for factor in blocks(skip if i == 0 else 0)
        ]

    def _composed(self, rate: float, skip: int) -> LatticeMeasure:
        factors = self._factors(rate, skip)
        if not factors:  # every step was a jump
            step = self.plan.step * COARSER**self.plan.levels
            return LatticeMeasure(0.0, step, np.array([1.0]), 0.0, rate)
        nats = self.plan.nats
        width, thetas = self.plan.split.small.window(rate, nats)
        return fitted(factors, width, thetas, math.exp(3.0 - nats), MAX_SIZE)


@final
@dataclass(frozen=True)
class LatticeLaw:
    """The composed law from above and below, planned for one epsilon, valid at every one."""

    plan: LatticePlan
    above: OneSide
    below: OneSide

    def log_delta(self, epsilon: float) -> Interval:
        lower, upper = self.below.log_lower(epsilon), self.above.log_upper(epsilon)
        if lower > upper:
            raise ContradictoryMethods(
                f"The lattice's bounds on ln delta({epsilon!r}) crossed: [{lower!r}, {upper!r}]. "
                "Neither is believed; please report this."
            )
        return Interval(lower, upper)

    def rounding(self, epsilon: float) -> float:
        """The numerical errors of both sides, relative to delta."""
        sides = (self.above.log_value(epsilon), self.below.log_value(epsilon))
        return sum(
            math.exp(min(error - value, 700.0)) for value, error in sides if error > -math.inf
        )


def build(plan: LatticePlan) -> LatticeLaw:
    """The law of a plan, from both sides."""
    return LatticeLaw(plan, one_side(plan, "upper"), one_side(plan, "lower"))
