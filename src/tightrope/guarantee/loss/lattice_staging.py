"""The step of the lattice, and whether to convolve in two stages. Plans only."""

from __future__ import annotations

import math

from tightrope.guarantee.loss.lattice_sketch import Sketch
from tightrope.guarantee.loss.lattice_split import MAX_SIZE, Goal, Split
from tightrope.guarantee.loss.lattice_step import on_one_lattice, spacing

__all__ = ["staging"]


def staging(goal: Goal, split: Split) -> tuple[float, int, float, float]:
    """Step, factor, total size of the windows, and that size were it not capped.

    Composing factor^2 steps on the fine lattice and the rest on one `factor` times coarser doubles
    the error and divides the size of the window by `factor`.
    """
    step = _step_wanted(goal, split)
    rates = [(rate, split.jumps) for rate in split.ladder]
    if split.followed or not rates:
        rates.insert(0, (split.saddle.rate, 1))
    wides = [split.small.window(rate)[0] for rate, _ in rates]
    wide = sum(n * w for w, (_, n) in zip(wides, rates, strict=True))
    grids = [g for g in (spacing(pair) for pair, _ in goal.components) if g is not None]
    if grids:
        if len(goal.components) == 1 and on_one_lattice(goal.components[0][0]):
            return grids[0], 1, wide / grids[0], wide / grids[0]  # no loss is rounded at all
        # a bounded loss is laid out whole, however narrow the tilted window is
        spans = [float(losses[-1] - losses[0]) for losses, _, _ in split.small.parts]
        capped = min(max(wides) / MAX_SIZE, 2.0 / (split.saddle.rate + 1.0))
        step = max(step, capped, max(spans) / (4 * MAX_SIZE))
        return _dividing(grids, step), 1, wide / step, wide / step
    # a lattice of one release reaches down from its largest loss
    tops = [pair.support[1] for pair, _ in goal.components if pair.support[1] < math.inf]
    step = max([step, *(top / (2 * MAX_SIZE) for top in tops)])
    count = min(n for _, n in goal.components)
    resolved = split.small.bulk_width() * 0.3
    options = []
    for factor in (1, 2, 4, 8, 16, 32):
        fine, narrow = step, 0.0
        if factor > 1:
            fine = step / math.sqrt(2.0)
            # a spike that the fine lattice does not resolve cannot be coarsened from below
            if 4 * factor * factor > count or fine > resolved:
                break
            losses, logs, _ = split.small.parts[0]
            narrow = Sketch(((losses, logs, factor * factor),)).window(rates[0][0])[0]
        largest = max(max(wides) / factor, narrow) / fine
        # the cap on the size must not make a step so wide that the tilt changes e-fold on it
        fine *= max(1.0, min(largest / MAX_SIZE, 2.0 / (fine * (max(rates)[0] + 1.0))))
        penalty = (fine / step) ** 2 if largest > MAX_SIZE else 1.0
        runs = sum(n for _, n in rates) + len(rates)
        size = (wide / factor + narrow * runs) / fine
        options.append((size * penalty, factor, fine, size))
    wanted, factor, fine, size = min(options)
    return fine, factor, size, wanted


def _dividing(grids: list[float], step: float) -> float:
    """A step not above the one given that divides the first grid, and the others if it can."""
    least = max(1, math.ceil(grids[0] / step))

    def off(cells: int) -> float:
        ratios = [grid * cells / grids[0] for grid in grids[1:]]
        return round(sum(abs(ratio - round(ratio)) for ratio in ratios), 6)

    return grids[0] / min(range(least, 2 * least + 1 if least < 200 else least + 200), key=off)


def _step_wanted(goal: Goal, split: Split) -> float:
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
        curvature = max(curvature, split.hazard * (split.hazard + 1.0))
    losses = split.small.parts[0][0]
    return min(
        goal.finer * math.sqrt(2.5 * goal.width / (goal.steps * max(curvature, 1e-300))),
        0.3 / (max(main, *split.ladder, 0.0) + 1.0),
        0.1 * float(losses[-1] - losses[0]),
    )
