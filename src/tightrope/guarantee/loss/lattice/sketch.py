"""A rough picture of the composed loss, to plan the lattice by. Nothing here enters a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

import numpy as np

from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.validate import FloatArray

Window = tuple[float, tuple[float, float]]


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

    parts: tuple[tuple[FloatArray, FloatArray, int], ...]
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
