"""The inversion integral through the saddle point, by the trapezoidal rule, with its certificate.

On the line z = c + iy with step dy = 2 pi / P the infinite trapezoidal sum of e^{K(z)-zx} h(z)/2 pi
is exactly sum_k g(x + kP) e^{ckP} (Poisson): every alias is >= 0, and Chernoff's bound at another
tilt limits it. The sum stops at y = Y; what is left out is limited by the decay of |M(c+iy)|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import MAX_WORK, SumLaw, Wanted
from tightrope.numerics.inversion_saddle import (
    SaddleReading,
    kernel_ratio,
    kernel_slope,
    log_kernel,
    log_peak,
    plan,
)
from tightrope.numerics.quadrature import FloatArray, dyadic_floor
from tightrope.numerics.rounding import UNIT

__all__ = ["LogEnclosure", "Line", "Limit", "NO_LIMIT"]

MAX_FREQUENCIES = 30_000
_AT_ONCE = 12  # ends tried in one go, each 15 % further out


@final
@dataclass(frozen=True)
class Limit:
    """What a line may cost: the number of frequencies, and frequencies times points of a law."""

    frequencies: int = MAX_FREQUENCIES
    work: float = MAX_WORK


NO_LIMIT = Limit()


@final
@dataclass(frozen=True)
class LogEnclosure:
    """lower <= ln g <= upper; the error terms are relative to g."""

    lower: float
    upper: float
    quadrature: float = 0.0
    aliasing: float = 0.0
    truncation: float = 0.0
    rounding: float = 0.0

    @property
    def width(self) -> float:
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def interval(self) -> Interval:
        return Interval(self.lower, self.upper)


@final
class Line:
    """The integrand of one law on one line; evaluates g near the x it was made for."""

    def __init__(
        self,
        law: SumLaw,
        c: float,
        x: float,
        log_guess: float,
        tolerance: float = 1e-12,
        caution: float = 0.1,
        limit: Limit = NO_LIMIT,
        also: SaddleReading | None = None,
    ) -> None:
        chosen = plan(law, c, x, log_guess, tolerance, caution, also)
        self.law, self.c = law, chosen.c
        self.log_guess, self._alias_tilts, c = log_guess, chosen.alias_tilts, chosen.c
        k, _, k2 = law.moments(c)
        self.spread = math.sqrt(k2 + kernel_slope(c)[1])
        self.step = dyadic_floor(2.0 * math.pi / chosen.period)
        self.period = 2.0 * math.pi / self.step
        self._on_line, self._limit = law.on_line(c), limit
        loss, other_loss = chosen.log_losses  # quadrature is relative to what cancels
        self._nats = max(-math.log(tolerance) + max(loss, 2.0), other_loss + 2.0)
        log_tail = math.log(tolerance) + log_guess - (k - c * x + log_kernel(c))
        log_tail = min(log_tail, -other_loss)
        self.count = self._enough(log_tail - 1.5)
        last = np.array([(self.count - 1) * self.step])
        self._log_truncation = float(self._log_tail(last)[0])
        self._sample()

    # ------------------------------------------------------------------------------------- aliases
    def _log_aliases(self, x: float) -> float:
        """ln of a bound on sum_{k != 0} g(x + kP) e^{ckP} (docs/certificate_argument.md, 3.1)."""
        total = -math.inf
        for tilt, size in self._alias_sizes:
            fall = abs(tilt - self.c) * self.period
            total = np.logaddexp(total, size - tilt * x - fall - math.log(-math.expm1(-fall)))
        return float(total) + 1e-9

    # ---------------------------------------------------------------------------------- truncation
    def _log_tail(self, y: FloatArray) -> FloatArray:
        """ln of (1/pi) sum_{y_n > y} dy |h(z_n)/h(c)| |M(z_n)/M(c)|, for several y.

        |h(z)/h(c)| <= c (c + 1)/y^2, and sum dy / y_n^2 <= 1/y where y is on the grid.
        docs/certificate_argument.md, 3.2.
        """
        size = -log_kernel(self.c)
        return np.asarray(size - np.log(math.pi * y) + self._on_line.log_decay(y))

    def _enough(self, target: float) -> int:
        """The number of frequencies beyond which ln of the proved tail is below the target."""
        y: FloatArray = 3.0 / self.spread * 1.15 ** np.arange(_AT_ONCE, dtype=np.float64)
        end = self._limit.frequencies * self.step
        # the tail falls: where it is too large at the last of them it is at all
        while y[-1] <= end and float(self._log_tail(y[-1:])[0]) > target:
            y = y * 1.15**_AT_ONCE
        first, y = math.inf, y[y <= end]
        for thin in (3, 1):  # every third of them, then those just before the first that will do
            tried = np.append(y[2:-1:3], y[-1:]) if thin > 1 else y[y > first / 1.15**2.5]
            enough = self._log_tail(tried) <= target if len(tried) else np.zeros(1, dtype=bool)
            if not enough.any():
                raise NotCertified(
                    "The transform of the loss decays too slowly: more than "
                    f"{self._limit.frequencies} frequencies would be needed (few sampled steps, or "
                    "a law with atoms). Use the lattice method."
                )
            first = float(tried[np.argmax(enough)])
            y = y[y <= first]
        return math.ceil(first / self.step) + 1

    # --------------------------------------------------------------------------------- the samples
    def _sample(self) -> None:
        """|terms|, their phases at x = mean, the bounds on their errors, and K at the alias tilts.

        K there is needed to a factor near 1 of e^K only.
        """
        steps, tilts = math.log(max(self.law.steps, 1.0)), self._alias_tilts
        wanted = Wanted(
            self.step, self.count, steps + self._nats, tilts, steps + 6.0, self._limit.work
        )
        at = self._on_line.sample(wanted)
        self._alias_sizes = []
        for tilt, (value, error) in zip(tilts, at.real, strict=True):
            peak = float(log_peak(np.array(tilt)))
            self._alias_sizes.append((tilt, value + error + peak))
        self.log_mass, self.log_mass_error, self.mean = at.log_mass, at.log_mass_error, at.mean
        self.y = np.arange(self.count, dtype=np.float64) * self.step
        weight = np.full(self.count, self.step / math.pi)
        weight[0] *= 0.5
        ratio = kernel_ratio(self.c, self.y) * weight
        terms = at.amplitude * ratio
        self.size, self.phase = np.abs(terms), np.angle(terms)
        self.size_error = float(np.abs(ratio) @ at.error)
        # rounding of phases: turns of y * mean, the kernel and the sum
        # docs/certificate_argument.md, 3.4
        self.phase_error = UNIT * float(self.size @ (8.0 * self.y * at.turn + 48.0))
        self.phase_slope = 8.0 * UNIT * float(self.size @ self.y)

    # ------------------------------------------------------------------------------------ answers
    def quick(self, x: float) -> tuple[float, float]:
        """ln g(x) and its derivative, without a certificate; -inf when the sum is not positive."""
        angle = self.phase + self.y * (self.mean - x)
        cosine = self.size * np.cos(angle)
        total = float(np.sum(cosine))
        if total <= 0.0:
            return -math.inf, -self.c
        # d/dx e^{-zx} = -z e^{-zx}
        turned = float(np.sum(self.size * self.y * np.sin(angle)))
        lead = self.log_mass - self.c * x + log_kernel(self.c)
        return lead + math.log(total), -self.c + turned / total

    def certified(self, x: float) -> LogEnclosure:
        """ln g(x) between two proved bounds."""
        angle = self.phase + self.y * (self.mean - x)
        total = float(np.sum(self.size * np.cos(angle)))
        log_lead = self.log_mass - self.c * x + log_kernel(self.c)
        truncation = math.exp(min(self._log_truncation, 700.0))
        rounding = self.phase_error + self.phase_slope * (abs(x) + abs(self.mean))
        alias = math.exp(min(self._log_aliases(x) - log_lead, 700.0))
        spent = truncation + self.size_error + rounding
        scale = self.log_mass_error + 8.0 * UNIT * (
            abs(self.log_mass) + abs(self.c * x) + abs(log_kernel(self.c)) + 4.0
        )
        low, high = total - spent - alias, total + spent
        value = max(total, 1e-300)
        return LogEnclosure(
            lower=log_lead + math.log(low) - scale if low > 0 else -math.inf,
            upper=log_lead + math.log(high) + scale,
            quadrature=self.size_error / value + self.log_mass_error,
            aliasing=alias / value,
            truncation=truncation / value,
            rounding=rounding / value + scale - self.log_mass_error,
        )
