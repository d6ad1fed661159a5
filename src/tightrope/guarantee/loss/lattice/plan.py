"""Plans of a lattice: its step and reach, the tilts, and the losses that count as jumps.

Only cost and width depend on a plan: every plan gives valid bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import gammaln

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice.blocks import (
    COARSER,
    LONGER,
    MAX_SIZE,
    most_levels,
    too_many_rare,
)
from tightrope.guarantee.loss.lattice.sketch import Saddle, Sketch, sketch_of

FEW_JUMPS, MANY_JUMPS, COMPOUND_JUMPS = 6, 14, 100
_MAX_TILTS = 8
STEP_ROUNDING = 1e-14  # rounding of one step, relative to the tilted mass
_SAME = 0.1  # cuts this close, relative, are one
_MOST_ONE, _MOST_SEVERAL = 40000, 6000  # cells of the two grids of jumps


@final
@dataclass(frozen=True)
class LatticeGoal:
    """The goal of a plan: ln delta, about `log_delta`, to `width`; `finer` shrinks the lattice."""

    components: Components
    epsilon: float
    log_delta: float
    width: float
    finer: float = 1.0
    most_jumps: int = FEW_JUMPS

    @property
    def enough(self) -> float:
        """ln of a mass that may be given away."""
        return self.log_delta + math.log(self.width) - 4.0

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.components)


@final
@dataclass(frozen=True)
class LatticeSplit:
    small: Sketch  # the losses below the cut
    saddle: Saddle  # of the small losses
    cut: float  # loss where jumps begin
    last: float  # loss beyond which a jump counts as infinite
    jumps: int  # most jumps followed one by one
    reachable: bool  # can the small losses alone exceed epsilon?
    followed: bool  # is that likely enough to be followed, not only bounded?
    ladder: tuple[float, ...]  # tilts of the terms with jumps
    hazard: float  # decay rate of the jump masses near epsilon
    steepest: float  # and near the cut
    compound: Saddle | None = None  # of all losses, where any number of jumps is followed


@final
@dataclass(frozen=True)
class LatticePlan:
    goal: LatticeGoal
    split: LatticeSplit
    cuts: tuple[float, ...]  # points s where the small losses of each component end
    last: float  # point s beyond which a loss counts as infinite
    cells: tuple[int, int]  # of the grid for one jump and of the lattice for several
    jump_tilt: float  # keeps the masses of several jumps within range
    jump_lattice: tuple[float, int]  # step and size where any number of them is followed
    step: float
    levels: int  # of ever longer blocks on coarser lattices
    nats: float  # windows may miss e^-nats of a tilted law
    rounding: float  # expected rounding error, relative to delta
    cost: float  # how bad the plan is: its work, more where it misses the goal
    work: float  # in points of windows, about half a microsecond each

    def no_finer_than(self, other: LatticePlan) -> bool:
        """Would this plan repeat the work of the other?"""
        same = (self.cuts, self.last, self.cells, self.levels, self.jump_lattice)
        return same == (other.cuts, other.last, other.cells, other.levels, other.jump_lattice) and (
            self.step > 0.95 * other.step
        )

    def like(self, other: LatticePlan) -> bool:
        """Is what it would win over the other hardly worth its work?"""
        same = (self.split.jumps, self.levels, self.split.followed, self.compound)
        return (
            same == (other.split.jumps, other.levels, other.split.followed, other.compound)
            and are_close(self.split.cut, other.split.cut)
            and self.step > 0.95 * other.step
            and self.cells[0] <= 1.5 * other.cells[0]
            and self.jump_lattice[0] >= 0.7 * other.jump_lattice[0]
        )

    @property
    def compound(self) -> bool:
        """Are sums of any number of jumps made by one FFT?"""
        return self.split.compound is not None


def are_close(cut: float, other: float) -> bool:
    return cut == other or abs(cut - other) < _SAME * abs(other)


def plain_plan(
    components: Components, epsilon: float, log_delta: float, width: float
) -> LatticePlan:
    """The plan without jumps: quicker to make, and enough where no loss is rare and large."""
    plan = plan_with(
        LatticeGoal(components, epsilon, log_delta, width), sketch_of(components), math.inf
    )
    assert plan is not None  # only jumps can be too many
    return plan


def plan_with(goal: LatticeGoal, whole: Sketch, cut_loss: float) -> LatticePlan | None:
    split = split_at(goal, whole, cut_loss)
    if split is None:
        return None
    cuts, last = end_points(goal, whole, split)
    tilt, terms, scale = _jump_terms(goal, whole, split)
    cells = _cells(goal, split, (cuts[0], last), terms)
    coarse = split.jumps > 1 and cells[1] < 1.5 * split.steepest * (split.last - split.cut)
    if coarse and max(terms[1:]) > goal.log_delta + math.log(0.1 * goal.width):
        return None  # two jumps matter, and their lattice is too coarse for a bound from below
    chernoff = split.saddle.log_chernoff if split.followed else -math.inf
    nats = nats_missed(goal, max(scale, chernoff))
    step, levels, size, wanted = staging(goal, split, nats)
    rounding = goal.steps * STEP_ROUNDING * math.exp(min(scale - goal.log_delta, 60.0))
    if split.followed:
        above = min(split.saddle.log_delta - goal.log_delta, 60.0)
        rounding += 10.0 * goal.steps * STEP_ROUNDING * math.exp(above)
    sums = 2.0 * cells[0] + 0.003 * (split.jumps * cells[1]) ** 2
    cost = wanted + sums
    if rounding > goal.width:
        cost *= 1e6 * rounding / goal.width
    work = size + sums
    return LatticePlan(
        goal, split, cuts, last, cells, tilt, (0.0, 0), step, levels, nats, rounding, cost, work
    )


def nats_missed(goal: LatticeGoal, log_whole: float) -> float:
    """How much a window may miss of a tilted law whose mass is e^log_whole at epsilon."""
    above = max(0.0, log_whole - goal.log_delta)
    return min(12.0 - math.log(goal.width) + above, 42.0)


def split_at(
    goal: LatticeGoal, whole: Sketch, cut: float, all_jumps: Saddle | None = None
) -> LatticeSplit | None:
    """Losses above `cut` as jumps (none for cut = inf); None where too many would be needed.

    None also for a cut that leaves nothing below it but the least loss, to the last digit.

    With `all_jumps`, the saddle point of all losses, any number of them is summed by an FFT.
    """
    count, alone = goal.components[0][1], len(goal.components) == 1
    last, jumps = last_loss(goal, whole), 0
    if cut < last:
        log_mass = whole.log_tail(cut) + math.log(count)
        most = COMPOUND_JUMPS if all_jumps else goal.most_jumps
        # the smallest K with C(T, K+1) p^{K+1} below what may be given away; K = T leaves none out
        while jumps < min(count, most + 1) and goal.enough < (
            (jumps + 1) * log_mass - float(gammaln(jumps + 2.0))
        ):
            jumps += 1
        if jumps > most or (all_jumps and not 0 < 4 * jumps <= count):
            return None
    small = whole.without_jumps(min(cut, last)) if alone else whole
    if jumps > 0 and not small.parts[0][0][-1] > small.parts[0][0][0]:
        return None
    reachable = small.highest() > goal.epsilon * (1.0 + 1e-14)
    if reachable:
        saddle = small.saddle(goal.epsilon, _steepest(goal))
    else:
        value, _, second = small.cumulant(0.0)
        saddle = Saddle(0.0, value, -math.inf, math.sqrt(second) + 1e-300)
    followed = reachable and (saddle.log_chernoff > goal.enough or jumps == 0)
    tilts: tuple[float, ...] = ()
    hazard = steepest = 0.0
    if jumps > 0:
        hazard, steepest = _decay(whole, max(cut, goal.epsilon)), 1.5 * _decay(whole, cut)
        # what is left to the small losses is at most this, and no steeper tilt says more about it
        tilts = (0.0, all_jumps.rate) if all_jumps else _ladder(small, goal.epsilon - cut, steepest)
    return LatticeSplit(
        small,
        saddle,
        min(cut, last),
        last,
        jumps,
        reachable,
        followed,
        tilts,
        hazard,
        steepest,
        all_jumps,
    )


def end_points(
    goal: LatticeGoal, whole: Sketch, split: LatticeSplit
) -> tuple[tuple[float, ...], float]:
    """Points s where the small losses of each component end, and where the last jumps do."""
    ends, pair = [], goal.components[0][0]
    if math.isfinite(split.cut):
        cut = pair.point_of(split.cut)
        return (cut,), max(cut, pair.point_of(split.last))
    for (pair, count), part in zip(goal.components, whole.parts, strict=True):
        far = pair.far_point
        if pair.is_endless:
            loss = loss_with_tail(Sketch((part,)), goal.enough - math.log(count))
            far = pair.point_of(loss)
        ends.append(far)
    return tuple(ends), ends[0]


def loss_with_tail(sketch: Sketch, log_tail: float) -> float:
    """The loss with this ln of the tail mass under P, one step of the first component."""
    losses, tails = sketch.parts[0][0], sketch.log_tails(0.0)
    return float(losses[min(int(np.searchsorted(-tails, -log_tail)), len(losses) - 1)])


def last_loss(goal: LatticeGoal, whole: Sketch) -> float:
    """The loss beyond which a jump may be given away; inf where there are none."""
    pair, count = goal.components[0]
    if len(goal.components) > 1 or not pair.is_endless:
        return math.inf
    return loss_with_tail(whole, goal.enough - math.log(count))


def _steepest(goal: LatticeGoal) -> float:
    """The steepest tilt whose law a lattice can hold, next to the end of bounded losses.

    A lattice of one release resolves its span; where all losses lie on it, one atom is enough.
    """
    if len(goal.components) == 1 and goal.components[0][0].on_one_lattice:
        return 30.0 / (goal.components[0][0].spacing or 1.0)
    spans = [
        4.0 * (pair.support[1] - pair.support[0]) if pair.spacing else 1e-6 * pair.support[1]
        for pair, _ in goal.components
        if pair.support[1] < math.inf
    ]
    return MAX_SIZE / max([*spans, 1e-300])


def _decay(whole: Sketch, loss: float) -> float:
    """Decay rate of the masses of one step near a loss."""
    losses, logs, _ = whole.parts[0]
    place = min(max(int(np.searchsorted(losses, loss)), 1), len(losses) - 2)
    change = float(logs[place + 1] - logs[place])
    return max(0.0, -change / max(float(losses[place + 1] - losses[place]), 1e-300))


def _ladder(small: Sketch, left: float, steepest: float) -> tuple[float, ...]:
    """Tilts for the rest of the loss, up to `left`, after jumps."""
    top = min(steepest, 1.2 * small.saddle(max(left, 0.0)).rate)
    rates, rate = [0.0], 0.0
    while rate < top and len(rates) < _MAX_TILTS:
        spread = math.sqrt(small.cumulant(rate)[2]) + 1e-300
        rate = min(rate + 4.0 / spread, top)
        rates.append(rate)
    return tuple(rates)


def _jump_terms(
    goal: LatticeGoal, whole: Sketch, split: LatticeSplit
) -> tuple[float, list[float], float]:
    """Tilt for several jumps, ln delta from 1, 2, ... jumps, and the scale of their rounding."""
    if split.jumps == 0:
        return 0.0, [], -math.inf
    tilt = whole.saddle(goal.epsilon).rate
    rest = [(rate, split.small.cumulant(rate)[0]) for rate in split.ladder]
    both = whole.jump_terms(split.cut, goal.epsilon, split.jumps, tilt, rest)
    return tilt, [value for value, _ in both], max(scale for _, scale in both)


def _cells(
    goal: LatticeGoal, split: LatticeSplit, points: tuple[float, float], terms: list[float]
) -> tuple[int, int]:
    """Cells for one jump (on a grid of s) and for several (on a lattice of losses).

    ln density falls by about s per unit of s, by `hazard` per unit of loss; second-order errors.
    """
    if not terms:
        return 0, 0
    width, length = 2.0 * goal.width * goal.finer**2, split.last - split.cut
    at_epsilon = goal.components[0][0].point_of(max(goal.epsilon, 1e-300))
    steep = max(points[0], at_epsilon) + 2.0
    one = max(points[1] - points[0], 0.1) * steep / math.sqrt(width)
    several = max([-math.inf, *terms[1:]]) - goal.log_delta
    more = length * (split.hazard + 1.0) * math.sqrt(math.exp(min(several, 0.0)) / width)
    more = max(more, 1.6 * split.steepest * length, 400.0)
    return int(min(max(one, 200.0), _MOST_ONE)), int(min(more, _MOST_SEVERAL))


# ---- the step of the lattice, and how many levels of blocks
_LAID_OUT_TWICE = 0.6  # of the step: a public mixture, its parts first
_LONGEST_STEP = 98_304  # points of the lattice of one step
_FAR = 55.0  # nats: what is rarer under the tilt is an error
_LARGEST_LOG = 600.0  # of how much worse a plan may be called: numbers beyond say no more
_STEEPEST = 0.7  # nats of tilt on one step of the coarsest lattice


def staging(goal: LatticeGoal, split: LatticeSplit, nats: float) -> tuple[float, int, float, float]:
    """Step, levels, total size of the windows, and that size were it not capped.

    Every level of blocks adds the error of one lattice, and divides the last window by 4.
    """
    step = _step_wanted(goal, split)
    rates = [(rate, 1 if split.compound else split.jumps) for rate in split.ladder]
    if split.followed or not rates:
        rates.insert(0, (split.saddle.rate, 1))
    wides = [split.small.window(rate, nats)[0] for rate, _ in rates]
    wide = sum(n * w for w, (_, n) in zip(wides, rates, strict=True))
    grids = [g for g in (pair.spacing for pair, _ in goal.components) if g is not None]
    if grids:
        if len(goal.components) == 1 and goal.components[0][0].on_one_lattice:
            return grids[0], 0, wide / grids[0], wide / grids[0]  # no loss is rounded at all
        # a bounded loss is laid out whole, however narrow the tilted window is
        spans = [float(losses[-1] - losses[0]) for losses, _, _ in split.small.parts]
        capped = min(max(wides) / MAX_SIZE, 2.0 / (split.saddle.rate + 1.0))
        step = max(step, capped, max(spans) / (4 * MAX_SIZE))
        return _dividing(grids, step), 0, wide / step, wide / step
    if step <= 0.0:
        raise NotCertified("The losses are too close together for any lattice of doubles.")
    resolved = split.small.bulk_width() * 0.3
    ends = [(losses[0], losses[-1]) for losses, _, _ in split.small.parts]
    tops = [pair.has_jumps for pair, _ in goal.components]
    span = max([0.0, *(float(b - a) for (a, b), top in zip(ends, tops, strict=True) if top)])
    held = _held(goal, split)
    spread, count = split.small.bulk()[1], sum(n for _, _, n in split.small.parts)
    options = []
    for levels in range(1 + most_levels(min(n for _, n in goal.components))):
        fine = step
        if levels > 0:  # a spike that the fine lattice does not resolve cannot be coarsened below
            fine = min(step / math.sqrt(1.0 + 1.4 * levels), resolved)
            steep = fine * COARSER**levels * (max(rates)[0] + 1.0) > _STEEPEST
            if steep or fine <= 0.0:
                break
        asked = fine
        coarse = COARSER**levels * fine
        too_large = max(max(wides) / (coarse * MAX_SIZE), span / (coarse * _LONGEST_STEP))
        # the cap on the size must not make a step so wide that the tilt changes e-fold on it
        fine *= max(1.0, min(too_large, 2.0 / (fine * (max(rates)[0] + 1.0))))
        if levels > 0 and (fine > 1.01 * resolved or held > fine * _LONGEST_STEP):
            continue
        penalty = math.exp(min(4.0 * math.log(fine / asked), _LARGEST_LOG))
        # of each level 16 steps of the bulk, and the rare losses beside it
        level = 3.0 * max(4096.0, 100.0 * spread / (math.sqrt(count) * fine))
        size = wide / (COARSER**levels * fine) + len(rates) * levels * level
        options.append((size * penalty, levels, fine, size))
    feasible = (
        option
        for option in sorted(options)
        if option[1] == 0 or not _too_long(goal, split, option[2], option[1])
    )
    wanted, levels, fine, size = next(feasible)
    return fine, levels, size, wanted


def _held(goal: LatticeGoal, split: LatticeSplit) -> float:
    """The span of the finest lattice of one step where no losses are left to coarser ones."""
    longest = 0.0
    for (pair, _), (losses, logs, _) in zip(goal.components, split.small.parts, strict=True):
        if not pair.has_jumps:
            mass = np.logaddexp.accumulate(logs + split.saddle.rate * losses)
            first = int(np.searchsorted(mass, mass[-1] - _FAR))
            longest = max(longest, float(losses[-1] - losses[first]))
    return longest


def _too_long(goal: LatticeGoal, split: LatticeSplit, step: float, levels: int) -> bool:
    """Are there losses that no lattice of one step can hold, and that are not rare?"""
    if len(goal.components) > 1 or not goal.components[0][0].has_jumps:
        return False
    rates = (*split.ladder[-1:], *([split.saddle.rate] if split.followed else []))
    return any(
        too_many_rare(split.small, rate, LONGER ** (j + 1), step * COARSER**j)
        for rate in rates
        for j in range(levels)
    )


def _dividing(grids: list[float], step: float) -> float:
    """A step not above the one given that divides the first grid, and the others if it can.

    Grids below that step are none: their losses are split, or moved, on any lattice.
    """
    grids = [grid for grid in grids if grid >= step]
    if not grids:
        return step
    least = math.ceil(grids[0] / step)

    def off(cells: int) -> float:
        ratios = [grid * cells / grids[0] for grid in grids[1:]]
        return round(sum(abs(ratio - round(ratio)) for ratio in ratios), 6)

    return grids[0] / min(range(least, 2 * least + 1 if least < 200 else least + 200), key=off)


def _step_wanted(goal: LatticeGoal, split: LatticeSplit) -> float:
    """From the error law T c^2 h^2/8, with c the rate at which ln delta bends.

    It bends on the scale of the tilt or, for small tilts, of the bulk; heavy tails bend on the
    scale of the distance from the bulk.
    """
    saddle, main = split.saddle, split.saddle.rate
    centre, bulk = split.small.bulk()
    near = max(bulk, 0.3 * abs(goal.epsilon - centre), 1e-150)
    curvature = 1e-300
    if split.followed:
        share = math.exp(min(saddle.log_delta - goal.log_delta, 0.0))
        curvature = share * max(main * (main + 1.0), near**-2)
    if split.jumps:
        bends = split.compound.rate if split.compound else split.hazard
        curvature = max(curvature, bends * (bends + 1.0))
    losses = split.small.parts[0][0]
    twice = any(len(pair.parts) > 1 for pair, _ in goal.components)
    return min(
        goal.finer
        * (_LAID_OUT_TWICE if twice else 1.0)
        * math.sqrt(2.5 * goal.width / (goal.steps * max(curvature, 1e-300))),
        0.3 / (max(main, *split.ladder, 0.0) + 1.0),
        0.1 * float(losses[-1] - losses[0]),
    )
