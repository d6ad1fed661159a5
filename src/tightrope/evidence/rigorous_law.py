"""One Poisson-sampled Gaussian step in ball arithmetic (Arb): its transform and how it decays.

Every number is a ball that contains the truth; quadrature is Arb's, whose error bound is proved.
Written apart from the library's own accountant, so that the two share no code.

With r(s) = 1 - q + q e^u, u = mu s - mu^2/2, and G(w) = E_{N(0,1)}[r^w]:
    remove: E e^{zL} = G(1 + z),  L = ln r;      add: E e^{zL} = G(-z),  L = -ln r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flint import acb, arb

__all__ = ["SampledStep", "normal_tail", "upper", "PAD"]

# Half width of the quadrature in standard deviations: e^-(PAD^2/2) is far below all tolerances.
PAD = 16
_PIECES = 256


def upper(value: arb) -> Any:
    """The upper end of a real ball, as an exact ball."""
    return arb(value.upper())


def normal_tail(x: arb | int) -> Any:
    """P(N(0,1) > x)."""
    return (arb(x) / arb(2).sqrt()).erfc() / 2


def _density(s: acb | arb) -> Any:
    return (-s * s / 2).exp() / (2 * arb.pi()).sqrt()


def _positive(p: arb) -> bool:
    """The sign of p, which must be certain."""
    assert p > 0 or p <= 0
    return bool(p > 0)


@final
@dataclass(frozen=True)
class SampledStep:
    """rate and mu as balls; `sign` is +1 for "remove" and -1 for "add"."""

    rate: Any
    mu: Any
    sign: int

    def power(self, z: acb | arb | float) -> Any:
        """The w with E e^{zL} = G(w)."""
        return 1 + z if self.sign > 0 else -z

    def ratio(self, s: acb | arb) -> Any:
        return 1 - self.rate + self.rate * (self.mu * s - self.mu**2 / 2).exp()

    def _ends(self, w: acb | arb) -> tuple[int, int]:
        """Where the quadrature starts and stops; the tails beyond are bounded, not dropped."""
        shift = max(0.0, float((w.real if isinstance(w, acb) else w).mid()) * float(self.mu.mid()))
        return -PAD, int(shift) + PAD + 1

    def transform(self, z: acb | arb, tolerance: float | None = None) -> Any:
        """A ball around E e^{zL}, about as wide as `tolerance` (as narrow as can be if None)."""
        w = self.power(acb(z))
        low, high = self._ends(w)

        def integrand(s: acb, analytic: bool) -> Any:
            return (w * self.ratio(s).log(analytic=analytic)).exp() * _density(s)

        wide = None if tolerance is None else arb(tolerance)
        inside = acb.integral(integrand, low, high, abs_tol=wide, rel_tol=wide)
        rest = self.left_tail(w.real, low) + self.right_tail(w.real, high)
        return inside + acb(arb(0, rest), arb(0, rest))

    # --- bounds on E_N[r^p; s < low] and E_N[r^p; s > high], p real ----------------------------
    def left_tail(self, p: arb, low: arb | int) -> Any:
        largest = self.ratio(arb(low)).max(1) if _positive(p) else 1 - self.rate
        return upper(normal_tail(-arb(low)) * largest**p)

    def right_tail(self, p: arb, high: arb | int) -> Any:
        """p > 0: r <= e^u beyond mu/2, a shifted Gaussian; else r >= 1 - q."""
        if not _positive(p):
            return upper(normal_tail(high) * (1 - self.rate) ** p)
        assert self.mu / 2 < high
        size = (p * (p - 1) * self.mu**2 / 2).exp()
        return upper(size * normal_tail(high - p * self.mu))

    # --- how the tilted transform decays -------------------------------------------------------
    def spread(self, c: arb, mean: float, step: float) -> Any:
        """A bound on the standard deviation of L under the law tilted by c, about `mean`.

        step^2 (L - mean)^2 / 2 <= cosh(step (L - mean)) - 1, whose mean is made of transforms.
        """
        m, a = arb(mean), arb(step)
        up = self.transform(c + a).real * (-a * m).exp()
        down = self.transform(c - a).real * (a * m).exp()
        excess = (up + down) / (2 * self.transform(c).real) - 1
        return (upper(excess).max(0) * 2).sqrt() / a

    def moments(self, c: float) -> tuple[float, float]:
        """Mean and variance of the loss tilted by c, in floating point: only to choose by."""
        q, mu, w = float(self.rate.mid()), float(self.mu.mid()), float(self.power(c))
        s = np.linspace(-12.0, max(0.0, w * mu) + 12.0, 4001)
        loss = np.logaddexp(math.log1p(-q), math.log(q) + mu * s - mu * mu / 2)
        log_weight = w * loss - 0.5 * s * s
        weight = np.exp(log_weight - log_weight.max())
        mean = float(weight @ loss / weight.sum())
        return self.sign * mean, float(weight @ (loss - mean) ** 2 / weight.sum())

    def far(self, c: arb, low: int) -> tuple[Any, Any]:
        """(out, v) with |E e^{(c+iy)L}| / E e^{cL} <= out + v/y for all y > 0.

        One integration by parts on [low, high], where L is monotone with |L'| = q mu e^u / r:
        v = total variation and end values of density / |L'|; `out` is the mass outside. A smaller
        `low` leaves less outside, and L is flatter there, so v is larger.
        """
        p = self.power(arb(c))
        mass, high = self.transform(c).real, self._ends(p)[1]
        out = upper((self.left_tail(p, low) + self.right_tail(p, high)) / mass)
        width = arb(high - low) / _PIECES
        varied = self._weight(arb(low), p)[0] + self._weight(arb(high), p)[0]
        for piece in range(_PIECES):
            middle = arb(low) + width * (2 * piece + 1) / 2
            value, slope = self._weight(arb(middle.mid(), upper(width / 2)), p)
            varied += upper(value * abs(slope)) * width
        return out, upper(varied / mass)

    def _weight(self, s: arb, p: arb) -> tuple[Any, Any]:
        """g = density r^p / |L'| and its logarithmic derivative, over the ball s."""
        r, u = self.ratio(s), self.mu * s - self.mu**2 / 2
        share = self.rate * u.exp() / r
        g = _density(s) * r ** (p + 1) * (-u).exp() / (self.rate * self.mu)
        return g, -s + (p + 1) * self.mu * share - self.mu
