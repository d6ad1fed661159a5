"""The best plan of a lattice: with which losses as jumps, and how they are followed."""

from __future__ import annotations

import math

import numpy as np

from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice.plan import (
    FEW_JUMPS,
    MANY_JUMPS,
    MAX_SIZE,
    STEP_ROUNDING,
    LatticeGoal,
    LatticePlan,
    LatticeSplit,
    Saddle,
    Sketch,
    are_close,
    end_points,
    last_loss,
    loss_with_tail,
    nats_missed,
    plan_with,
    sketch_of,
    split_at,
    staging,
)
from tightrope.numerics.lattice import fast_size

_FAINTEST = -700.0  # ln of a delta that is guessed where none is seen
_LEVELS = (-1.0, -3.0, -6.0, -9.0, -13.0, -18.0, -25.0)  # ln of the expected number of jumps
_DEPTHS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # the same, as a share of ln delta
_SHALLOW = (0.07, 0.09, 0.12)  # where many jumps may be followed
_VERY_SHALLOW = (0.02, 0.035, 0.05)  # and where any number may be
_LONGEST = 1e9  # points of a lattice for jumps that is not even thought of
_COMPOUND_STEPS = 200  # so many that a few more or less hardly matter


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
    plans = [plan_with(goal, whole, math.inf)]
    if len(components) == 1 and components[0][0].has_jumps:
        depths = (*_SHALLOW, *_DEPTHS) if many else _DEPTHS
        plans += [plan_with(goal, whole, cut) for cut in _cuts_at(goal, whole, depths)]
        if compound and goal.steps >= _COMPOUND_STEPS:
            cuts = _cuts_at(goal, whole, (*_VERY_SHALLOW, *_SHALLOW, *_DEPTHS))
            saddle = whole.without_jumps(last_loss(goal, whole)).saddle(epsilon)
            plans += [_compound_plan(goal, whole, cut, saddle) for cut in cuts]

    def badness(plan: LatticePlan) -> tuple[bool, float]:
        return any(are_close(plan.split.cut, cut) for cut in failed), plan.cost

    return min((plan for plan in plans if plan is not None), key=badness)


def _cuts_at(goal: LatticeGoal, whole: Sketch, depths: tuple[float, ...]) -> list[float]:
    """Losses where jumps may begin: so many are expected, or so deep in the tail."""
    levels = (*_LEVELS, *(depth * goal.log_delta for depth in depths))
    log_count = math.log(goal.steps)
    return [loss_with_tail(whole, x - log_count) for x in levels if x > goal.enough]


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
    nats = nats_missed(goal, saddle.log_chernoff)
    step, levels, work, wanted = staging(goal, split, nats)
    above = math.exp(min(saddle.log_chernoff - goal.log_delta, 60.0))
    rounding = (goal.steps + number + 1.0) * STEP_ROUNDING * above
    work += 4.0 * size
    cost = (wanted + 4.0 * size) * excess**4
    if rounding > goal.width:
        cost *= 1e6 * rounding / goal.width
    lattice = (jump_step, size)
    return LatticePlan(
        goal, split, cuts, last, (0, 0), tilt, lattice, step, levels, nats, rounding, cost, work
    )


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
