"""An upper bound on delta(epsilon) of a composition in ball arithmetic.

delta(eps) = (1/2 pi i) int e^{K(z) - z eps} / (z (z+1)) dz along z = c + iy, for any c > 0. The
trapezoidal sum with step h is exactly sum_k delta(eps + k P) e^{ckP}, P = 2 pi/h (Poisson): all
terms are >= 0, so the sum bounds delta from above whatever h is. What is left out of the sum beyond
the last frequency is bounded by |E e^{(c+iy)L}| (see `rigorous_tail`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from flint import acb, arb
from scipy.optimize import minimize_scalar

from tightrope.evidence.rigorous_law import SampledStep, upper
from tightrope.evidence.rigorous_tail import Tail

__all__ = ["Composition", "RigorousLine", "MOST_EFFORT", "Reach"]

# In transforms at low frequency, of about 5 ms each: half a minute.
MOST_EFFORT = 6_000.0


@final
@dataclass(frozen=True)
class Composition:
    """Sampled steps with their counts, and the variance (mu^2) of all plain Gaussians."""

    steps: tuple[tuple[SampledStep, int], ...]
    variance: Any

    def never_above(self, epsilon: arb) -> bool:
        """Is every loss certainly at most epsilon? Then delta(epsilon) = 0."""
        if self.variance > 0 or any(step.sign > 0 for step, _ in self.steps):
            return False
        largest = sum((-count * (1 - step.rate).log() for step, count in self.steps), arb(0))
        return bool(largest <= epsilon)

    # --- floating point, only to choose where to integrate: any choice gives a valid bound ------
    def rough(self, z: float) -> tuple[float, float, float]:
        """K, K', K'' at a real z."""
        v = float(self.variance.mid())
        total = np.array([0.5 * v * z * (z + 1), v * (z + 0.5), v])
        for step, count in self.steps:
            q, mu = float(step.rate.mid()), float(step.mu.mid())
            w = float(step.power(z))
            s = np.linspace(-12.0, max(0.0, w * mu) + 12.0, 4001)
            loss = np.logaddexp(math.log1p(-q), math.log(q) + mu * s - mu * mu / 2)
            log_weight = w * loss - 0.5 * s * s
            weight = np.exp(log_weight - log_weight.max())
            mean = float(weight @ loss / weight.sum())
            spread = float(weight @ (loss - mean) ** 2 / weight.sum())
            log_mass = log_weight.max() + math.log(
                weight.sum() * (s[1] - s[0]) / math.sqrt(2 * math.pi)
            )
            total += count * np.array([log_mass, step.sign * mean, spread])
        return float(total[0]), float(total[1]), float(total[2])

    def decay(self, c: float, y: float) -> float:
        """ln |E e^{(c+iy)L}| / E e^{cL}."""
        total = -0.5 * float(self.variance.mid()) * y * y
        for step, count in self.steps:
            q, mu = float(step.rate.mid()), float(step.mu.mid())
            w = float(step.power(c))
            s = np.linspace(-12.0, max(0.0, w * mu) + 12.0, 10001)
            loss = np.logaddexp(math.log1p(-q), math.log(q) + mu * s - mu * mu / 2)
            log_weight = w * loss - 0.5 * s * s
            weight = np.exp(log_weight - log_weight.max())
            share = abs(weight @ np.exp(1j * y * loss)) / weight.sum()
            total += count * math.log(max(share, 1e-300))
        return total

    def saddle(self, epsilon: float) -> float:
        def height(log_z: float) -> float:
            z = math.exp(log_z)
            return self.rough(z)[0] - z * epsilon - log_z - math.log1p(z)

        found = minimize_scalar(height, bounds=(-7.0, 9.0), method="bounded")
        return math.exp(found.x)


@final
@dataclass(frozen=True)
class Reach:
    """Where to integrate, chosen in floating point: any choice gives a valid bound.

    c: abscissa of the line. period: of the trapezoidal sum, so long that its aliases are a share
    `tolerance` of delta. frequency: where the integrand has fallen to that share.
    """

    c: float
    period: float
    frequency: float

    @staticmethod
    def of(law: Composition, epsilon: float, delta: float, tolerance: float) -> Reach:
        c = law.saddle(epsilon)
        need = -math.log(delta * tolerance)
        lead = law.rough(c)[0] - c * epsilon + need
        reach = Reach(c, _period(law, c, epsilon, need), 1 / math.sqrt(law.rough(c)[2] + 1 / c**2))
        while lead + law.decay(c, reach.frequency) - math.log(reach.frequency) > 0.0:
            reach = replace(reach, frequency=1.15 * reach.frequency)
            if reach.effort > MOST_EFFORT:
                break
        return reach

    @property
    def points(self) -> int:
        return math.ceil(self.frequency * self.period / (2 * math.pi)) + 1

    @property
    def effort(self) -> float:
        """Faster oscillations take longer to integrate."""
        return self.points * (1.0 + self.frequency / 100.0)


def _period(law: Composition, c: float, epsilon: float, need: float) -> float:
    """delta(eps - P) e^{-cP} <= e^{-cP}; delta(eps + P) e^{cP} by Chernoff at other tilts."""
    tilts = c * np.geomspace(1.02, 6.0, 40)
    above = [(law.rough(t)[0] - t * epsilon + need) / (t - c) for t in tilts.tolist()]
    return max(need / c, float(min(above)))


@final
class RigorousLine:
    """The integrand on one line, sampled once; `delta_upper` then answers near one epsilon."""

    def __init__(self, law: Composition, reach: Reach) -> None:
        self._law = law
        self.c = arb(float(f"{reach.c:.6g}"))
        self._step = 2 * arb.pi() / arb(float(f"{reach.period:.6g}"))
        count = reach.points
        self._points = [acb(self.c, n * self._step) for n in range(count)]
        self._values = [self._integrand(z) for z in self._points]
        self._rest = self._beyond(count)

    def _log_transform(self, z: acb) -> Any:
        """K(z) up to a multiple of 2 pi i, which exp does not see."""
        total = self._law.variance * z * (z + 1) / 2
        for step, count in self._law.steps:
            total += count * step.transform(z).log()
        return total

    def _integrand(self, z: acb) -> Any:
        return self._log_transform(z).exp() / (z * (z + 1))

    def delta_upper(self, epsilon: arb) -> Any:
        """An upper bound on delta(epsilon)."""
        terms = [
            (value * (-z * epsilon).exp()).real
            for z, value in zip(self._points, self._values, strict=True)
        ]
        total = (terms[0] / 2 + sum(terms[1:], arb(0))) * self._step / arb.pi()
        return upper(total + self._rest * (-self.c * epsilon).exp())

    def _beyond(self, count: int) -> Any:
        """A bound on (h/pi) sum_{n >= count} |e^{K(c + iy)}| / y^2, y = nh."""
        lead = self._log_transform(acb(self.c)).real.exp() / arb.pi()
        tail = Tail(self._law.steps, self._law.variance, self.c, self._step)
        return upper(lead * tail.beyond(arb((self._step * count).lower())))
