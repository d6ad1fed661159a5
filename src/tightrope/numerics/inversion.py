"""The mean excess g(x) = E (1 - e^{x-X})_+, and where the line of its integral should run.

g(x) = 1/(2 pi i) int e^{K(z) - zx} h(z) dz on a vertical line right of 0, h(z) = 1/(z (z + 1)). The
payoff is >= 0, so that aliases of g are too. Saddle points are estimates: every such line is valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import MAX_WORK, ComplexArray, SumLaw, Wanted
from tightrope.numerics.quadrature import FloatArray, dyadic_floor
from tightrope.numerics.rounding import UNIT

# tilts tried: lines inside the saddle, and with them those that bound the aliases
_FRACTIONS = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 1.0])
_INSIDE = np.concatenate([[0.0, 0.06, 0.12], _FRACTIONS])
_BEYOND = np.geomspace(0.08, 14.0, 16)  # in units of 1/spread beyond it
_MAX_LOSS = 16.0  # nats of cancellation that may be traded for a shorter period

_ROUNDING, _HARM = -32.0, 0.7  # ln of the rounding of a law; nats worth a shorter period
_MAX_BOTH = 9.0, 30.0  # the same where a line is read twice: at x, and at the other point


def log_kernel(c: float) -> float:
    """ln h(c)."""
    return -math.log(c) - math.log1p(c)


def kernel_slope(c: float) -> tuple[float, float]:
    """First and second derivative of ln h at c."""
    return -1.0 / c - 1.0 / (c + 1.0), 1.0 / c**2 + 1.0 / (c + 1.0) ** 2


def kernel_ratio(c: float, y: FloatArray) -> ComplexArray:
    """h(c + iy)/h(c)."""
    return np.asarray(1.0 / (1.0 + 1j * (y / c)) / (1.0 + 1j * (y / (c + 1.0))))


def log_peak(z: FloatArray) -> FloatArray:
    """ln sup_x (1 - e^-x)_+ e^{-zx}: Chernoff's bound is g(x) <= e^{K(z) - zx} times this."""
    z = np.maximum(z, 1e-300)
    return np.asarray(z * np.log(z) - (1.0 + z) * np.log1p(z))


def log_estimate(law: SumLaw, c: float) -> tuple[float, float, float]:
    """The x whose saddle is c, the saddle-point estimate of ln g(x), and F''(c)."""
    k, k1, k2 = law.moments(c)
    first, second = kernel_slope(c)
    x, curvature = k1 + first, k2 + second
    log_g = k - c * x + log_kernel(c) - 0.5 * math.log(2.0 * math.pi * curvature)
    return x, log_g, curvature


def _search(step_at: Callable[[float], tuple[float, float]], start: float, far: float) -> float:
    """Safeguarded Newton in ln distance. step_at gives (step, size of the residual; done below 1).

    The step points towards the root from either side. Where the residual does not shrink fourfold,
    the next point halves the bracket: near a phase transition the curvature jumps.
    """
    low, high, at, last = -math.inf, math.inf, min(start, far), math.inf
    for _ in range(100):
        move, residual = step_at(at)
        if residual < 1.0:
            break
        if move > 0:
            low = max(low, at)
        else:
            high = min(high, at)
        new = min(at + max(-2.0, min(2.0, move)), far)
        slow = residual > 0.25 * last and low > -math.inf and high < math.inf
        if slow or not low < new < high:
            new = 0.5 * (low + high) if low > -math.inf and high < math.inf else new
        if new == at or high - low < 1e-12:
            break
        at, last = new, residual
    return at


def _far(law: SumLaw) -> float:
    """ln of the largest tilt that is tried; leaves room for the alias tilts."""
    return math.log(0.85 * law.max_tilt)


def saddle(law: SumLaw, x: float, start: float = 0.0) -> float:
    """c with K'(c) - x + (ln h)'(c) = 0, to four digits."""

    def step_at(log_c: float) -> tuple[float, float]:
        c = math.exp(log_c)
        _, k1, k2 = law.moments(c)
        first, second = kernel_slope(c)
        slope, curvature = k1 - x + first, k2 + second
        step = -slope / max(curvature * c + slope, 0.5 * curvature * c)
        return step, abs(slope) / (0.05 * math.sqrt(curvature))

    return math.exp(_search(step_at, start, _far(law)))


