"""Where one large step decides: T releases of one sampled Gaussian ("remove"), T rate << 1.

With h(k) = E_Q (r - k)_+ the profile of one step, R the product of the others' r, X = 1/R and S the
sum of their losses, "exactly one jump (a loss above B)" has E_P h_B(K X), K = e^eps, h_B = h from
e^B on and its tangent below. E_P X = 1 and h is convex, so that (Jensen, Taylor)
  h(K) + K^2 h''(K e^p) V/2 <= E h_B(K X) <= h(K) + K^2 h''(K e^-p) V/2 + E[h_B(K X); S > p],
V = E (X-1)^2 = (E_Q 1/r)^{T-1} - 1, with any p on the right; on the left -p below the least S, and
what lies outside taken from V.

Error: two jumps (T^2 P(L > B)^2), none (Chernoff over steps cut off at B), the tail of S (Chernoff
in slices), and the gap between the two sides above. No transform and no quadrature of the profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.closed_form import estimate_single, log_delta_single
from tightrope.guarantee.loss.cumulant import plain_mu, renyi
from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI
from tightrope.guarantee.loss.cumulant_window import log_tail
from tightrope.guarantee.loss.gaussian import SampledGaussianPair, log_ratio, point_of_log_ratio
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import Enclosure
from tightrope.numerics.quadrature import UNIT, FloatArray, expm1_minus

__all__ = ["OneJump"]

_LEFT_OUT = 2e-3  # of the width asked for, to two jumps, for each nat of ln delta
_CELLS = 600
# times the slope of ln h; the best for a tail is sharp near 1
_TILTS = np.concatenate([np.geomspace(0.25, 1000.0, 64), np.linspace(0.6, 2.0, 200)])
_SLICES = 40  # and one for each half nat
_STARTS = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the tail, times 1/slope
_SHARES = (0.35, 0.6, 0.8, 0.9, 0.96, 0.999)
_WIDEST = 0.3  # of V K^2 h''/h: beyond it nothing is won
_ROUNDS = 40


@final
@dataclass(frozen=True)
class OneJump:
    """The one kind of step, how many of them, ln delta, roughly, and the width wanted."""

    pair: SampledGaussianPair
    steps: int
    log_level: float
    relative_width: float

    @classmethod
    def of(cls, held: Components, log_level: float, relative_width: float) -> OneJump:
        if len(held) == 1:
            pair, steps = held[0]
            sampled = isinstance(pair, SampledGaussianPair) and plain_mu(pair) is None
            if sampled and pair.direction == "remove" and steps > 1:  # type: ignore[attr-defined]
                return cls(pair, steps, log_level, relative_width)  # type: ignore[arg-type]
        raise NotCertified("One jump alone is followed for one kind of sampled steps only.")

    @property
    def is_plausible(self) -> bool:
        """Whether it is worth trying: from Gaussian tails, with nothing proved."""
        q, mu, log_steps = self.pair.rate, self.pair.mu, math.log(self.steps)
        if mu > 20.0:
            return False

        def nats(loss: float) -> float:
            """-ln P(L > loss), roughly."""
            b = math.expm1(min(loss, 600.0)) + q
            return 0.5 * ((math.log(b) - math.log(q)) / mu + 0.5 * mu) ** 2

        s = math.sqrt(2.0 * (log_steps - self.log_level))
        log_b = math.log(q) + mu * s - 0.5 * mu * mu
        loss = math.log1p(math.exp(min(log_b, 600.0)))
        slope = s / (mu * -math.expm1(-loss))
        spread = 0.5 * slope * self.steps * q * q * math.expm1(mu * mu) / loss
        two = 2.0 * nats(0.5 * loss) - nats(loss) - log_steps
        return spread < 10.0 * self.relative_width and two > 10.0

    # ------------------------------------------------------------------------------ the other steps
    @cached_property
    def _variance(self) -> tuple[float, float]:
        """Bounds on V; K of the reversed pair at 1 is ln E_Q 1/r."""
        turned = SampledGaussianPair(self.pair.rate, self.pair.mu, "add")
        low, high = renyi(turned, 2.0)
        most = min((self.steps - 1) * float(high), 700.0)
        return math.expm1((self.steps - 1) * float(low)) * (1 - 1e-12), math.expm1(most) * (
            1 + 1e-12
        )

    @cached_property
    def _first_jump(self) -> tuple[float, float]:
        """The s from which on a step is a jump, and ln of a bound on its probability."""
        share = _LEFT_OUT * self.relative_width * max(-self.log_level, 1.0)
        allowed = self.log_level + math.log(share)
        log_most = 0.5 * allowed - math.log(self.steps)
        low, high = 0.0, self.pair.mu + math.sqrt(-2.0 * log_most) + 1.0
        for _ in range(40):
            s = 0.5 * (low + high)
            low, high = (low, s) if self._log_tail(s) < log_most else (s, high)
        return high, self._log_tail(high)

    def _log_tail(self, s: float) -> float:
        """ln of a bound on P(L > the loss at s)."""
        at = np.array([s])
        rate, mu = np.array([self.pair.rate]), np.array([self.pair.mu])
        return float(log_tail(at, np.log(rate), mu)[0]) + 1e-9

    @property
    def largest(self) -> float:
        """The largest loss that is no jump."""
        return float(log_ratio(self._first_jump[0], self.pair.rate, self.pair.mu))

    @cached_property
    def _cells(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Edges s of cells from L = 0 to the largest that is no jump, losses and ln P(L > edge)."""
        q, mu = self.pair.rate, self.pair.mu
        s = np.linspace(0.5 * mu, self._first_jump[0], _CELLS + 1)
        loss = np.maximum(log_ratio(s, q, mu), 0.0) * (1.0 + 8.0 * UNIT) + 1e-300
        tails = log_tail(s, np.log(np.array([q])), np.array([mu])) + 1e-9
        return s, loss, tails

    def _log_moments(self, tilts: FloatArray) -> FloatArray:
        """ln of bounds on E_P[e^{tilt L}; L <= right end], (tilts, cells).

        e^x = 1 + x + g(x): E[L; L <= a] <= ln E_P r = ln(1 + q^2 (e^{mu^2} - 1)) for a >= 0; g is
        at most x^2/2 for x < 0, where L >= ln(1 - q); for x > 0 it rises, and its expectation is at
        most the sum over the cells of P(L > left end) times its rise.
        """
        _, loss, tails = self._cells
        q, mu = self.pair.rate, self.pair.mu
        x = tilts[:, None] * loss
        small = np.log(np.maximum(expm1_minus(np.minimum(x, 30.0)), 1e-300))
        far = np.maximum(x, 30.0)
        log_g = np.where(x < 30.0, small, far + np.log1p(-(1.0 + far) * np.exp(-far)))
        gap = np.minimum(log_g[:, :-1] - log_g[:, 1:], -1e-12)
        logs = log_g[:, 1:] + np.log(-np.expm1(gap)) + tails[:-1]
        total = np.logaddexp.accumulate(logs, axis=1) + 1e-8
        mean = math.log1p(q * q * math.expm1(mu * mu)) if mu < 26.0 else math.inf
        rest = tilts * mean + 0.5 * (tilts * math.log1p(-q)) ** 2
        most = np.minimum(total, 600.0)
        log_m = np.log1p(rest[:, None] + np.exp(most)) + (total - most)
        return np.asarray(log_m * (1.0 + 1e-9))

    def _log_exceeds(self, moments: FloatArray, tilts: FloatArray, sums: FloatArray) -> FloatArray:
        """ln of bounds on P(S > sum, no jump): a loss above a share of it, or none (Chernoff)."""
        _, loss, tails = self._cells
        best = np.zeros(len(sums))
        for share in _SHARES:
            # the last edge at or below: losses up to it are in the moments, the others in the tail
            at = np.clip(np.searchsorted(loss, share * sums, side="right") - 1, 1, _CELLS)
            chernoff = np.min(self.steps * moments[:, at - 1] - tilts[:, None] * sums, axis=0)
            some = np.where(at == _CELLS, -np.inf, math.log(self.steps) + tails[at])
            best = np.minimum(best, np.logaddexp(chernoff, some) + 1e-9)
        return best

    # ---------------------------------------------------------------------------------- the profile
    def _log_bend(self, epsilon: float, by: float) -> float:
        """ln of K^2 h''(K e^by): h'' is the density phi(s)/(mu b) of r under Q; it falls."""
        mu = self.pair.mu
        s = float(point_of_log_ratio(epsilon + by, self.pair.rate, mu))
        log_b = math.log(self.pair.rate) + mu * s - 0.5 * mu * mu
        return 2.0 * epsilon - 0.5 * s * s - LOG_ROOT_2PI - math.log(mu) - log_b

    def _slope(self, epsilon: float) -> float:
        """-(ln h)' in epsilon, roughly."""
        step = 1e-4 * epsilon
        near, far = (estimate_single(self.pair, e) for e in (epsilon, epsilon + step))
        return max((near - far) / step, 1.0 / epsilon)

    def enclosure(self, epsilon: float) -> Enclosure:
        """ln delta(epsilon) between two proved bounds."""
        if not epsilon > self.largest * (1.0 + 1e-9):
            raise NotCertified("Two jumps are not rare enough; use the lattice method.")
        one = log_delta_single(self.pair, epsilon)
        slope, log_steps = self._slope(epsilon), math.log(self.steps)
        tilts = slope * _TILTS
        moments = self._log_moments(tilts)
        none = float(self._log_exceeds(moments, tilts, np.array([epsilon]))[0])
        two = 2.0 * log_steps + 2.0 * self._first_jump[1]
        least, most, tail = self._spread(epsilon, slope, one.lower, moments)
        base = log_steps + one.lower  # ln of T h
        lost = math.exp(min(two - base, 0.0))
        added = math.exp(min(none - base, 50.0)) + 1.5 * lost + tail
        if lost > 0.5 or not added < 1.0:
            raise NotCertified("More than one jump may decide; use the lattice method.")
        slack = 8.0 * UNIT * (abs(base) + 4.0)
        return Enclosure(
            lower=base + math.log1p(least) + math.log1p(-lost) - slack,
            upper=log_steps + one.upper + math.log1p(most + added) + slack,
            quadrature=most - least,
            truncation=added + lost,
            rounding=one.width + 2.0 * slack,
        )

    def _spread(
        self, epsilon: float, slope: float, log_one: float, moments: FloatArray
    ) -> tuple[float, float, float]:
        """(E h_B - h)/h from below and above, and the part of the latter from the tail of S."""
        high, last = self._variance[1], epsilon - self.largest
        best = (math.inf, math.inf)
        for share in _STARTS:
            start = share / slope
            if start >= 0.5 * last:
                break
            bend = math.exp(min(self._log_bend(epsilon, -start) - log_one, 700.0))
            most = 0.5 * bend * high * (1.0 + 1e-9)
            if most > _WIDEST:
                continue
            tail = self._tail(epsilon, start, last, slope, log_one, moments)
            if most + tail < sum(best):
                best = (most, tail)
        if best[0] == math.inf:
            raise NotCertified("The other steps spread too far; use the lattice method.")
        return self._least(epsilon, slope, log_one, moments), best[0], best[1]

    def _least(self, epsilon: float, slope: float, log_one: float, moments: FloatArray) -> float:
        """(E h_B - h)/h from below; V without S > 1/slope, where (X-1)^2 <= 1, and S < -p."""
        if 1.0 / slope >= epsilon - self.largest:
            return 0.0  # Jensen
        far = self._log_exceeds(moments, slope * _TILTS, np.array([1.0 / slope]))
        outside = math.exp(float(far[0])) + self.steps * math.exp(self._first_jump[1])
        lowest = -self.steps * math.log1p(-self.pair.rate)  # S is above -lowest
        best = 0.0
        for share in (*_STARTS, math.inf):
            least = min(share / slope, lowest)
            rare = 0.0 if least == lowest else self._below(least) * math.expm1(lowest) ** 2
            bend = math.exp(min(self._log_bend(epsilon, least) - log_one, 700.0))
            best = max(best, 0.5 * bend * (self._variance[0] - outside - rare) * (1.0 - 1e-9))
        return best

    def _below(self, sum_: float) -> float:
        """P(S < -sum): E_P e^{-t L} <= 1 + t^2/2 E_P L^2 e^{t |ln(1-q)|}, as E_P L >= 0.

        E_P L^2 <= E_Q (r-1)^2 = q^2 (e^{mu^2} - 1), because (ln r)^2 <= (r-1)^2/r.
        """
        q, mu = self.pair.rate, self.pair.mu
        if mu > 26.0:
            return 1.0
        square = self.steps * q * q * math.expm1(mu * mu)
        tilts = np.geomspace(0.01, 1.0, 40) * min(sum_ / square, 30.0 / -math.log1p(-q))
        grown = np.exp(-tilts * math.log1p(-q))
        logs = 0.5 * tilts * tilts * square * grown - tilts * sum_
        return float(np.exp(np.minimum(np.min(logs), 0.0))) * (1.0 + 1e-9)

    def _tail(
        self,
        epsilon: float,
        start: float,
        last: float,
        slope: float,
        log_one: float,
        moments: FloatArray,
    ) -> float:
        """E[h_B(K X); S > start, no jump]/h, h(e^e) <= P(L > e), in slices of S."""
        even = np.arange(1.0, min(2.0 * slope * last, 3000.0)) * (0.5 / slope)
        edges = np.unique(np.concatenate([np.geomspace(start, last, _SLICES), even[even > start]]))
        rare = self._log_exceeds(moments, slope * _TILTS, edges)
        reached = np.append(edges[1:], last)
        s = point_of_log_ratio(epsilon - reached, self.pair.rate, self.pair.mu) - 1e-9
        rate, mu = np.array([self.pair.rate]), np.array([self.pair.mu])
        sizes = log_tail(s, np.log(rate), mu) + 1e-6
        return float(np.sum(np.exp(np.minimum(np.minimum(rare, 0.0) + sizes - log_one, 50.0))))

    # ---------------------------------------------------------------------------------- the inverse
    def epsilon(self, start: float, slack: float) -> Interval:
        """The smallest epsilon with delta(epsilon) <= e^log_level; slack: of the level."""
        x = self._root(start)
        at = self.enclosure(x)
        x += (0.5 * (at.lower + at.upper) - self.log_level) / self._slope(x)
        reach = (at.width + 4.0 * slack) / self._slope(x) + 8.0 * UNIT * x
        for _ in range(5):
            low, high = self.enclosure(x - reach), self.enclosure(x + reach)
            if low.lower >= self.log_level + slack and high.upper <= self.log_level - slack:
                found = Interval(x - reach, x + reach)
                if found.width <= self.relative_width * found.upper:
                    return found
                raise NotCertified("The other steps spread too far.", (found.lower, found.upper))
            reach *= 2.0
        raise NotCertified("No epsilon could be proved from one jump; use the lattice method.")

    def _root(self, x: float) -> float:
        """Where T h is the level."""
        for _ in range(_ROUNDS):
            slope = self._slope(x)
            gap = math.log(self.steps) + estimate_single(self.pair, x) - self.log_level
            move = max(-0.3 * x, min(gap / slope, 0.5 * x))
            x += move
            if abs(move) * slope < 1e-9:
                break
        return x
