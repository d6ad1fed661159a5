"""How fine a lattice, how far, at which tilt, and which losses count as jumps.

Only cost and width depend on a plan: every plan gives valid bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice_branch import point_of
from tightrope.guarantee.loss.lattice_sketch import Saddle, Sketch, sketch_of
from tightrope.guarantee.loss.lattice_split import (
    FEW_JUMPS,
    MANY_JUMPS,
    MAX_SIZE,
    LatticeGoal,
    LatticeSplit,
    end_points,
    guesses,
    last_loss,
    loss_with_tail,
    split_at,
)
from tightrope.guarantee.loss.lattice_staging import staging
from tightrope.numerics.lattice import fast_size

__all__ = ["LatticePlan", "best_plan", "plain_plan", "guesses", "MAX_SIZE"]

_UNIT = 1e-14  # rounding of one step, relative to the tilted mass
_LEVELS = (-1.0, -3.0, -6.0, -9.0, -13.0, -18.0, -25.0)  # ln of the expected number of jumps
_DEPTHS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # the same, as a share of ln delta
_SHALLOW = (0.07, 0.09, 0.12)  # where many jumps may be followed
_VERY_SHALLOW = (0.02, 0.035, 0.05)  # and where any number may be
_LONGEST = 1e9  # points of a lattice for jumps that is not even thought of
_SAME = 0.1  # cuts this close, relative, are one
_COMPOUND_STEPS = 200  # so many that a few more or less hardly matter
_MOST_ONE, _MOST_SEVERAL = 40000, 6000  # cells of the two grids of jumps


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
        same = (self.jumps, self.levels, self.followed, self.compound)
        return (
            same == (other.jumps, other.levels, other.followed, other.compound)
            and _close(self.split.cut, other.split.cut)
            and self.step > 0.95 * other.step
            and self.cells[0] <= 1.5 * other.cells[0]
            and self.jump_lattice[0] >= 0.7 * other.jump_lattice[0]
        )

    @property
    def components(self) -> Components:
        return self.goal.components

    @property
    def epsilon(self) -> float:
        return self.goal.epsilon

    @property
    def rate(self) -> float:
        """The main tilt."""
        return self.split.saddle.rate

    @property
    def ladder(self) -> tuple[float, ...]:
        return self.split.ladder

    @property
    def jumps(self) -> int:
        return self.split.jumps

    @property
    def followed(self) -> bool:
        return self.split.followed

    @property
    def compound(self) -> bool:
        """Are sums of any number of jumps made by one FFT?"""
        return self.split.compound is not None

    @property
    def sketch(self) -> Sketch:
        return self.split.small


def best_plan(
    components: Components,
    epsilon: float,
    log_delta: float,
    width: float,
    finer: float = 1.0,
    failed: tuple[float, ...] = (),
    many: bool = False,
    compound: bool = True,
) -> LatticePlan:
    """The cheapest plan expected to give ln delta to `width`, if ln delta is about `log_delta`.

    Cuts near the `failed` ones, whose rounding came out too large, are the last resort.
    `many` jumps are dear to follow, and the way out where a spike and its tail need one lattice;
    `compound` allows plans that sum any number of them.
    """
    goal = LatticeGoal(
        components, epsilon, log_delta, width, finer, MANY_JUMPS if many else FEW_JUMPS
    )
    whole = sketch_of(components)
    plans = [_plan(goal, whole, math.inf)]
    if len(components) == 1 and components[0][0].has_jumps:
        depths = (*_SHALLOW, *_DEPTHS) if many else _DEPTHS
        plans += [_plan(goal, whole, cut) for cut in _cuts_at(goal, whole, depths)]
        if compound and goal.steps >= _COMPOUND_STEPS:
            cuts = _cuts_at(goal, whole, (*_VERY_SHALLOW, *_SHALLOW, *_DEPTHS))
            saddle = whole.without_jumps(last_loss(goal, whole)).saddle(epsilon)
            plans += [_compound_plan(goal, whole, cut, saddle) for cut in cuts]

    def badness(plan: LatticePlan) -> tuple[bool, float]:
        return any(_close(plan.split.cut, cut) for cut in failed), plan.cost

    return min((plan for plan in plans if plan is not None), key=badness)


def _cuts_at(goal: LatticeGoal, whole: Sketch, depths: tuple[float, ...]) -> list[float]:
    """Losses where jumps may begin: so many are expected, or so deep in the tail."""
    levels = (*_LEVELS, *(depth * goal.log_delta for depth in depths))
    log_count = math.log(goal.steps)
    return [loss_with_tail(whole, x - log_count) for x in levels if x > goal.enough]


def _close(cut: float, other: float) -> bool:
    return cut == other or abs(cut - other) < _SAME * abs(other)


def plain_plan(
    components: Components, epsilon: float, log_delta: float, width: float
) -> LatticePlan:
    """The plan without jumps: quicker to make, and enough where no loss is rare and large."""
    plan = _plan(
        LatticeGoal(components, epsilon, log_delta, width), sketch_of(components), math.inf
    )
    assert plan is not None  # only jumps can be too many
    return plan


def _plan(goal: LatticeGoal, whole: Sketch, cut_loss: float) -> LatticePlan | None:
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
    nats = _nats(goal, max(scale, chernoff))
    step, levels, size, wanted = staging(goal, split, nats)
    rounding = goal.steps * _UNIT * math.exp(min(scale - goal.log_delta, 60.0))
    if split.followed:
        above = min(split.saddle.log_delta - goal.log_delta, 60.0)
        rounding += 10.0 * goal.steps * _UNIT * math.exp(above)
    sums = 2.0 * cells[0] + 0.003 * (split.jumps * cells[1]) ** 2
    cost = wanted + sums
    if rounding > goal.width:
        cost *= 1e6 * rounding / goal.width
    work = size + sums
    return LatticePlan(
        goal, split, cuts, last, cells, tilt, (0.0, 0), step, levels, nats, rounding, cost, work
    )


def _compound_plan(
    goal: LatticeGoal, whole: Sketch, cut_loss: float, saddle: Saddle
) -> LatticePlan | None:
    """The plan that follows any number of jumps above the cut, by an FFT of their own."""
    split = split_at(goal, whole, cut_loss, saddle)
    if split is None:
        return None
    cuts, last = end_points(goal, whole, split)
    tilt = saddle.rate
    # sums of jumps share one composition: what a few small losses more or less do to delta
    one = abs(split.small.cumulant(tilt)[0]) / goal.steps
    spare = split.jumps * (one + 4.0 * math.exp(whole.log_tail(split.cut)) * (1.0 + tilt))
    jump_step, reach, number = _jump_lattice(goal, whole, split, tilt)
    if not reach < _LONGEST * jump_step:
        return None
    size = fast_size(max(1024.0, reach / jump_step))
    excess = 1.0
    if size > MAX_SIZE:
        excess, size = size / MAX_SIZE, MAX_SIZE
        jump_step = reach / size
    if spare > 0.2 * goal.width or 2.0 * jump_step > split.cut:
        return None
    nats = _nats(goal, saddle.log_chernoff)
    step, levels, work, wanted = staging(goal, split, nats)
    above = math.exp(min(saddle.log_chernoff - goal.log_delta, 60.0))
    rounding = (goal.steps + number + 1.0) * _UNIT * above
    work += 4.0 * size
    cost = (wanted + 4.0 * size) * excess**4
    if rounding > goal.width:
        cost *= 1e6 * rounding / goal.width
    lattice = (jump_step, size)
    return LatticePlan(
        goal, split, cuts, last, (0, 0), tilt, lattice, step, levels, nats, rounding, cost, work
    )


def _nats(goal: LatticeGoal, log_whole: float) -> float:
    """How much a window may miss of a tilted law whose mass is e^log_whole at epsilon."""
    above = max(0.0, log_whole - goal.log_delta)
    return min(12.0 - math.log(goal.width) + above, 42.0)


def _jump_lattice(
    goal: LatticeGoal, whole: Sketch, split: LatticeSplit, tilt: float
) -> tuple[float, float, float]:
    """Step and reach of the lattice for sums of jumps, and their number under the tilt."""
    losses, logs, count = whole.parts[0]
    keep = (losses > split.cut) & (losses <= split.last)
    x, mass = losses[keep], count * np.exp(np.minimum(logs[keep] + tilt * losses[keep], 600.0))
    number = float(mass.sum())
    options = []
    for theta in (0.5 / split.last, 1.0 / split.last, 2.0 / split.last, 5.0 / split.last):
        options.append((45.0 + float(mass @ np.expm1(theta * x))) / theta)
    width = 0.5 * goal.width * goal.finer**2
    step = math.sqrt(8.0 * width / ((number + 1.0) * tilt * (tilt + 1.0)))
    step = min(step, 0.5 / max(split.steepest, 1e-300), 0.3 / (tilt + 1.0), 0.01 * split.last)
    return step, max(min(options), 1.1 * split.last), number


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
    at_epsilon = point_of(goal.components[0][0], max(goal.epsilon, 1e-300))
    steep = max(points[0], at_epsilon) + 2.0
    one = max(points[1] - points[0], 0.1) * steep / math.sqrt(width)
    several = max([-math.inf, *terms[1:]]) - goal.log_delta
    more = length * (split.hazard + 1.0) * math.sqrt(math.exp(min(several, 0.0)) / width)
    more = max(more, 1.6 * split.steepest * length, 400.0)
    return int(min(max(one, 200.0), _MOST_ONE)), int(min(more, _MOST_SEVERAL))
