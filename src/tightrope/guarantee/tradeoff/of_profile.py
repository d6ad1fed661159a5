"""The trade-off function of a privacy profile: two concave maximisations, enclosed on both sides.

Statement: f(a) = sup over eps >= 0 of max{1 - delta - e^eps a, e^-eps (1 - delta - a)}. The first
    is concave in e^eps and the second in e^-eps, since a profile is convex in e^eps.
Conditions: delta(eps) is the profile of both orders of the neighbours (the worse one).
Validity: exact; every epsilon alone gives a valid lower end.
Source: Wasserman and Zhou 2010; Dong, Roth and Su 2019 (arXiv:1905.02383), Proposition 2.12.
Error: the chords next to the best point found bound the supremum from above; beyond the last
    epsilon looked at neither function can reach the value found. Rounding is taken outward.
Vectors: tests/unit/guarantee/test_tradeoff_of_profile.py (closed forms, a dense grid in mpmath).

The optimum is searched on cheap bounds of delta; sharp ones are asked for next to it only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import rest_up
from tightrope.validate import check_probability

__all__ = ["Profile", "tradeoff", "supporting_line"]

_LARGEST_EPSILON = 700.0  # e^700 is still a double
_GOAL, _ROUGH = 1e-6, 1e-3  # widths aimed at, relative to the attacker's hit rate
_ROUNDING = 1e-15
_FIRST, _MORE = (-1, 0, 1), (-16, -4, -1, 0, 1, 4, 16)  # points next to the optimum, in steps

# from epsilon and delta(epsilon)
Gain = Callable[[float, Interval], Interval]


class Profile(Protocol):
    """Bounds on delta(epsilon), of a width (absolute) of at most `room` where that is cheap."""

    def near(self, epsilon: float, room: float) -> Interval:
        """Cheap bounds, to search by."""

    def sharp(self, epsilon: float, room: float) -> Interval:
        """The best bounds."""


def tradeoff(profile: Profile, type_i: float) -> Interval:
    """f(type_i), both ends."""
    return supporting_line(profile, type_i)[0]


def supporting_line(profile: Profile, type_i: float) -> tuple[Interval, float]:
    """f(type_i), and the epsilon that proves its lower end; negative on the flat side."""
    a = check_probability(type_i, "type_i")
    if a == 1.0:
        return Interval.exact(0.0), 0.0
    if a == 0.0:
        least = profile.sharp(_LARGEST_EPSILON, 0.0)  # f(0) >= 1 - delta(eps) for every eps
        return Interval(max(1.0 - least.upper - _ROUNDING, 0.0), 1.0), _LARGEST_EPSILON
    at_zero = profile.near(0.0, 0.1 * _ROUGH * a)
    # a symmetric curve crosses the diagonal, with slope -1, at (1 - delta(0))/2
    parts = []
    if 2.0 * a <= 1.0 - at_zero.lower:
        parts.append(_steep(profile, a, at_zero))
    if 2.0 * a >= 1.0 - at_zero.upper:
        parts.append(_flat(profile, a, at_zero))
    found = Interval.worst([part for part, _ in parts]).clamp(0.0, rest_up(a))
    return found, max(parts, key=lambda part: part[0].lower)[1]


def _line(epsilon: float, delta: Interval, type_i: float) -> Interval:
    """The line that (|epsilon|, delta) puts below the curve, at type_i; flat for epsilon < 0."""
    if epsilon >= 0.0:
        return _minus(1.0 - math.exp(epsilon) * type_i, delta)
    return _scale(math.exp(epsilon), _minus(1.0 - type_i, delta))


def _steep(profile: Profile, a: float, at_zero: Interval) -> tuple[Interval, float]:
    """The supremum of 1 - delta - e^eps a, and where it is."""
    # 1 - e^eps a alone is below the value at eps = 0 from here on
    last = min(math.log1p(at_zero.upper / a) + 1e-12, _LARGEST_EPSILON)
    gain = _Supremum(lambda eps, delta: _line(eps, delta, a), profile, last, 1.0)
    found = gain.interval(scale=a)
    beyond = 1.0 - math.exp(last) * a if last == _LARGEST_EPSILON else 0.0
    return Interval(found.lower, max(found.upper, beyond)), gain.best()


def _flat(profile: Profile, a: float, at_zero: Interval) -> tuple[Interval, float]:
    """The supremum of e^-eps (1 - delta - a), and where it is."""
    known, last = 1.0 - a - at_zero.upper, _LARGEST_EPSILON
    if at_zero.lower > 0.9999 and profile.near(last, 0.1 * (1.0 - a)).upper >= 1.0 - a:
        return Interval(0.0, 0.5 * (1.0 - at_zero.lower)), -last  # no epsilon shows anything
    for eps in (*(2.0**k for k in range(-6, 10)), last):  # any point with delta < 1 - a
        value = math.exp(-eps) * (1.0 - a - profile.near(eps, 0.1 * (1.0 - a)).upper)
        known = max(known, value)
        if value > 0.0:
            break
    if known > 0.0:  # e^-eps (1 - a) alone is below what is known from here on
        last = min(math.log((1.0 - a) / known) + 1e-12, last)
    gain = _Supremum(lambda eps, delta: _line(-eps, delta, a), profile, last, -1.0)
    found = gain.interval(scale=max(known, 1e-300))
    beyond = (1.0 - a) * math.exp(-last) if last == _LARGEST_EPSILON else 0.0
    return Interval(found.lower, max(found.upper, beyond)), -gain.best()


def _minus(value: float, part: Interval) -> Interval:
    return Interval(value - part.upper - _ROUNDING, value - part.lower + _ROUNDING)


def _scale(factor: float, part: Interval) -> Interval:
    low, high = factor * part.lower, factor * part.upper
    return Interval(low - _ROUNDING * abs(low), high + _ROUNDING * abs(high))


class _Supremum:
    """The supremum over [0, last] of a gain that is concave in e^(sign eps)."""

    def __init__(
        self,
        gain: Callable[[float, Interval], Interval],
        profile: Profile,
        last: float,
        sign: float,
    ) -> None:
        self.gain, self.profile, self.last, self.sign = gain, profile, last, sign
        self.points: dict[float, Interval] = {}
        self.sharp: set[float] = set()
        self.scale = 1.0

    def interval(self, scale: float) -> Interval:
        """A search by cheap bounds, then sharp ones next to the optimum, until they are close.

        Widths are relative to `scale`, a first guess of 1 - gain (or of the gain, if sign < 0).
        """
        self.scale = scale
        centre, step = self._search()
        found = Interval(-math.inf, math.inf)
        for steps in (_FIRST, _FIRST, _MORE, _MORE):
            for k in steps:
                self._look(centre + k * step, sharp=True)
            before, found = found.width, found.intersect(self._bounds())
            if found.width <= _GOAL * self.scale or found.width > 0.7 * before:
                break
            centre, step = self._vertex(), 0.25 * step
        return found

    def _vertex(self) -> float:
        """Of the parabola through the best sharp point and its neighbours."""
        at = sorted(self.sharp)
        best = max(range(len(at)), key=lambda i: self.points[at[i]].lower)
        i = min(max(best, 1), len(at) - 2)
        if len(at) < 3:
            return at[best]
        (x0, x1, x2), (y0, y1, y2) = (
            at[i - 1 : i + 2],
            [self.points[e].lower for e in at[i - 1 : i + 2]],
        )
        left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
        if left <= right:
            return at[best]
        vertex = 0.5 * (x0 + x1) + 0.5 * (x2 - x0) * left / (left - right)
        return min(max(vertex, x0 - 4.0 * (x2 - x0)), x2 + 4.0 * (x2 - x0))

    def _look(self, eps: float, sharp: bool = False) -> float:
        """The lower end of the gain at a point."""
        at = min(max(eps, 0.0), self.last)
        if at not in self.points or sharp:
            weight = 1.0 if self.sign > 0.0 else math.exp(-at)
            room = (0.2 * _GOAL if sharp else _ROUGH) * self.scale / weight
            delta = (self.profile.sharp if sharp else self.profile.near)(at, room)
            value = self.gain(at, delta)
            known = self.points.get(at, value)
            self.points[at] = value if value.width <= known.width else known
            if sharp:
                self.sharp.add(at)
        return self.points[at].lower

    def best(self) -> float:
        """The point with the largest proved gain."""
        return max(self.points, key=lambda eps: self.points[eps].lower)

    def _search(self) -> tuple[float, float]:
        """Where the optimum is, and a step that costs some millionths of the scale."""
        self._minimise(0.0, self.last, 3e-3)
        at = sorted(self.points)
        i = at.index(self.best())
        low, high = at[max(i - 2, 0)], at[min(i + 2, len(at) - 1)]
        best = self.points[at[i]].lower
        self.scale = max(1.0 - best, 1e-9) if self.sign > 0.0 else max(best, 1e-300)
        self.points.clear()  # the scale was a guess before
        self._minimise(low, high, 1e-3)
        self._look(0.0)
        self._look(self.last)
        centre = self.best()
        floor = self.points[centre].lower - _ROUGH * self.scale
        away = [abs(e - centre) for e, value in self.points.items() if value.lower <= floor]
        return centre, min(away, default=self.last) / 32.0

    def _minimise(self, low: float, high: float, tolerance: float) -> None:
        from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

        minimize_scalar(
            lambda eps: -self._look(float(eps)),
            bounds=(low, high),
            method="bounded",
            options={"xatol": tolerance * (high - low)},
        )
        self._look(low)  # what was built for the middle often answers for the ends
        self._look(high)

    def _bounds(self) -> Interval:
        """Cheap points count only beyond the sharp ones, and where they lie clearly below them."""
        lower = max(value.lower for value in self.points.values())
        for end in (0.0, self.last):
            if self.points[end].upper >= lower:
                self._look(end, sharp=True)
        low, high = min(self.sharp), max(self.sharp)
        kept = {
            e
            for e, value in self.points.items()
            if (e < low and value.upper < self.points[low].lower)
            or (e > high and value.upper < self.points[high].lower)
        }
        eps = sorted(kept | self.sharp | {0.0, self.last}, reverse=self.sign < 0.0)
        ends = [self.points[e] for e in eps]
        cells = range(len(eps) - 1)
        upper = max((self._cell(eps, ends, i) for i in cells), default=ends[0].upper)
        return Interval(lower, max(lower, upper))

    def _cell(self, eps: list[float], ends: list[Interval], i: int) -> float:
        """Upper bound on cell i: below the chords of both neighbouring cells, extended."""
        bounds = []
        if i > 0:
            ratio = self._ratio(eps[i - 1], eps[i], eps[i + 1])
            bounds.append(_extended(ends[i - 1], ends[i], ratio))
        if i + 2 < len(eps):
            ratio = self._ratio(eps[i + 2], eps[i + 1], eps[i])
            bounds.append(_extended(ends[i + 2], ends[i + 1], ratio))
        return min(bounds) if bounds else math.inf

    def _ratio(self, far: float, at: float, to: float) -> float:
        """(x_to - x_at)/(x_at - x_far) with x = e^(sign eps)."""
        return math.expm1(self.sign * (to - at)) / -math.expm1(self.sign * (far - at))


def _extended(far: Interval, at: Interval, ratio: float) -> float:
    """The largest value on the chord from `far` through `at`, extended by the ratio given."""
    return at.upper + max(at.upper - far.lower, 0.0) * ratio * (1.0 + 1e-9)
