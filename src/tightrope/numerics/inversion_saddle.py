"""Where the line of the inversion integral should run: the saddle point of e^{K(z) - zx} h(z).

Estimates only; any line on the right side of the poles is valid (theory D(i).1).
"""

from __future__ import annotations

import math

from tightrope.numerics.inversion_kernel import Kernel
from tightrope.numerics.inversion_law import SumLaw

__all__ = ["saddle", "saddle_of_level", "log_estimate"]

_FAR = 1e9  # no tilt beyond this is tried


def log_estimate(law: SumLaw, kernel: Kernel, c: float) -> tuple[float, float, float]:
    """The x whose saddle is c, the saddle-point estimate of ln g(x), and F''(c)."""
    k, k1, k2 = law.moments(c)
    first, second = kernel.slope(c)
    x, curvature = k1 + first, k2 + second
    log_g = k - c * x + kernel.log_size(c) - 0.5 * math.log(2.0 * math.pi * curvature)
    return x, log_g, curvature


def _search(step_at, start: float, tolerance: float) -> float:  # type: ignore[no-untyped-def]
    """Safeguarded Newton for a step function that is positive left of the root, in ln distance."""
    low, high, at = -math.inf, math.inf, start
    for _ in range(60):
        move = max(-1.5, min(1.5, step_at(at)))
        if move > 0:
            low = max(low, at)
        else:
            high = min(high, at)
        new = at + move
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - at) < tolerance or new > math.log(_FAR):
            return min(new, math.log(_FAR))
        at = new
    return at


def saddle(law: SumLaw, kernel: Kernel, x: float, start: float = 0.0) -> float:
    """c with K'(c) - x + (ln|h|)'(c) = 0, to four digits of its distance from the pole."""
    side, edge = kernel.side, kernel.edge

    def step_at(log_distance: float) -> float:
        distance = math.exp(log_distance)
        c = edge + side * distance
        _, k1, k2 = law.moments(c)
        first, second = kernel.slope(c)
        slope, curvature = side * (k1 - x + first), k2 + second
        return -slope / max(curvature * distance + slope, 0.5 * curvature * distance)

    return edge + side * math.exp(_search(step_at, start, 1e-3))


def saddle_of_level(law: SumLaw, kernel: Kernel, log_level: float, start: float = 0.0) -> float:
    """c at which the saddle-point estimate of g equals e^log_level."""
    side, edge = kernel.side, kernel.edge

    def step_at(log_distance: float) -> float:
        distance = math.exp(log_distance)
        _, log_g, curvature = log_estimate(law, kernel, edge + side * distance)
        # d ln g / d x = -c and dx/dc = F'': d ln g / d ln c = -c^2 F'' (for the pole at 0)
        return (log_g - log_level) / (distance * distance * curvature)

    return edge + side * math.exp(_search(step_at, start, 1e-3))
