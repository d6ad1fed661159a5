"""Cheapest way to absorb a sequence of pushes: a greatest convex minorant in O(T).

A distance obeys z_t = c_t z_{t-1} + s_t - a_t with z_t >= 0 for every t and z_T = 0. Absorbing
a_t at step t costs (a_t / sigma_t)^2; the least total cost is wanted.

Put C_t = c_1 ... c_t, tau_t = sum_{i<=t} (sigma_i / C_i)^2 and S_t = z_0 + sum_{i<=t} s_i / C_i.
The best A_t = sum_{i<=t} a_i / C_i is the greatest convex minorant of the points (tau_t, S_t),
t = 0..T, with point 0 = (0, 0): a taut string held from above. The cost is the sum over its
segments of (Delta S)^2 / (Delta tau).

C_t leaves the range of doubles after a few hundred contracting steps, so segments are kept in
numbers without unit: `rise` = Delta S / sqrt(Delta tau), the root of the segment's cost, and
`link` = the length sqrt(Delta tau) of the segment before over the length of this one.

Error: each merge rounds `rise` by a few ulp, so the relative error of a cost over T steps is at
most 8 T 2^-53 (`rounding`); links are kept above 1e-150 and rises above 1e-140
(unless they are 0), which only raises the cost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.numerics.rounding import UNIT

FloatArray = NDArray[np.float64]

_TINY_LINK, _LARGE_LINK = 1e-150, 1e150
_TINY_RISE = 1e-140  # its square is still a normal number
_PASSES = 48


def rounding(steps: int) -> float:
    """Relative error bound on a cost (and twice the one on its root) after `steps` steps."""
    return 8.0 * (steps + 4) * UNIT


def least_cost(
    pushes: Sequence[float] | FloatArray,
    factors: Sequence[float] | FloatArray,
    scales: Sequence[float] | FloatArray,
    start: float = 0.0,
) -> float:
    """The least sum of (a_t / sigma_t)^2; infinite where a push is followed by no noise."""
    return float(np.sum(_segments(pushes, factors, scales, start).rises ** 2))


@dataclass(frozen=True)
class _Segments:
    """A chain of segments: root costs, links to the segment before, last steps (counted from 1)."""

    rises: FloatArray
    links: FloatArray
    ends: NDArray[np.int64]


def _segments(
    pushes: Sequence[float] | FloatArray,
    factors: Sequence[float] | FloatArray,
    scales: Sequence[float] | FloatArray,
    start: float,
) -> _Segments:
    """The segments of the minorant. Passes over all of them at once, then a stack for the rest."""
    chain = _one_segment_a_step(
        np.array(pushes, float), np.array(factors, float), np.array(scales, float), start
    )
    for _ in range(_PASSES):
        falls = chain.rises[:-1] >= chain.links[1:] * chain.rises[1:]
        if not falls.any():
            return chain
        chain = _merge_pairs(chain, falls)
    return _merge_with_stack(chain)


def _one_segment_a_step(s: FloatArray, c: FloatArray, sigma: FloatArray, start: float) -> _Segments:
    """One segment for each noisy step; pushes of noiseless steps travel on to the next noisy."""
    steps = len(s)
    s[:1] += c[:1] * start
    lost = _fold_noiseless(s, c, sigma) if not sigma.all() else 0.0
    ends = np.flatnonzero(sigma > 0.0) + 1
    s, c, sigma = s[ends - 1], c[ends - 1], sigma[ends - 1]
    rises, links = s / sigma, np.zeros(len(s))
    links[1:] = np.clip(c[1:] * (sigma[:-1] / sigma[1:]), _TINY_LINK, _LARGE_LINK)
    links[c == 0.0] = 0.0
    if lost > 0.0:  # pushes after the last noise are never absorbed
        rises, links, ends = np.append(rises, np.inf), np.append(links, 1.0), np.append(ends, steps)
    return _Segments(rises, links, ends)


def _fold_noiseless(s: FloatArray, c: FloatArray, sigma: FloatArray) -> float:
    """Move pushes and factors past noiseless steps, in place; what is left after the last step."""
    push, factor = 0.0, 1.0
    for t in range(len(s)):
        push, factor = float(c[t]) * push + float(s[t]), float(c[t]) * factor
        if sigma[t] > 0.0:
            s[t], c[t] = push, factor
            push, factor = 0.0, 1.0
    return push


def _merge_pairs(chain: _Segments, falls: NDArray[np.bool_]) -> _Segments:
    """Merge disjoint pairs whose slope falls: the point between them is no vertex."""
    # within each run of falling boundaries take the first, third, fifth ...
    position = np.arange(len(falls))
    last_false = np.maximum.accumulate(np.where(falls, -1, position))
    right = np.flatnonzero(falls & ((position - last_false) % 2 == 1)) + 1
    left = right - 1
    link = chain.links[right]
    norm = np.sqrt(1.0 + link * link)
    rises, links = chain.rises.copy(), chain.links.copy()
    total = (rises[left] * link + rises[right]) / norm
    something = (rises[right] > 0.0) | ((rises[left] > 0.0) & (link > 0.0))
    rises[right] = np.where(something, np.maximum(total, _TINY_RISE), 0.0)
    after = right[right + 1 < len(links)] + 1
    links[after] = np.minimum(links[after] * norm[: len(after)], _LARGE_LINK)
    links[right] = _shrunk(links[left], link / norm)
    keep = np.ones(len(rises), bool)
    keep[left] = False
    return _Segments(rises[keep], links[keep], chain.ends[keep])


def _shrunk(links: FloatArray, ratios: FloatArray) -> FloatArray:
    """Product of links, kept above the smallest one; a true zero forgets the past and stays."""
    product: FloatArray = np.maximum(links * ratios, _TINY_LINK)
    product[(links == 0.0) | (ratios == 0.0)] = 0.0
    return product


def _merge_with_stack(chain: _Segments) -> _Segments:
    """Merge one by one, for chains in which few merges can be done at once."""
    rises: list[float] = []
    links: list[float] = []
    ends: list[int] = []
    stretch = 1.0  # how much longer the last segment became by merging
    steps = zip(chain.rises.tolist(), chain.links.tolist(), chain.ends.tolist(), strict=True)
    for rise, link, end in steps:
        link = min(link * stretch, _LARGE_LINK)
        stretch = 1.0
        while rises and rises[-1] >= link * rise:
            norm = math.sqrt(1.0 + link * link)
            something = rise > 0.0 or (rises[-1] > 0.0 and link > 0.0)
            rise = max((rises.pop() * link + rise) / norm, _TINY_RISE if something else 0.0)
            before = links.pop()
            link = max(before * (link / norm), _TINY_LINK) if before > 0.0 and link > 0.0 else 0.0
            stretch *= norm
            ends.pop()
        rises.append(rise)
        links.append(link)
        ends.append(end)
    return _Segments(np.array(rises), np.array(links), np.array(ends, np.int64))


def least_cost_shifts(
    pushes: FloatArray, factors: FloatArray, scales: FloatArray, start: float = 0.0
) -> FloatArray:
    """The shifts a_t that attain `least_cost`; every push must be followed by noise.

    Whatever rounding makes of them, they absorb every push: no step more than is there, and the
    last one all that is left.
    """
    ends = _segments(pushes, factors, scales, start).ends.tolist()
    shifts = np.zeros(len(pushes))
    first, carried = 0, float(start)
    for end in ends:
        # weights C_end / C_t of the steps of this segment, in units of its last step
        with np.errstate(all="ignore"):
            weight = np.append(np.cumprod(factors[first + 1 : end][::-1])[::-1], 1.0)
            total = float(pushes[first:end] @ weight) + carried * float(factors[first] * weight[0])
            length = float(np.sum((scales[first:end] * weight) ** 2))
            shifts[first:end] = total * scales[first:end] ** 2 * weight / length
        first, carried = end, 0.0
    return _absorbing(shifts, pushes, factors, float(start))


def _absorbing(wanted: FloatArray, s: FloatArray, c: FloatArray, start: float) -> FloatArray:
    """Shifts close to those wanted that keep every distance >= 0 and end at 0."""
    shifts, distance = np.zeros(len(s)), start
    for t in range(len(s)):
        distance = float(c[t]) * distance + float(s[t])
        least = min(float(wanted[t]), distance) if wanted[t] > 0.0 else 0.0  # and not for NaN
        shifts[t] = least if t + 1 < len(s) else distance
        distance -= least
    return shifts


def minorant(
    pushes: FloatArray, factors: FloatArray, scales: FloatArray, start: float = 0.0
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """The points (tau_t, S_t), t = 0..T, and the vertices of their minorant, for drawing.

    Both coordinates are in units of the last step (tau times C_T^2, S times C_T), so that
    contracting sequences stay within range; points long before the end fall on (0, 0).
    """
    weight = np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)  # C_T / C_t, t = 1..T
    tau = np.append(0.0, np.cumsum((scales * weight) ** 2))
    total = start * factors[0] * weight[0] + np.cumsum(pushes * weight)
    ends = _segments(pushes, factors, scales, start).ends
    return tau, np.append(0.0, total), np.append(0, ends)


# ---- The cheapest way to absorb pushes when the distance is known to be bounded all the time -----
# The problem of `hull`, with one more choice: forget everything before the last k steps and start
# there at distance `diameter`. Any k gives a valid cost; the best one is wanted.
#
# Error: sums of positive numbers, relative error at most 8 T 2^-53. Windows whose weight
# c_{t+1} ... c_T leaves [1e-140, 1e140] are not tried, nor starts before the last 2^18 pushes
# unless every step has one; each window alone gives a valid cost.
_LARGEST_WEIGHT = 1e140
_MOST_EVENTS = 2**18


@final
@dataclass(frozen=True)
class Window:
    """The least cost found, and how many of the last steps it uses."""

    cost: float
    length: int


def least_window_cost(
    pushes: Sequence[float] | FloatArray,
    factors: Sequence[float] | FloatArray,
    scales: Sequence[float] | FloatArray,
    diameter: float,
) -> Window:
    """Least cost over all starts "distance `diameter`, k steps before the end", k >= 1.

    From the end, with w_t = c_{t+1} ... c_T, point t is X_t = sum_{i>t} (sigma_i w_i)^2,
    Y_t = sum_{i>t} s_i w_i, and what is still to be absorbed is the least concave majorant of the
    points 0..k together with (X_k, Y_k + diameter w_k).
    """
    s, c, sigma = (np.asarray(v, dtype=np.float64)[::-1] for v in (pushes, factors, scales))
    with np.errstate(over="ignore", under="ignore"):
        weight = np.append(1.0, np.cumprod(c))  # before the first step from the end, after it, ...
    outside = np.flatnonzero((weight < 1.0 / _LARGEST_WEIGHT) | (weight > _LARGEST_WEIGHT))
    steps = min(len(s), int(outside[0])) if len(outside) else len(s)
    dx, dy = (sigma[:steps] * weight[:steps]) ** 2, s[:steps] * weight[:steps]
    x, y = np.cumsum(dx), np.cumsum(dy)
    goal = y + diameter * weight[1 : steps + 1]
    if np.all(s[:steps] > 0.0) and _convex(dx, dy):
        # every majorant is the chord from the origin; 1e-12 covers the tolerance of _convex
        best = int(np.argmin(costs := goal * (goal / x)))
        return Window(float(costs[best]) * (1.0 + 1e-12), best + 1)
    # one more step without a push that does not expand is never a worse start
    start = np.ones(steps, bool)
    start[:-1] = (s[1:steps] > 0.0) | (c[1:steps] > 1.0)
    return _search(x, y, goal, start, s[:steps] > 0.0)


def _convex(dx: FloatArray, dy: FloatArray) -> bool:
    """Do the slopes dy/dx never fall, up to rounding?"""
    if not dx.all():
        return False
    slopes = dy / dx
    return bool(np.all(np.diff(slopes) >= -1e-13 * slopes[1:]))


def _search(
    x: FloatArray,
    y: FloatArray,
    goal: FloatArray,
    start: NDArray[np.bool_],
    point: NDArray[np.bool_],
) -> Window:
    """The best start; only steps with a push can be vertices of the majorant."""
    hull, best = _Majorant(), Window(math.inf, 0)
    events = np.flatnonzero(start | point)[:_MOST_EVENTS]
    rows = (values[events].tolist() for values in (x, y, goal, start, point))
    for step, at, height, target, starts, pushed in zip(events.tolist(), *rows, strict=True):
        if starts and (cost := hull.cost_to(at, target)) < best.cost:
            best = Window(cost, step + 1)
        if pushed:
            hull.add(at, height)
            if hull.cost >= best.cost:  # every longer window costs at least its points alone
                break
    return best


class _Majorant:
    """Least concave majorant of points that arrive from left to right."""

    def __init__(self) -> None:
        self.xs, self.ys, self.costs = [0.0], [0.0], [0.0]
        self.slopes: list[float] = []  # of the segments, decreasing

    @property
    def cost(self) -> float:
        return self.costs[-1]

    def cost_to(self, x: float, y: float) -> float:
        """Cost of the majorant with (x, y) as its last point."""
        return self.costs[k := self._tangent(x, y)] + _cost(x - self.xs[k], y - self.ys[k])

    def add(self, x: float, y: float) -> None:
        keep = self._tangent(x, y)
        cost = self.costs[keep] + _cost(x - self.xs[keep], y - self.ys[keep])
        slope = _slope(x - self.xs[keep], y - self.ys[keep])
        for values, value in ((self.xs, x), (self.ys, y), (self.costs, cost)):
            values[keep + 1 :] = [value]
        self.slopes[keep:] = [slope]

    def _tangent(self, x: float, y: float) -> int:
        """The last vertex that the majorant keeps when (x, y) is added on the right."""
        top = len(self.xs) - 1
        for k in range(top, max(top - 8, 0), -1):  # usually within the last few
            if not self._hides(k - 1, x, y):
                return k
        return bisect_left(range(max(top - 8, 0)), True, key=lambda k: self._hides(k, x, y))

    def _hides(self, k: int, x: float, y: float) -> bool:
        """Does the line from vertex k to (x, y) pass above segment k?"""
        return self.slopes[k] <= _slope(x - self.xs[k], y - self.ys[k])


def _slope(dx: float, dy: float) -> float:
    return dy / dx if dx > 0.0 else (math.inf if dy > 0.0 else 0.0)


def _cost(dx: float, dy: float) -> float:
    return dy * dy / dx if dx > 0.0 else _slope(dx, dy)
