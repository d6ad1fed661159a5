"""Which losses count as jumps, how many are followed, and the tilts this asks for. Plans only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import gammaln

from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice_branch import far_point, is_cut, point_of
from tightrope.guarantee.loss.lattice_sketch import Saddle, Sketch, sketch_of
from tightrope.guarantee.loss.lattice_step import on_one_lattice, spacing

__all__ = [
    "MAX_SIZE",
    "FEW_JUMPS",
    "MANY_JUMPS",
    "LatticeGoal",
    "LatticeSplit",
    "split_at",
    "guesses",
    "end_points",
    "last_loss",
    "loss_with_tail",
]

MAX_SIZE = 3 << 16  # points of a window: about 12 MB of work space
FEW_JUMPS, MANY_JUMPS, COMPOUND_JUMPS = 6, 14, 100
_MAX_TILTS = 8
_FAINTEST = -700.0  # ln of a delta that is guessed where none is seen


@final
@dataclass(frozen=True)
class LatticeGoal:
    """What a plan is for: ln delta, about `log_delta`, to `width`; `finer` shrinks the lattice."""

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


def end_points(
    goal: LatticeGoal, whole: Sketch, split: LatticeSplit
) -> tuple[tuple[float, ...], float]:
    """Points s where the small losses of each component end, and where the last jumps do."""
    ends, pair = [], goal.components[0][0]
    if math.isfinite(split.cut):
        cut = point_of(pair, split.cut)
        return (cut,), max(cut, point_of(pair, split.last))
    for (pair, count), part in zip(goal.components, whole.parts, strict=True):
        far = far_point(pair)
        if is_cut(pair):
            loss = loss_with_tail(Sketch((part,)), goal.enough - math.log(count))
            far = point_of(pair, loss)
        ends.append(far)
    return tuple(ends), ends[0]


def loss_with_tail(sketch: Sketch, log_tail: float) -> float:
    """The loss with this ln of the tail mass under P, one step of the first component."""
    losses, tails = sketch.parts[0][0], sketch.log_tails(0.0)
    return float(losses[min(int(np.searchsorted(-tails, -log_tail)), len(losses) - 1)])


def guesses(components: Components, epsilon: float) -> tuple[float, ...]:
    """ln delta by the saddle point and, where there are jumps, by bulk plus a few of them.

    The likelier one first: a tilt that needs many jumps is a smooth one.
    """
    whole = sketch_of(components)
    if whole.highest() <= epsilon:
        return (_FAINTEST,)
    saddle = whole.saddle(epsilon)
    smooth = min(saddle.log_delta, 0.0)
    pair, count = components[0]
    if len(components) > 1 or not pair.has_jumps:
        return (smooth,)
    cut = loss_with_tail(whole, -3.0 - math.log(count))
    small = whole.without_jumps(cut)
    bulk = small.saddle(epsilon).log_delta if small.highest() > epsilon else -math.inf
    terms = [value for value, _ in whole.jump_terms(cut, epsilon, 4, saddle.rate, ())]
    rare = min(float(np.logaddexp.reduce([bulk, *terms])), 0.0)
    rare = max(rare, _FAINTEST) if math.isinf(rare) else rare
    if rare > smooth - 1.0:
        return (smooth,)
    return (smooth, rare) if whole.jumps_at(saddle.rate, cut) > 3.0 else (rare, smooth)


def last_loss(goal: LatticeGoal, whole: Sketch) -> float:
    """The loss beyond which a jump may be given away; inf where there are none."""
    pair, count = goal.components[0]
    if len(goal.components) > 1 or not is_cut(pair):
        return math.inf
    return loss_with_tail(whole, goal.enough - math.log(count))


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
        jumps = _jumps_needed(log_mass, goal.enough, min(count, most + 1))
        if jumps > most or (all_jumps and not 0 < 4 * jumps <= count):
            return None
    small = whole.without_jumps(min(cut, last)) if alone else whole
    if jumps > 0 and not small.parts[0][0][-1] > small.parts[0][0][0]:
        return None
    reachable = small.highest() > goal.epsilon * (1.0 + 1e-14)
    saddle = small.saddle(goal.epsilon, _steepest(goal)) if reachable else _idle(small)
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


def _steepest(goal: LatticeGoal) -> float:
    """The steepest tilt whose law a lattice can hold, next to the end of bounded losses.

    A lattice of one release resolves its span; where all losses lie on it, one atom is enough.
    """
    if len(goal.components) == 1 and on_one_lattice(goal.components[0][0]):
        return 30.0 / (spacing(goal.components[0][0]) or 1.0)
    spans = [
        4.0 * (pair.support[1] - pair.support[0]) if spacing(pair) else 1e-6 * pair.support[1]
        for pair, _ in goal.components
        if pair.support[1] < math.inf
    ]
    return MAX_SIZE / max([*spans, 1e-300])


def _idle(small: Sketch) -> Saddle:
    value, _, second = small.cumulant(0.0)
    return Saddle(0.0, value, -math.inf, math.sqrt(second) + 1e-300)


def _jumps_needed(log_mass: float, enough: float, most: int) -> int:
    """Smallest K with C(T, K+1) p^{K+1} below e^enough, or `most`; K = T leaves nothing out."""
    for k in range(most):
        if (k + 1) * log_mass - float(gammaln(k + 2.0)) <= enough:
            return k
    return most


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