def saddle_of_level(law: SumLaw, log_level: float) -> float:
    """c at which the saddle-point estimate of g is about e^log_level.

    F(c) = K - c x(c) + ln h falls monotonically (F' = -c x'); the Gaussian correction
    -ln(2 pi F'')/2 is added as a constant from the point before.
    """

    def step_at(log_c: float) -> tuple[float, float]:
        c = math.exp(log_c)
        _, log_g, curvature = log_estimate(law, c)
        gap = log_g + 0.5 * math.log(2.0 * math.pi * curvature) - log_level - correction
        return gap / (c * c * curvature), abs(gap) / 0.1

    correction, log_c = 0.0, 0.0
    for _ in range(3):
        log_c = _search(step_at, log_c, _far(law))
        curvature = log_estimate(law, math.exp(log_c))[2]
        change = 0.5 * math.log(2.0 * math.pi * curvature) - correction
        correction += change
        if abs(change) < 0.3:
            break
    return math.exp(log_c)


@final
@dataclass(frozen=True)
class SaddleReading:
    """Another point at which a line shall be read, and ln of the error of g permitted there."""

    x: float
    log_error: float


@final
@dataclass(frozen=True)
class LinePlan:
    """The place of the line, the period of its samples, and two tilts that bound the aliases.

    log_losses: ln of the sum of |terms| over g(x), and over the error permitted at the other point
    (-inf where the line is not made for another one).
    """

    c: float
    period: float
    alias_tilts: tuple[float, float]
    log_losses: tuple[float, float]


def plan(
    law: SumLaw,
    c: float,
    x: float,
    log_guess: float,
    tolerance: float,
    caution: float,
    also: SaddleReading | None = None,
) -> LinePlan:
    """The line at or inside the saddle c with the shortest period, some cancellation permitted.

    Chernoff's bound at z limits the aliases on one side of c by A(z) - |z - c| period; near a phase
    transition a slightly smaller tilt needs a far shorter period.
    A nat of cancellation is worth a factor e^-caution of the period. Where no line serves `also`
    too, it is left out of account.
    """
    spread = math.sqrt(law.moments(c)[2] + kernel_slope(c)[1])
    beyond = c + _BEYOND / spread
    beyond = beyond[beyond <= law.max_tilt]
    if len(beyond) == 0:
        raise OverflowError(f"tilts beyond {law.max_tilt:.1e}")
    tilts = np.concatenate([c * _INSIDE, beyond])
    candidates = tilts[-len(beyond) - len(_FRACTIONS) : -len(beyond)]
    values = law.values(tilts) - tilts * x
    peaks = values + log_peak(tilts)
    excess = peaks - (log_guess + math.log(tolerance) - 2.0)
    lead = values[-len(beyond) - len(_FRACTIONS) : -len(beyond)] - np.log(
        candidates * (candidates + 1.0)
    )
    loss = lead - log_guess  # ln of sum |terms| / sum terms, roughly
    other, allowed = np.full(len(loss), -math.inf), max(_MAX_LOSS, float(loss[-1]))
    fits = loss <= allowed
    if also is not None:
        twice = lead + candidates * (x - also.x) - also.log_error
        both = (loss <= _MAX_BOTH[0]) & (twice <= _MAX_BOTH[1])
        if both.any():
            fits, other = both, twice
            excess = np.maximum(excess, peaks + tilts * (x - also.x) - also.log_error + 2.0)
    noise = law.log_noise(candidates)
    if np.isfinite(noise).any():  # what cancels multiplies it: the line where that costs least
        harm = loss + np.maximum(noise, _ROUNDING)
        fits, other = harm <= harm.min() + _HARM, np.full(len(loss), -math.inf)
    distance = tilts[None, :] - candidates[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        periods = np.maximum(excess, 3.0) / np.abs(distance)
    up = np.where(distance > 0, periods, np.inf)
    down = np.where(distance < 0, periods, np.inf)
    best = np.maximum(up.min(axis=1), down.min(axis=1))
    score = np.where(fits, np.log(best) + caution * loss, np.inf)
    i = int(score.argmin())
    ends = float(tilts[up[i].argmin()]), float(tilts[down[i].argmin()])
    return LinePlan(float(candidates[i]), float(best[i]), ends, (float(loss[i]), float(other[i])))


# ---- The integral through the saddle point, by the trapezoidal rule, with its certificate
# On the line z = c + iy with step dy = 2 pi / P the infinite trapezoidal sum of
# e^{K(z)-zx} h(z)/2 pi is exactly sum_k g(x + kP) e^{ckP} (Poisson): every alias is >= 0, and
# Chernoff's bound at another tilt limits it. The sum stops at y = Y; what is left out is limited
# by the decay of |M(c+iy)|.
MAX_FREQUENCIES = 30_000
_AT_ONCE = 12  # ends tried in one go, each 15 % further out


@final
@dataclass(frozen=True)
class Limit:
    """The most a line may cost: frequencies, and frequencies times points of a law."""

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
