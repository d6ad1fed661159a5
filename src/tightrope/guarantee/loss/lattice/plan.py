"""Plans of a lattice: its step and reach, the tilts, and the losses that count as jumps.

Only cost and width depend on a plan: every plan gives valid bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

import numpy as np
from scipy.special import gammaln

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.validate import FloatArray

MAX_SIZE = 3 << 16  # points of a window: about 12 MB of work space
COARSER, LONGER = 4, 16  # from one level to the next: the step, and the steps in a block
MOST_INSERTED = 6  # rare losses followed in one block
_LOG_FACTORIALS = np.array([math.lgamma(k + 2.0) for k in range(1, MOST_INSERTED + 1)])
_GIVEN_AWAY = 1e-12  # more of them in one block, all blocks together, relative
SHORT = 4096  # a lattice of one step this short need not be shorter
_LONGEST = 1 << 16  # and one this long is too dear
FEW_JUMPS, MANY_JUMPS, COMPOUND_JUMPS = 6, 14, 100
_MAX_TILTS = 8
STEP_ROUNDING = 1e-14  # rounding of one step, relative to the tilted mass
_SAME = 0.1  # cuts this close, relative, are one
_MOST_ONE, _MOST_SEVERAL = 40000, 6000  # cells of the two grids of jumps


# ---- a rough picture of the composed loss: nothing of it enters a bound
Window = tuple[float, tuple[float, float]]
SketchPart = tuple[FloatArray, FloatArray, int]  # losses, ln masses, how many steps


@lru_cache(maxsize=64)
def _grid(pair: AbstractLossPair) -> tuple[FloatArray, FloatArray]:
    return pair.loss_grid()


@final
@dataclass(frozen=True)
class Saddle:
    rate: float  # the tilt c whose exponent n K(c) - c eps is best
    log_chernoff: float  # n K(c) - c eps
    log_delta: float  # the saddle-point estimate
    spread: float  # standard deviation of the tilted composed loss


@final
@dataclass(frozen=True)
class Sketch:
    """Losses and log masses of each component, with its count. What was asked once is kept."""

    parts: tuple[SketchPart, ...]
    _windows: dict[tuple[float, float], Window] = field(
        default_factory=dict, compare=False, repr=False
    )
    _tails: dict[float, FloatArray] = field(default_factory=dict, compare=False, repr=False)
    _points: list[tuple[float, float, float]] = field(
        default_factory=list, compare=False, repr=False
    )
    _saddles: dict[tuple[float, float], Saddle] = field(
        default_factory=dict, compare=False, repr=False
    )
    _cuts: dict[int, Sketch] = field(default_factory=dict, compare=False, repr=False)
    _moments: dict[float, tuple[float, float, float]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def without_jumps(self, cut: float) -> Sketch:
        """Only losses up to `cut` of the first (then only) component."""
        losses, logs, count = self.parts[0]
        keep = max(2, int(np.searchsorted(losses, cut, side="right")))
        if keep not in self._cuts:
            self._cuts[keep] = Sketch(((losses[:keep], logs[:keep], count),))
        return self._cuts[keep]

    def cumulant(self, rate: float) -> tuple[float, float, float]:
        """ln E[e^{rate L}] of the sum, and its first two derivatives."""
        if rate in self._moments:
            return self._moments[rate]
        value = first = second = 0.0
        for losses, logs, count in self.parts:
            e = logs + rate * losses
            top = float(e.max())
            p = np.exp(e - top)
            total = float(p.sum())
            mean = float(p @ losses) / total
            value += count * (top + math.log(total))
            first += count * mean
            second += count * float(p @ (losses - mean) ** 2) / total
        self._moments[rate] = value, first, second
        return value, first, second

    def bulk_width(self) -> float:
        """Smallest distance between the 16 % point and the median or the 84 % point of one step."""
        return min(min(mid - low, high - mid) for low, mid, high in self._quartiles())

    def bulk(self) -> tuple[float, float]:
        """Centre and spread of the sum, blind to rare large losses."""
        parts = list(zip(self._quartiles(), self.parts, strict=True))
        centre = sum(count * middle for (_, middle, _), (_, _, count) in parts)
        square = sum(count * (0.5 * (high - low)) ** 2 for (low, _, high), (_, _, count) in parts)
        return centre, math.sqrt(square) + 1e-300

    def _quartiles(self) -> list[tuple[float, float, float]]:
        if self._points:
            return self._points
        points = self._points
        for losses, logs, _ in self.parts:
            mass = np.cumsum(np.exp(logs))
            place = np.searchsorted(mass, np.array([0.16, 0.5, 0.84]) * mass[-1])
            low, middle, high = losses[np.minimum(place, len(losses) - 1)]
            points.append((float(low), float(middle), float(high)))
        return points

    def highest(self) -> float:
        return sum(count * float(losses[-1]) for losses, _, count in self.parts)

    def saddle(self, epsilon: float, steepest: float = math.inf) -> Saddle:
        """Minimiser of n K(c) - c eps - ln c - ln(1 + c), which is convex, by bisection in ln c."""
        if (epsilon, steepest) in self._saddles:
            return self._saddles[epsilon, steepest]
        low, high = -12.0, min(38.0, math.log(steepest))
        while high - low > 2e-3:
            c = math.exp(0.5 * (low + high))
            first = self.cumulant(c)[1]
            if first - epsilon - 1.0 / c - 1.0 / (1.0 + c) > 0.0:
                high = math.log(c)
            else:
                low = math.log(c)
        c = math.exp(low)  # right of the minimum a heavy tail rises at once
        value, _, second = self.cumulant(c)
        curvature = second + 1.0 / c**2 + 1.0 / (1.0 + c) ** 2
        log_chernoff = value - c * epsilon
        correction = math.log(c) + math.log1p(c) + 0.5 * math.log(2.0 * math.pi * curvature)
        spread = math.sqrt(second) + 1e-300
        found = Saddle(c, log_chernoff, log_chernoff - correction, spread)
        self._saddles[epsilon, steepest] = found
        return found

    def window(self, rate: float, nats: float) -> Window:
        """Width holding all but e^-nats of the tilted law, and two tilts that show it."""
        if (rate, nats) in self._windows:
            return self._windows[rate, nats]
        here, _, second = self.cumulant(rate)
        spread = math.sqrt(second) + 1e-300
        longest = max(float(losses[-1] - losses[0]) for losses, _, _ in self.parts)
        thetas = [x / spread for x in (0.3, 0.8, 2.0, 4.0, 7.0, 12.0)]
        if longest > 12.0 * spread:  # rare large losses ask for a milder tilt
            thetas += [x / longest for x in (8.0, 25.0, 60.0, 150.0)]
        if rate > 0.0:
            thetas += [x * rate for x in (0.25, 0.5, 0.9)]
        ends, chosen = [], []
        tilts = np.array(thetas)
        for sign in (1.0, -1.0):
            there = np.zeros(len(tilts))  # ln E[e^{rate L}] of the sum at these tilts
            for losses, logs, count in self.parts:
                e = logs + (rate + sign * tilts)[:, None] * losses
                top = e.max(axis=1)
                there += count * (top + np.log(np.exp(e - top[:, None]).sum(axis=1)))
            reach = (nats + there - here) / tilts
            best = int(reach.argmin())
            ends.append(float(reach[best]))
            chosen.append(float(tilts[best]))
        self._windows[rate, nats] = ends[0] + ends[1], (chosen[0], chosen[1])
        return self._windows[rate, nats]

    def jump_terms(
        self,
        cut: float,
        epsilon: float,
        most: int,
        tilt: float,
        rest: Sequence[tuple[float, float]],
    ) -> list[tuple[float, float]]:
        """ln delta from exactly 1, ..., `most` losses above `cut`, the others taken as 0.

        With each, ln of the sum of the jump masses times the best Chernoff bound of the rest,
        whose tilts and cumulants are `rest`: the scale of rounding errors.
        """
        losses, logs, count = self.parts[0]
        keep = losses > max(cut, 0.0)
        if not keep.any():
            return [(-math.inf, -math.inf)] * most
        x = losses[keep]
        width = min(float(x[-1]), max(4.0 * epsilon, 4.0 * float(x[0]))) / 400.0
        place = np.minimum(np.round(x / width), 400).astype(np.int64)
        m = logs[keep] + tilt * width * place
        top = float(m.max())
        one = np.bincount(place, np.exp(np.maximum(m - top, -700.0)), 401)
        terms, total = [], np.ones(1)
        for k in range(1, most + 1):
            total = np.convolve(total, one)[: 400 * min(k, 3) + 1]
            sums = width * np.arange(len(total), dtype=np.float64)
            with np.errstate(divide="ignore"):
                log_mass = np.log(total) + k * top - tilt * sums + log_choose(count, k)
                gain = np.log(-np.expm1(np.minimum(epsilon - sums, 0.0)))
            bound = np.zeros(len(sums))
            for rate, cumulant in rest:
                bound = np.minimum(bound, cumulant - rate * (epsilon - sums))
            parts = (log_mass + gain, log_mass + bound)
            value, rounding = (float(np.logaddexp.reduce(part)) for part in parts)
            terms.append((value, rounding))
        return terms

    def log_tails(self, rate: float) -> FloatArray:
        """ln of the tilted mass from each loss on, first component, one step."""
        if rate not in self._tails:
            losses, logs, _ = self.parts[0]
            self._tails[rate] = np.logaddexp.accumulate((logs + rate * losses)[::-1])[::-1]
        return self._tails[rate]

    def jumps_at(self, rate: float, cut: float) -> float:
        """Expected number of losses above `cut` under the tilt."""
        losses, logs, count = self.parts[0]
        e = logs + rate * losses
        p = np.exp(e - float(e.max()))
        return count * float(p[losses > cut].sum() / p.sum())

    def log_tail(self, loss: float) -> float:
        """ln of the mass under P above `loss`, first component, one step."""
        place = int(np.searchsorted(self.parts[0][0], loss))
        tails = self.log_tails(0.0)
        return float(tails[place]) if place < len(tails) else -math.inf


def log_choose(n: int, k: int) -> float:
    """ln of the binomial coefficient; -inf for k > n."""
    return math.log(math.comb(n, k)) if k <= n else -math.inf  # exact integers: nothing cancels


@lru_cache(maxsize=8)
def sketch_of(components: Components) -> Sketch:
    return Sketch(tuple((*_grid(pair), count) for pair, count in components))


# ---- plans
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


# ---- losses that are rare in a block of steps (`blocks`)
def most_levels(count: int) -> int:
    """The last level still has about 4 blocks."""
    return max(0, int(math.log(count / 3.5, LONGER))) if count > 4 * LONGER else 0


def rare_beyond(sketch: Sketch, rate: float, length: int, step: float) -> tuple[float, int]:
    """Losses that are rare in a block of this length begin here, and so many are to be followed.

    (inf, 0) where there is no need: the lattice of one step is short enough for all.
    """
    losses, _, count = sketch.parts[0]
    if losses[-1] - losses[0] < (SHORT + len(losses)) * step:
        return math.inf, 0
    tails = sketch.log_tails(rate)
    tails = tails - tails[0]
    # ln of the tilted chance of a larger one in a step, times the length of the block
    most_of = np.arange(1, MOST_INSERTED + 1)
    chance = math.log(_GIVEN_AWAY * length / count) + _LOG_FACTORIALS
    chance = chance / (most_of + 1.0) - math.log(length)
    place = np.minimum(np.searchsorted(-tails, -chance), len(losses) - 1)
    best = int((most_of * (SHORT + (losses[place] - losses[0]) / step)).argmin())
    most, loss = best + 1, float(losses[place[best]])
    longest = float(losses[0]) + _LONGEST * step
    if loss <= min(0.7 * float(losses[-1]), longest):
        return loss, most
    if losses[-1] <= longest:
        return math.inf, 0
    return longest, MOST_INSERTED + 1  # they are not rare: the error will be large


def too_many_rare(sketch: Sketch, rate: float, length: int, step: float) -> bool:
    """Are losses too large for the lattice of one step not rare either?"""
    return rare_beyond(sketch, rate, length + length // 2, step)[1] > MOST_INSERTED
