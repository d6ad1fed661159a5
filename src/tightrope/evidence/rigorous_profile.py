"""An upper bound on delta(epsilon) of a composition in ball arithmetic.

delta(eps) = (1/2 pi i) int e^{K(z) - z eps} / (z (z+1)) dz along z = c + iy, for any c > 0. The
trapezoidal sum with step h is exactly sum_k delta(eps + k P) e^{ckP}, P = 2 pi/h (Poisson): all
terms are >= 0, so the sum bounds delta from above whatever h is. What is left out of the sum beyond
frequency Y is bounded by |E e^{(c+iy)L}|:
    Y..far   a grid of balls and the Lipschitz constant of |E e^{iyL}|, the standard deviation
    far..    out + v/y (integration by parts)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flint import acb, arb, ctx
from scipy.optimize import minimize_scalar

from tightrope.errors import NotCertified
from tightrope.evidence.rigorous_law import SampledStep, upper

__all__ = ["Composition", "Line", "SIZES"]

# Period of the trapezoidal sum in standard deviations of the total loss, and largest frequency in
# their inverse: for a total close to a Gaussian, and for laws with heavier tails.
SIZES = ((13.0, 10.0), (24.0, 24.0), (45.0, 60.0))
_MOST_BLOCKS = 1000
_BLOCK_BITS = 53  # blocks need few digits


@final
@dataclass(frozen=True)
class Composition:
    """Sampled steps with their counts, and the variance (mu^2) of all plain Gaussians."""

    steps: tuple[tuple[SampledStep, int], ...]
    variance: Any

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

    def saddle(self, epsilon: float) -> float:
        def height(log_z: float) -> float:
            z = math.exp(log_z)
            return self.rough(z)[0] - z * epsilon - log_z - math.log1p(z)

        found = minimize_scalar(height, bounds=(-7.0, 9.0), method="bounded")
        return math.exp(found.x)


@final
class Line:
    """The integrand on one line, sampled once; `delta_upper` then answers near one epsilon."""

    def __init__(self, law: Composition, epsilon: float, size: tuple[float, float]) -> None:
        self._law = law
        c = law.saddle(epsilon)
        self.c = arb(float(f"{c:.6g}"))
        curvature = law.rough(c)[2] + 1 / c**2 + 1 / (1 + c) ** 2
        scale = math.sqrt(curvature)
        self._step = 2 * arb.pi() / arb(round(size[0] * scale, 6))
        count = math.ceil(size[1] / scale / float(self._step.mid())) + 1
        self._points = [acb(self.c, n * self._step) for n in range(count)]
        self._values = [self._integrand(z) for z in self._points]
        self._rest = self._beyond(count)

    def _log_transform(self, z: Any) -> Any:
        """K(z) up to a multiple of 2 pi i, which exp does not see."""
        total = self._law.variance * z * (z + 1) / 2
        for step, count in self._law.steps:
            total += count * step.transform(z).log()
        return total

    def _integrand(self, z: Any) -> Any:
        return self._log_transform(z).exp() / (z * (z + 1))

    def delta_upper(self, epsilon: Any) -> Any:
        """An upper bound on delta(epsilon)."""
        terms = [
            (value * (-z * epsilon).exp()).real
            for z, value in zip(self._points, self._values, strict=True)
        ]
        total = (terms[0] / 2 + sum(terms[1:], arb(0))) * self._step / arb.pi()
        return upper(total + self._rest * (-self.c * epsilon).exp())

    # --- what the sum leaves out -----------------------------------------------------------------
    def _beyond(self, count: int) -> Any:
        """A bound on (h/pi) sum_{n >= count} |e^{K(c + iy)}| / y^2, y = nh."""
        lead = self._log_transform(acb(self.c)).real.exp() / arb.pi()
        start = arb((self._step * count).lower())
        far = [(step.far(self.c), times) for step, times in self._law.steps]
        stop = max([float(4 * v.mid()) for (_, v), _ in far], default=0.0)
        total, at = arb(0), start
        if stop > float(at.mid()):
            blocks = _Blocks(self._law.steps, self.c)
            while float(at.mid()) < stop:
                after, size = blocks.next(at)
                total += size * self._gaussian(at) * self._share(at, after)
                at = after
        return upper(lead * (total + self._last(at, far)))

    def _share(self, at: Any, after: Any) -> Any:
        """h sum of 1/y^2 over the points of [at, after)."""
        return self._step / at**2 + 1 / at - 1 / after

    def _gaussian(self, y: Any) -> Any:
        return (-self._law.variance * y**2 / 2).exp()

    def _last(self, at: Any, far: Sequence[tuple[tuple[Any, Any], int]]) -> Any:
        size = self._gaussian(at)
        for (out, v), times in far:
            size *= (out + v / at).min(1) ** times
        return size * (self._step / at**2 + 1 / at)


@final
class _Blocks:
    """Frequencies cut into blocks on each of which |E e^{iyL}|^count has a proved bound."""

    def __init__(self, steps: Sequence[tuple[SampledStep, int]], c: Any) -> None:
        self._steps, self._c, self._used = steps, c, 0
        self._mass = [step.transform(c).real for step, _ in steps]
        self._slope = []
        for step, _ in steps:
            alone = Composition(((step, 1),), arb(0))
            _, mean, curvature = alone.rough(float(c.mid()))
            reach = min(1.0, 0.1 / math.sqrt(curvature), float(c.mid()) / 2)
            self._slope.append(step.spread(c, mean, reach))

    def next(self, at: Any) -> tuple[Any, Any]:
        """(end of the block that starts at `at`, bound on the product of the powers)."""
        self._used += 1
        if self._used > _MOST_BLOCKS:
            raise NotCertified("the transform of the loss decays too slowly for a proof in balls")
        width, size = math.inf, arb(1)
        found = []
        for (step, times), mass, slope in zip(self._steps, self._mass, self._slope, strict=True):
            with ctx.workprec(_BLOCK_BITS):
                value = upper(abs(step.transform(acb(self._c, at))) / mass).min(1)
            found.append((value, times, slope))
            gap = float((1 - value).mid())
            width = min(width, max(gap, 1e-12) / (2 * float(slope.mid())))
        after = arb(float((at + width).mid()))
        for value, times, slope in found:
            size *= (value + slope * (after - at)).min(1) ** times
        return after, upper(size)
