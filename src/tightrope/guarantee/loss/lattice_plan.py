"""How fine a lattice, how far, at which tilt, and which losses count as jumps.

Only cost and width depend on a plan: every plan gives valid bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import gammaln

from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.gaussian import (
    FixedSizeGaussianPair,
    SampledGaussianPair,
    point_of_log_ratio,
)
from tightrope.guarantee.loss.lattice_sketch import Saddle, Sketch, sketch_of
from tightrope.guarantee.loss.lattice_step import spacing

__all__ = ["Plan", "best_plan", "guesses", "has_jumps", "MAX_SIZE"]

MAX_SIZE = 1 << 18  # points of a window: about 20 MB of work space
_NATS = 40.0  # mass outside the window below e^-40
_UNIT = 1e-14  # rounding of one step, relative to the tilted mass
_MAX_JUMPS = 6
_LEVELS = (-1.0, -3.0, -6.0, -9.0, -13.0, -18.0, -25.0)  # ln of the expected number of jumps
_DEPTHS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # the same, as a share of ln delta


@final
@dataclass(frozen=True)
class Plan:
    components: Components
    epsilon: float
    rate: float  # main tilt
    ladder: tuple[float, ...]  # tilts of the terms with jumps
    cut: float  # point s where the small losses end
    last: float  # point s beyond which a loss counts as infinite
    jumps: int  # most jumps followed one by one
    cells: tuple[int, ...]  # cells of the grid for 1 jump and of the lattice for more
    jump_tilt: float  # keeps the masses of several jumps within range
    step: float
    factor: int  # steps of the fine lattice in one of the coarse
    sketch: Sketch  # of the small losses
    cost: float
    reachable: bool  # can the small losses alone exceed epsilon?
    followed: bool  # is that likely enough to be followed, not only bounded?
    rounding: float  # expected rounding error, relative to delta

    @property
    def inner(self) -> int:
        """Steps composed on the fine lattice."""
        return self.factor**2


def has_jumps(pair: AbstractLossPair) -> bool:
    """Is L unbounded above because a rare draw hits the example?"""
    if isinstance(pair, SampledGaussianPair):
        return pair.direction == "remove" and pair.rate < 1.0
    return isinstance(pair, FixedSizeGaussianPair)


def guesses(components: Components, epsilon: float) -> tuple[float, ...]:
    """ln delta by the saddle point and, where there are jumps, by bulk plus a few of them.

    The likelier one first: a tilt that needs many jumps is a smooth one.
    """
    whole = sketch_of(components)
    if whole.highest() <= epsilon:
        return (-700.0,)
    saddle = whole.saddle(epsilon)
    smooth = min(saddle.log_delta, 0.0)
    pair, count = components[0]
    if len(components) > 1 or not has_jumps(pair):
        return (smooth,)
    cut = _quantile(whole, -3.0 - math.log(count))
    small = whole.without_jumps(cut)
    bulk = small.saddle(epsilon).log_delta if small.highest() > epsilon else -math.inf
    rare = min(float(np.logaddexp.reduce([bulk, *whole.jump_terms(cut, epsilon, 4)])), 0.0)
    if rare > smooth - 1.0:
        return (smooth,)
    return (smooth, rare) if whole.jumps_at(saddle.rate, cut) > 3.0 else (rare, smooth)


def best_plan(
    components: Components, epsilon: float, log_delta: float, width: float, finer: float = 1.0
) -> Plan:
    """The cheapest plan expected to give ln delta to `width`, if ln delta is about `log_delta`."""
    whole = sketch_of(components)
    plain = _plan(components, whole, epsilon, math.inf, log_delta, width, finer)
    assert plain is not None
    options = [plain]
    if len(components) == 1 and has_jumps(components[0][0]):
        count = components[0][1]
        for level in (*_LEVELS, *(depth * log_delta for depth in _DEPTHS)):
            if level > log_delta + math.log(width) - 4.0:
                cut = _quantile(whole, level - math.log(count))
                plan = _plan(components, whole, epsilon, cut, log_delta, width, finer)
                if plan is not None:
                    options.append(plan)
    return min(options, key=lambda plan: plan.cost)


def _quantile(sketch: Sketch, log_tail: float) -> float:
    """The loss with this ln of the tail mass under P, one step."""
    losses, logs, _ = sketch.parts[0]
    tails = np.logaddexp.accumulate(logs[::-1])[::-1]
    return float(losses[min(int(np.searchsorted(-tails, -log_tail)), len(losses) - 1)])


def _point(pair: AbstractLossPair, loss: float) -> float:
    rate, mu = getattr(pair, "rate", 1.0), getattr(pair, "mu", 1.0)
    return float(point_of_log_ratio(loss, rate, mu))


def _plan(
    components: Components,
    whole: Sketch,
    epsilon: float,
    cut_loss: float,
    log_delta: float,
    width: float,
    finer: float,
) -> Plan | None:
    pair, count = components[0]
    enough = log_delta + math.log(width) - 4.0  # ln of a mass that may be given away
    last_loss = _quantile(whole, enough - math.log(count)) if has_jumps(pair) else math.inf
    with_jumps = cut_loss < last_loss
    small = whole.without_jumps(min(cut_loss, last_loss)) if len(components) == 1 else whole
    reachable = small.highest() > epsilon + 1e-12
    saddle = small.saddle(epsilon) if reachable else _idle(small)
    log_mass = whole.log_tail(cut_loss) + math.log(count) if with_jumps else -math.inf
    jumps = _jumps_needed(log_mass, enough, count) if with_jumps else 0
    followed = reachable and saddle.log_chernoff > enough
    if jumps > _MAX_JUMPS:
        return None
    ladder, hazard, steepest = _ladder(whole, small, cut_loss, epsilon, jumps)
    main = saddle.rate if reachable else 0.0
    share = min(1.0, math.exp(min(saddle.log_delta - log_delta, 0.0))) if followed else 0.0
    # ln delta bends on the scale of the tilt or, for small tilts, of the spread; heavy tails bend
    # on the scale of the distance from the bulk
    centre, bulk = small.bulk()
    near = max(bulk, 0.3 * abs(epsilon - centre), 1e-150)
    bend = max(main * (main + 1.0), saddle.spread**-2, near**-2) if followed else 0.0
    curvature = max(share * bend, hazard * (hazard + 1.0) if jumps else 0.0, 1e-300)
    total = sum(n for _, n in components)
    step = finer * math.sqrt(2.5 * width / (total * curvature))
    step = min(step, 0.3 / (max(main, *ladder, 0.0) + 1.0))
    step = min(step, 0.1 * (float(small.parts[0][0][-1]) - float(small.parts[0][0][0])))
    rates = (((main, 1),) if followed else ()) + tuple((r, jumps) for r in ladder)
    step, factor, size = _staging(components, small, rates or ((main, 1),), step)
    ends = (cut_loss if with_jumps else last_loss), last_loss
    points = [_point(pair, end) if math.isfinite(end) else _far(components) for end in ends]
    terms = whole.jump_terms(cut_loss, epsilon, jumps) if jumps else []
    cells = _cells(
        points, ends, epsilon, pair, width * finer * finer, log_delta, terms, hazard, steepest
    )
    coarse = jumps > 1 and cells[1] < 1.5 * steepest * (ends[1] - ends[0])
    if coarse and max(terms[1:]) > log_delta + math.log(0.1 * width):
        return None  # two jumps matter, and their lattice is too coarse for a bound from below
    rounding = 10.0 * total * _UNIT * math.exp(min(saddle.log_delta - log_delta, 60.0)) * followed
    if jumps:
        worst = whole.log_jump_rounding(small, ladder, cut_loss, epsilon, jumps) - log_delta
        rounding += total * _UNIT * math.exp(min(worst, 60.0))
    cost = size + 2.0 * sum(cells[:1]) + 0.02 * jumps**2 * sum(c * c for c in cells[1:])
    if rounding > width:
        cost *= 1e6 * rounding / width
    return Plan(
        components,
        epsilon,
        main,
        ladder,
        points[0],
        points[1],
        jumps,
        cells,
        whole.saddle(epsilon).rate if jumps > 1 else 0.0,
        step,
        factor,
        small,
        cost,
        reachable,
        followed,
        rounding,
    )


def _far(components: Components) -> float:
    return 40.0 + 1.5 * max(getattr(pair, "mu", 0.0) for pair, _ in components)


def _idle(small: Sketch) -> Saddle:
    value, _, second = small.cumulant(0.0)
    return Saddle(0.0, value, -math.inf, math.sqrt(second) + 1e-300)


def _jumps_needed(log_mass: float, enough: float, count: int) -> int:
    """Smallest K with C(T, K+1) p^{K+1} below e^enough; K = T leaves nothing out."""
    for k in range(count):
        if (k + 1) * log_mass - float(gammaln(k + 2.0)) <= enough:
            return k
        if k > 4 * _MAX_JUMPS:
            return k
    return count


def _ladder(
    whole: Sketch, small: Sketch, cut: float, epsilon: float, jumps: int
) -> tuple[tuple[float, ...], float, float]:
    """Tilts for the rest of the loss after jumps, and the decay of jumps near epsilon and cut."""
    if jumps == 0:
        return (), 0.0, 0.0
    losses, logs, _ = whole.parts[0]
    density = np.diff(logs) / np.maximum(np.diff(losses), 1e-300)

    def decay(loss: float) -> float:
        place = min(max(int(np.searchsorted(losses, loss)), 1), len(density) - 1)
        return max(0.0, -float(density[place]))

    steepest = 1.5 * decay(cut)
    hazard = decay(max(cut, epsilon))
    rates, rate = [0.0], 0.0
    while rate < steepest and len(rates) < 8:
        spread = math.sqrt(small.cumulant(rate)[2]) + 1e-300
        rate = min(rate + 8.0 / spread, steepest)
        rates.append(rate)
    return tuple(rates), hazard, steepest


def _staging(
    components: Components, small: Sketch, rates: tuple[tuple[float, int], ...], step: float
) -> tuple[float, int, float]:
    """Step, factor and total size of the windows, of the cheapest two-stage convolution.

    `rates` are the tilts with the number of convolutions at each.
    """
    wides = [_width(small, rate) for rate, _ in rates]
    wide = sum(n * w for w, (_, n) in zip(wides, rates, strict=True))
    grids = [g for g in (spacing(pair) for pair, _ in components) if g is not None]
    if grids:
        step = max(step, max(wides) / MAX_SIZE)
        return grids[0] / max(1, math.ceil(grids[0] / step)), 1, wide / step
    count = min(n for _, n in components)
    best = (math.inf, 1, step)
    resolved = small.bulk_width() * 0.3
    runs = sum(n for _, n in rates)
    for factor in (1, 2, 4, 8, 16, 32):
        fine = step if factor == 1 else step / math.sqrt(2.0)
        # a spike that the fine lattice does not resolve cannot be coarsened from below
        if factor > 1 and (4 * factor * factor > count or fine > resolved):
            break
        narrow = 0.0
        if factor > 1:
            inner = Sketch(tuple((x, m, factor * factor) for x, m, n in small.parts[:1]))
            narrow = _width(inner, rates[0][0])
        largest = max(max(wides) / factor, narrow) / fine
        # the cap on the size must not make a step so wide that the tilt changes e-fold on it
        fine *= max(1.0, min(largest / MAX_SIZE, 2.0 / (fine * (max(rates)[0] + 1.0))))
        penalty = (fine / step) ** 2 if largest > MAX_SIZE else 1.0
        size = (wide / factor + narrow * (runs + len(rates))) / fine
        best = min(best, (size * penalty, factor, fine))
    return best[2], best[1], best[0]


def _width(sketch: Sketch, rate: float) -> float:
    return sketch.window(rate, math.sqrt(sketch.cumulant(rate)[2]) + 1e-300, _NATS)[0]


def _cells(
    points: list[float],
    ends: tuple[float, float],
    epsilon: float,
    pair: AbstractLossPair,
    width: float,
    log_delta: float,
    terms: list[float],
    hazard: float,
    steepest: float,
) -> tuple[int, ...]:
    """Cells for one jump (on a grid of s) and for several (on a lattice of losses).

    ln density falls by about s per unit of s, by `hazard` per unit of loss; second-order errors.
    """
    if not terms:
        return ()
    steep = max(_point(pair, max(epsilon, 1e-300)), points[0]) + 2.0
    one = max(points[1] - points[0], 0.1) * steep / math.sqrt(2.0 * width)
    several = max([-math.inf, *terms[1:]]) - log_delta
    share = min(1.0, math.exp(min(several, 0.0)))
    more = (ends[1] - ends[0]) * (hazard + 1.0) * math.sqrt(share / (2.0 * width))
    return int(min(max(one, 200.0), 40000.0)), int(
        min(max(more, 1.6 * steepest * (ends[1] - ends[0]), 400.0), 6000.0)
    )
