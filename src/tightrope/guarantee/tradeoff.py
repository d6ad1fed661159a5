"""Trade-off functions and Gaussian parameters of a privacy profile, enclosed on both sides.

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

import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

import numpy as np
from scipy.special import log_ndtr, ndtri

from tightrope.errors import NotCertified
from tightrope.guarantee import gaussian
from tightrope.numerics.interval import Interval, IntervalArray
from tightrope.numerics.roots import crossing
from tightrope.numerics.rounding import rest_up
from tightrope.validate import FloatArray, check_delta, check_probability, one_number

if TYPE_CHECKING:  # a guarantee asks this module for its curve
    from tightrope.guarantee.base import Guarantee

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
        """The top of the parabola through the best sharp point and its neighbours."""
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
        """The place of the optimum, and a step that costs some millionths of the scale."""
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


# ---- The trade-off function at many points from a few values of the profile, from both sides
# Statement: with x = e^eps, delta is convex in x, falls, and falls no faster than x rises (its
#     slope is -Q(L > eps)). f(a) is the supremum over x >= 1 of 1 - delta - x a and
#     (1 - delta - a)/x. Any point (x, delta) puts both below f. Where delta is at least a polygon,
#     both are largest at its corners: they are linear in x, or in 1/x, between them. On a cell
#     between two known points the polygon is made of the chords of the neighbouring cells,
#     extended; before the first point of slope -1, after the last of slope 0, and beyond the last
#     point delta is at least 0.
# Conditions: delta(eps) is the profile of both orders of the neighbours (the worse one).
# Validity: exact, both ends.
# Source: as above.
# Error: rounding is taken outward; the width is that of the cells, which are halved where it is
#     largest, until it is small or enough points are known.
# Vectors: tests/unit/guarantee/test_arrays.py, against the function one point at a time.
_FIRST_POINTS, _MOST, _TOGETHER = 9, 96, 8  # points of the profile; cells halved in one round
_GOAL_OF_CURVE = 1e-6  # of the width, relative to the hit rate, or to f
_SMALL, _ROUNDING_OF_CURVE = 1e-13, 2e-15  # of the corners, and of what they are worth


def tradeoff_curve(guarantee: Guarantee, type_i: FloatArray) -> IntervalArray:
    """The trade-off function at many points, by one set of values of the profile.

    Wider than one point at a time: about a thousandth of the hit rate.
    """
    a = np.asarray(check_probability(type_i, "type_i"), dtype=np.float64)
    known = _Known(_kept_profile(guarantee))
    smallest = float(np.min(a[a > 0.0], initial=1.0))
    known.start(smallest)
    while True:
        lower, upper, cell = known.bounds(a)
        share = (upper - lower) / np.maximum(np.minimum(upper, 1.0 - lower), 1e-300)
        worst = np.argsort(share)[::-1]
        wanted = list(dict.fromkeys(int(cell[i]) for i in worst if share[i] > _GOAL_OF_CURVE))[
            :_TOGETHER
        ]
        if not wanted or not known.halve(wanted):
            break
    ends = np.clip(lower, 0.0, 1.0 - a), np.clip(upper, 0.0, 1.0 - a)
    return IntervalArray(*(np.where(a == 1.0, 0.0, end) for end in ends))


@final
class _Known:
    """Values of the profile, and the corners of the polygon below it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.points: dict[float, tuple[float, float]] = {}

    def _ask(self, epsilon: float) -> None:
        if epsilon not in self.points:
            found = self.profile.sharp(epsilon, 0.0)
            self.points[epsilon] = (found.lower, found.upper)

    def start(self, smallest: float) -> None:
        """Up to where x a is beyond every gain; evenly spread."""
        last = 1.0
        self._ask(0.0)
        while last < _LARGEST_EPSILON:
            self._ask(last)
            if self.points[last][1] < 1e-4 * smallest:
                break
            last *= 2.0
        last = min(last, _LARGEST_EPSILON)
        for epsilon in np.linspace(0.0, last, _FIRST_POINTS):
            self._ask(float(epsilon))

    def halve(self, cells: list[int]) -> bool:
        """Halves some cells; False where nothing is won any more."""
        at = sorted(self.points)
        before = len(at)
        for cell in cells:
            if cell + 1 < len(at) and before < _MOST:
                self._ask(0.5 * (at[cell] + at[cell + 1]))
        return len(self.points) > before

    def bounds(self, a: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Both ends, and the cell that the upper one comes from."""
        at = np.array(sorted(self.points))
        low, high = np.array([self.points[e] for e in at.tolist()]).T
        lower = _gains(np.exp(at), high * (1.0 + _SMALL), a, -_ROUNDING_OF_CURVE).max(axis=1)
        x, delta = _corners(np.exp(at), low, high)
        upper = _gains(x, delta, a, _ROUNDING_OF_CURVE)
        best = upper.argmax(axis=1)
        beyond = np.maximum(1.0 - x[-1] * a, (1.0 - a) / x[-1])
        top = np.maximum(upper.max(axis=1), beyond)
        cell = np.minimum(best // 2, len(at) - 2)
        return lower * (1.0 - _ROUNDING_OF_CURVE), top * (1.0 + _ROUNDING_OF_CURVE), cell


def _gains(x: FloatArray, delta: FloatArray, a: FloatArray, rounding: float) -> FloatArray:
    """The larger of 1 - delta - x a and (1 - delta - a)/x, (points a, points x)."""
    steep = 1.0 - delta - x * a[:, None] + rounding * (1.0 + x * a[:, None])
    return np.asarray(np.maximum(steep, (1.0 - delta - a[:, None] + rounding) / x))


def _corners(x: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Points known and, between them, where the extended chords meet: alternating."""
    cells = len(x) - 1
    left, right = np.full(cells, -1.0), np.zeros(cells)  # slopes of the lines from each side
    gaps = np.diff(x)
    left[1:] = np.maximum(-1.0, (low[1:-1] - high[:-2]) / gaps[:-1])
    right[:-1] = np.minimum(0.0, (high[2:] - low[1:-1]) / gaps[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        along = (low[1:] - low[:-1] - right * gaps) / (left - right)
    apart = left < right  # where rounding has them the other way round, delta falls: that is all
    along = np.where(apart, np.clip(along, 0.0, gaps), 0.0)
    meet = np.maximum(low[:-1] + left * along, low[1:] - right * (gaps - along))
    meet = np.where(apart, meet, low[1:])
    meet = meet - _SMALL * (low[:-1] + np.abs(left) * gaps + np.abs(right) * gaps)
    xs, deltas = np.empty(2 * cells + 1), np.empty(2 * cells + 1)
    xs[0::2], deltas[0::2] = x, low * (1.0 - _SMALL)
    xs[1::2], deltas[1::2] = x[:-1] + along, np.maximum(meet, low[1:] * (1.0 - _SMALL))
    return xs, deltas


# ---- One line under a trade-off curve: a proof that an attack finds few --------------------------
# Statement: an attack with false positive rate a finds at most t of the members if
#     delta(eps) <= t - e^eps a for one eps >= 0, or the same of a' = 1 - t, t' = 1 - a (a trade-off
#     function for both orders of the neighbours is its own mirror image).
# Validity: bound for every eps; exact for the best one.
# Source: Wasserman and Zhou 2010; Dong, Roth and Su 2019 (arXiv:1905.02383), Proposition 2.5.
# Error: none; a search that stops early only asks for more noise than needed.
_NO_ROOM = 1e6


class HitRate(NamedTuple):
    """At most `hits` at this rate of false alarms; 0 < alarms < hits < 1."""

    alarms: float
    hits: float

    def lower_half(self) -> HitRate:
        """The mirror image whose line falls steeply, eps >= 0."""
        mirrored = HitRate(1.0 - self.hits, 1.0 - self.alarms)
        return mirrored if self.alarms > mirrored.alarms else self

    @property
    def mu(self) -> float:
        """The Gaussian curve through it."""
        return float(ndtri(self.hits) - ndtri(self.alarms))

    def excess(self, epsilon: float, delta: float) -> float:
        """ln(delta/(t - e^eps a)): at most 0 where this line proves it."""
        room = self.hits - math.exp(epsilon) * self.alarms if epsilon >= 0.0 else 0.0
        if room <= 0.0:
            return _NO_ROOM + abs(epsilon)
        return math.log(max(delta, 1e-300) / room)

    def best_line(self, delta: Callable[[float], float], tolerance: float = 1e-4) -> float:
        """The epsilon of the least excess, which is quasi-convex in e^eps.

        The search starts where a Gaussian curve has its line; any epsilon is on the safe side.
        """
        from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

        last = math.log(self.hits / self.alarms)

        def excess(epsilon: float) -> float:
            inside = 0.0 <= epsilon < last
            return self.excess(epsilon, delta(epsilon)) if inside else _NO_ROOM + abs(epsilon)

        near = -self.mu * float(ndtri(self.alarms)) - 0.5 * self.mu * self.mu
        guess = min(max(near, 0.01 * last), 0.9 * last)
        found = minimize_scalar(
            excess, bracket=(0.95 * guess, guess), method="brent", tol=tolerance
        )
        best = float(found.x)
        return best if excess(best) <= excess(0.0) else 0.0


# ---- Views computed from the privacy profile delta(epsilon) alone, safe on both sides
# They rest on one fact: with x = e^epsilon, a profile is a convex function of x.


# e^700 is still a double
_MOST_POINTS = 1000  # of a profile, for one Gaussian parameter
_FAR_EPSILONS = (_LARGEST_EPSILON, 1e5, 1e8, 1e12)


def tradeoff(guarantee: Guarantee, type_i: float) -> Interval:
    """The trade-off function of any guarantee, by its own delta(epsilon)."""
    if type_i == 0.0:  # f(0) >= 1 - delta(eps) for every eps, however large
        least = min(guarantee.delta(epsilon).upper for epsilon in _FAR_EPSILONS)
        return Interval(max(1.0 - least - 1e-15, 0.0), 1.0)
    return _supporting_line(guarantee, type_i)[0]


def supporting_epsilon(guarantee: Guarantee, type_i: float) -> float:
    """The epsilon whose line touches the trade-off curve at type_i; negative on the flat side."""
    return _supporting_line(guarantee, type_i)[1]


@lru_cache(maxsize=64)
def _supporting_line(guarantee: Guarantee, type_i: float) -> tuple[Interval, float]:
    return supporting_line(_kept_profile(guarantee), type_i)


@lru_cache(maxsize=2)
def _kept_profile(guarantee: Guarantee) -> Profile:
    """The profile of a guarantee, kept so that one answer serves the next question."""
    return guarantee.profile() or _Asked(guarantee)


class _Asked:
    """A profile whose every answer is as good as it gets."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.guarantee = guarantee
        self.known: dict[float, Interval] = {}

    def near(self, epsilon: float, room: float) -> Interval:
        if epsilon not in self.known:
            self.known[epsilon] = self.guarantee.delta(epsilon)
        return self.known[epsilon]

    sharp = near


def gaussian_mu(guarantee: Guarantee, smallest_delta: float) -> Interval:
    """The smallest mu with delta_mu(eps) >= delta(eps) wherever delta(eps) >= smallest_delta.

    Error: the lower end is the largest mu needed at a point looked at. For the upper end, on a
    cell the profile lies below its chord and the Gaussian profile above its two tangents; cells
    are halved until mu * (1 + 1e-4) passes on each.
    """
    smallest_delta = one_number(check_delta(smallest_delta, "smallest_delta"), "smallest_delta")
    end = guarantee.epsilon(smallest_delta).upper
    if not math.isfinite(end):
        return Interval(0.0, math.inf)
    grid = list(np.linspace(0.0, end, 33)) if end > 0 else [0.0, 1e-9]
    known = {eps: guarantee.delta(eps) for eps in grid}
    for _ in range(12):
        eps = sorted(known)
        lower = max(_mu_needed(e, known[e].lower) for e in eps)
        mu = max(_mu_needed(e, known[e].upper) for e in eps) * (1 + 1e-4)
        if mu == 0.0:
            return Interval.exact(0.0)
        bad = [(a, b) for a, b in itertools.pairwise(eps) if not _covered(mu, a, b, known)]
        if not bad:
            return Interval(lower, mu)
        if len(eps) + len(bad) > _MOST_POINTS:
            break
        for a, b in bad:
            known[0.5 * (a + b)] = guarantee.delta(0.5 * (a + b))
    return Interval(lower, max(_mu_needed(b, known[a].upper) for a, b in itertools.pairwise(eps)))


def _mu_needed(epsilon: float, delta: float) -> float:
    return float(gaussian.mu(epsilon, delta)) if delta > 0 else 0.0


def _covered(mu: float, a: float, b: float, known: dict[float, Interval]) -> bool:
    """Does the Gaussian profile lie above the chord of the profile on [a, b]?

    Both are functions of x = e^(eps - a), which is a double however large a is.
    """
    if b - a > _LARGEST_EPSILON:
        return False
    end = math.expm1(b - a)  # of x - 1, which starts at 0
    top_a, top_b = known[a].upper, known[b].upper
    da, db = float(gaussian.delta(a, mu)), float(gaussian.delta(b, mu))
    # d delta_mu / dx = -e^a Phi(-eps/mu - mu/2)
    sa, sb = (-math.exp(a + float(log_ndtr(-eps / mu - mu / 2))) for eps in (a, b))
    if da < top_a or db < top_b:
        return False
    meet = (db - da - sb * end) / (sa - sb) if sa != sb else end
    meet = min(max(meet, 0.0), end)
    return da + sa * meet >= top_a + (top_b - top_a) / end * meet


def invert(
    delta: Callable[[float], Interval], target: float, *, tolerance: float = 1e-10
) -> Interval:
    """The smallest epsilon >= 0 with delta(epsilon) <= target; both ends were evaluated.

    Secant steps on ln delta find where the upper end falls to the target; the lower end of the
    answer is the last point where even the lower end is above it.
    """
    seen: dict[float, Interval] = {}

    def excess(epsilon: float) -> float:
        value = seen.setdefault(epsilon, delta(epsilon))
        return (
            math.log(value.upper / target) if value.upper > 0.0 < target else _sign(value, target)
        )

    if excess(0.0) <= 0.0:
        return Interval.exact(0.0)
    try:
        found = crossing(excess, 1.0, smallest=1e-12, largest=_LARGEST_EPSILON, tolerance=tolerance)
    except NotCertified:
        return Interval(max(e for e, d in seen.items() if d.lower > target or e == 0.0), math.inf)
    lower = max((e for e, d in seen.items() if d.lower > target), default=0.0)
    return Interval(min(lower, found.below), found.below)


def _sign(value: Interval, target: float) -> float:
    """The excess where no logarithm exists."""
    return -1.0 if value.upper <= target else 1.0
