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
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay
from tightrope.numerics.inversion_kernel import Kernel
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.inversion_nodes import log1p_complex
from tightrope.numerics.quadrature import UNIT, FloatArray, dyadic_floor

__all__ = ["Enclosure", "Line", "MAX_FREQUENCIES", "MAX_WORK"]

MAX_FREQUENCIES = 60_000
MAX_WORK = 4e8  # frequencies x points


@final
@dataclass(frozen=True)
class Enclosure:
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

    def intersect(self, other: Interval) -> Interval:
        return self.interval.intersect(other)


@final
class Line:
    """The integrand of one sum law on one line; evaluates g near the x it was made for."""

    def __init__(
        self,
        law: SumLaw,
        kernel: Kernel,
        c: float,
        x: float,
        tolerance: float = 1e-12,
        log_guess: float | None = None,
    ) -> None:
        self.law, self.kernel, self.c, self.tolerance = law, kernel, c, tolerance
        k, _, k2 = law.moments(c)
        self.spread = math.sqrt(k2 + kernel.slope(c)[1])
        log_lead = k - c * x + kernel.log_size(c)
        self.log_guess = log_lead - math.log(self.spread) - 0.92 if log_guess is None else log_guess
        self.nats = math.log(max(law.steps, 1)) + math.log(1.0 / tolerance) + 2.0
        period = self._period(x)
        self.step = dyadic_floor(2.0 * math.pi / period)
        self.period = 2.0 * math.pi / self.step
        self._decays = [(law_part.decay(c), count) for law_part, count in law.parts]
        self._choose_count(log_lead)
        self._sample()
        self._prove_aliases()

    # ------------------------------------------------------------------------------------- aliases
    def _period(self, x: float) -> float:
        """The shortest period whose aliases are small; remembers the tilts that show it."""
        room = abs(self.c - self.kernel.edge)
        up = np.geomspace(0.08, 14.0, 16) / self.spread
        down = room * np.array([0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0])
        offsets = np.concatenate([up, -down]) * self.kernel.side
        tilts = self.c + offsets
        target = self.log_guess + math.log(self.tolerance) - 2.0
        bound = self.law.values(tilts) - tilts * x + self.kernel.log_peak(tilts - self.kernel.edge)
        periods = np.maximum((bound - target) / np.abs(offsets), 3.0 / np.abs(offsets))
        n = len(up)
        first, second = int(np.argmin(periods[:n])), n + int(np.argmin(periods[n:]))
        self._alias_tilts = (float(tilts[first]), float(tilts[second]))
        return float(max(periods[first], periods[second]))

    def _prove_aliases(self) -> None:
        """Upper bounds on K at the two tilts, to a factor near 1."""
        nats = math.log(max(self.law.steps, 1)) + 6.0
        self._alias_sizes = []
        for tilt in self._alias_tilts:
            value, error = self.law.real(tilt, nats)
            peak = float(self.kernel.log_peak(np.array(tilt - self.kernel.edge)))
            self._alias_sizes.append((tilt, value + error + peak))

    def _log_aliases(self, x: float) -> float:
        """ln of a bound on sum_{k != 0} g(x + kP) e^{ckP}."""
        total = -math.inf
        for tilt, size in self._alias_sizes:
            fall = abs(tilt - self.c) * self.period
            total = np.logaddexp(total, size - tilt * x - fall - math.log(-math.expm1(-fall)))
        return float(total) + 1e-9

    # ---------------------------------------------------------------------------------- truncation
    def _log_decay(self, y: float) -> float:
        total = -0.5 * self.law.variance * y * y
        for decay, count in self._decays:
            total += count * math.log(decay.bound(y))
        return total

    def _log_tail(self, y: float) -> float:
        """ln of (1/pi) sum_{y_n > y} dy |h(z_n)/h(c)| |M(z_n)/M(c)|."""
        gaps = sum(math.log(abs(self.c - p)) for p in self.kernel.poles)
        if len(self.kernel.poles) == 2:  # sum dy / y_n^2 <= 1/y
            return gaps - math.log(math.pi * y) + self._log_decay(y)
        # sum of dy / y_n over each octave is at most ln 2; after 40 of them variation/y rules
        total = -math.inf
        for octave in range(40):
            total = np.logaddexp(total, self._log_decay(y * 2.0**octave))
        return float(total) + gaps - math.log(math.pi) + self._log_far(y * 2.0**40)

    def _log_far(self, y: float) -> float:
        """0 when the octaves beyond y add less than they already hold; refuses otherwise."""
        if self.law.variance > 0 or any(d.variation < 0.25 * y for d, _ in self._decays):
            return math.log(2.0)
        raise NotCertified(
            "The law has no density of bounded variation, so the tail of its transform cannot be "
            "bounded for a probability. Use the lattice method."
        )

    def _choose_count(self, log_lead: float) -> None:
        """The first frequency beyond which the proved tail is small."""
        target = math.log(self.tolerance) - 1.5 + self.log_guess - log_lead
        low, high = 3.0 / self.spread, 6.0 / self.spread
        cap = MAX_FREQUENCIES * self.step
        while self._log_tail(high) > target:
            if high > cap:
                raise NotCertified(
                    f"The transform of the loss decays too slowly: more than {MAX_FREQUENCIES} "
                    "frequencies would be needed (few sampled steps, or a law with atoms). "
                    "Use the lattice method."
                )
            low, high = high, 2.0 * high
        while high > 1.1 * low:
            mid = math.sqrt(low * high)
            low, high = (low, mid) if self._log_tail(mid) <= target else (mid, high)
        self.count = math.ceil(high / self.step) + 1
        self._log_truncation = self._log_tail((self.count - 1) * self.step)

    # --------------------------------------------------------------------------------- the samples
    def _sample(self) -> None:
        """|terms|, their phases at x = mean, and the bounds on their errors."""
        y = np.arange(self.count) * self.step
        log_phi = -0.5 * self.law.variance * y * y + 0.0j
        log_upper = -0.5 * self.law.variance * y * y
        self.mean = self.law.mean + self.law.variance * self.c
        self.log_mass, self.log_mass_error = SumLaw((), self.law.mean, self.law.variance).real(
            self.c, 0.0
        )
        turn = abs(self.mean)
        for (part, count), (decay, _) in zip(self.law.parts, self._decays, strict=True):
            nodes = part.nodes(self.c, float(y[-1]), self.nats)
            self._check(nodes.log_mass, decay, self.count * len(nodes.weights))
            x, error = nodes.transform(self.step, self.count)
            log_part = log1p_complex(x)
            log_phi += count * log_part
            log_upper += count * np.log(np.exp(log_part.real) + error + 8.0 * UNIT * np.abs(x))
            self.mean += count * nodes.centre
            turn += count * abs(nodes.centre)
            self.log_mass += count * nodes.log_mass
            self.log_mass_error += count * (nodes.log_mass_error + 4.0 * UNIT * abs(nodes.log_mass))
        self.log_mass_error += 2.0 * len(self.law.parts) * UNIT * abs(self.log_mass)
        self._finish(y, log_phi, log_upper, turn)

    def _check(self, log_mass: float, decay: Decay, work: int) -> None:
        if decay.log_mass is not None and abs(decay.log_mass - log_mass) > LOG_MASS_SLACK:
            raise NotCertified("The quick estimate of a cumulant is off; use the lattice method.")
        if work > MAX_WORK:
            raise NotCertified(
                f"The inversion integral would need {work:.1e} evaluations; the limit is "
                f"{MAX_WORK:.0e}. Use the lattice method."
            )

    def _finish(
        self, y: FloatArray, log_phi: FloatArray, log_upper: FloatArray, turn: float
    ) -> None:
        ratio = self.kernel.ratio(self.c, y)
        weight = np.full(len(y), self.step / math.pi)
        weight[0] *= 0.5
        self.y = y
        size = weight * np.abs(ratio)
        self.size = size * np.exp(log_phi.real)
        self.phase = log_phi.imag + np.angle(ratio)
        log_gap = np.minimum(log_phi.real - log_upper, 0.0)
        self.size_error = float(np.sum(size * np.exp(log_upper) * -np.expm1(log_gap)))
        # rounding of phases: turns of y * mean, logs and sums
        phase = UNIT * (8.0 * np.abs(self.phase) + 8.0 * y * turn + 40.0 + 8.0 * np.abs(log_phi))
        self.phase_error = float(np.sum(self.size * phase))
        self.phase_slope = float(np.sum(self.size * y)) * 8.0 * UNIT

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
        lead = self.log_mass - self.c * x + self.kernel.log_size(self.c)
        return lead + math.log(total), -self.c + turned / total

    def certified(self, x: float) -> Enclosure:
        """ln g(x) between two proved bounds."""
        angle = self.phase + self.y * (self.mean - x)
        total = float(np.sum(self.size * np.cos(angle)))
        log_lead = self.log_mass - self.c * x + self.kernel.log_size(self.c)
        truncation = math.exp(min(self._log_truncation, 700.0))
        rounding = self.phase_error + self.phase_slope * (abs(x) + abs(self.mean))
        alias = math.exp(min(self._log_aliases(x) - log_lead, 700.0))
        spent = truncation + self.size_error + rounding
        scale = self.log_mass_error + 8.0 * UNIT * (
            abs(self.log_mass) + abs(self.c * x) + abs(self.kernel.log_size(self.c)) + 4.0
        )
        low, high = total - spent - alias, total + spent
        value = max(total, 1e-300)
        return Enclosure(
            lower=log_lead + math.log(low) - scale if low > 0 else -math.inf,
            upper=log_lead + math.log(high) + scale,
            quadrature=self.size_error / value + self.log_mass_error,
            aliasing=alias / value,
            truncation=truncation / value,
            rounding=rounding / value + scale - self.log_mass_error,
        )
