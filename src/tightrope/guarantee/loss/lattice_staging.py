"""The step of the lattice, and how many levels of blocks. Plans only."""

from __future__ import annotations

import math

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.lattice_blocks import COARSER, LONGER, most_levels, too_many_rare
from tightrope.guarantee.loss.lattice_split import MAX_SIZE, LatticeGoal, LatticeSplit
from tightrope.guarantee.loss.lattice_step import on_one_lattice, spacing
from tightrope.guarantee.loss.public_mixture import PublicMixturePair

__all__ = ["staging"]

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
    grids = [g for g in (spacing(pair) for pair, _ in goal.components) if g is not None]
    if grids:
        if len(goal.components) == 1 and on_one_lattice(goal.components[0][0]):
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
        size = wide / (COARSER**levels * fine) + len(rates) * levels * _level_size(split, fine)
        options.append((size * penalty, levels, fine, size))
    feasible = (
        option
        for option in sorted(options)
        if option[1] == 0 or not _too_long(goal, split, option[2], option[1])
    )
    wanted, levels, fine, size = next(feasible)
    return fine, levels, size, wanted


def _held(goal: LatticeGoal, split: LatticeSplit) -> float:
    """What the finest lattice of one step must hold where no losses are left to coarser ones."""
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


def _level_size(split: LatticeSplit, step: float) -> float:
    """Points of the windows of one level: 16 steps of the bulk and the rare losses beside it."""
    _, spread = split.small.bulk()
    count = sum(n for _, _, n in split.small.parts)
    return 3.0 * max(4096.0, 100.0 * spread / (math.sqrt(count) * step))


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
    twice = any(isinstance(pair, PublicMixturePair) for pair, _ in goal.components)
    return min(
        goal.finer
        * (_LAID_OUT_TWICE if twice else 1.0)
        * math.sqrt(2.5 * goal.width / (goal.steps * max(curvature, 1e-300))),
        0.3 / (max(main, *split.ladder, 0.0) + 1.0),
        0.1 * float(losses[-1] - losses[0]),
    )
