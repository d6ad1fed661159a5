"""An upper bound on delta(epsilon) of composed sampled Gaussian steps in ball arithmetic (Arb).

Every number is a ball that contains the truth; quadrature is Arb's, whose error bound is proved.
Written apart from the library's own accountant, so that the two share no code.

One step, with r(s) = 1 - q + q e^u, u = mu s - mu^2/2, and G(w) = E_{N(0,1)}[r^w]:
    remove: E e^{zL} = G(1 + z),  L = ln r;      add: E e^{zL} = G(-z),  L = -ln r.

The sum: delta(eps) = (1/2 pi i) int e^{K(z) - z eps} / (z (z+1)) dz along z = c + iy, for any
c > 0. The trapezoidal sum with step h is exactly sum_k delta(eps + k P) e^{ckP}, P = 2 pi/h
(Poisson): all terms are >= 0, so the sum bounds delta from above whatever h is.

What the sum leaves out, h sum over y = nh >= Y of |phi(y)| / y^2, is bounded by a `Tail`.
phi(y) = E e^{(c+iy)L} / E e^{cL} of the total, a product of powers of the steps' phi_j. Bounds:
    near  g = |phi_j|^2 is the transform of a symmetric law, |g''| <= 2 Var_j, so between two points
          a distance h apart g <= max of both + Var_j h^2 / 4 (error of linear interpolation)
    far   |phi_j| <= out + v/y, one integration by parts (`SampledStep.far`), for all larger y
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from flint import acb, arb, ctx
from scipy.optimize import minimize_scalar

from tightrope.errors import NotCertified

TOO_SLOW = (
    "this law spreads too little mass over too many places for sums of balls, as with few steps, a "
    "small rate and little noise together. The two floating-point methods of `tightrope verify` "
    "still check the claim. To have it proved as well, claim a larger epsilon or delta, or run "
    "more steps with more noise"
)
MOST_EFFORT = 6_000.0  # in transforms at low frequency, of about 5 ms each: half a minute
# Half width of the quadrature in standard deviations: e^-(PAD^2/2) is far below all tolerances.
PAD = 16
_PIECES = 256
_MOST_BLOCKS = 3000
_BLOCK_BITS = 53  # blocks need few digits
_NEGLIGIBLE = 1e-60
_LOWS = (1, 0, -1, -2, -3, -5, -8)


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


def gaussian_delta(variance: arb) -> Callable[[arb], Any]:
    """delta(eps) = Phi(-eps/m + m/2) - e^eps Phi(-eps/m - m/2), m^2 = variance."""
    m = variance.sqrt()

    def delta(epsilon: arb) -> Any:
        hit = normal_tail(epsilon / m - m / 2)
        return upper(hit - epsilon.exp() * normal_tail(epsilon / m + m / 2))

    return delta


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

    def _ends(self, p: arb) -> tuple[int, int]:
        """Where the quadrature starts and stops; the tails beyond are bounded, not dropped."""
        return -PAD, int(max(0.0, float(p.mid()) * float(self.mu.mid()))) + PAD + 1

    def transform(self, z: acb | arb, tolerance: float | None = None) -> Any:
        """A ball around E e^{zL}, about as wide as `tolerance` (as narrow as can be if None)."""
        w = self.power(acb(z))
        low, high = self._ends(w.real)

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

    def rough(self, z: float) -> tuple[float, float, float]:
        """ln E e^{zL}, mean and variance of L tilted by z, in floating point: only to choose by."""
        spacing, loss, log_weight = self.tilted(z, 4001)
        weight = np.exp(log_weight - log_weight.max())
        mean = float(weight @ loss / weight.sum())
        variance = float(weight @ (loss - mean) ** 2 / weight.sum())
        log_mass = log_weight.max() + math.log(weight.sum() * spacing / math.sqrt(2 * math.pi))
        return log_mass, self.sign * mean, variance

    def tilted(self, z: float, points: int) -> tuple[float, Any, Any]:
        """A grid in s: its spacing, ln r, and the logarithm of the tilted density."""
        q, mu, w = float(self.rate.mid()), float(self.mu.mid()), float(self.power(z))
        s = np.linspace(-12.0, max(0.0, w * mu) + 12.0, points)
        loss = np.logaddexp(math.log1p(-q), math.log(q) + mu * s - mu * mu / 2)
        return s[1] - s[0], loss, w * loss - 0.5 * s * s

    def far(self, c: arb, low: int) -> tuple[Any, Any]:
        """(out, v) with |E e^{(c+iy)L}| / E e^{cL} <= out + v/y for all y > 0.

        One integration by parts on [low, high], where L is monotone with |L'| = q mu e^u / r:
        v = total variation and end values of g = density r^p / |L'|; `out` is the mass outside. A
        smaller `low` leaves less outside, and L is flatter there, so v is larger.
        """
        p = self.power(arb(c))
        mass, high = self.transform(c).real, self._ends(p)[1]
        out = upper((self.left_tail(p, low) + self.right_tail(p, high)) / mass)

        def weight(s: arb) -> tuple[Any, Any]:
            """g and its logarithmic derivative, over the ball s."""
            r, u = self.ratio(s), self.mu * s - self.mu**2 / 2
            g = _density(s) * r ** (p + 1) * (-u).exp() / (self.rate * self.mu)
            return g, -s + (p + 1) * self.mu * (self.rate * u.exp() / r) - self.mu

        width = arb(high - low) / _PIECES
        varied = weight(arb(low))[0] + weight(arb(high))[0]
        for piece in range(_PIECES):
            middle = arb(low) + width * (2 * piece + 1) / 2
            value, slope = weight(arb(middle.mid(), upper(width / 2)))
            varied += upper(value * abs(slope)) * width
        return out, upper(varied / mass)


def _gap(g: arb) -> float:
    return max(float((1 - g).mid()), 1e-14)


@final
class Tail:
    """Frequencies from some point on, cut into blocks and a last piece."""

    def __init__(
        self, steps: Sequence[tuple[SampledStep, int]], variance: arb, c: arb, step: arb
    ) -> None:
        self._steps, self._variance, self._c, self._step = steps, variance, c, step
        self._mass = [kind.transform(c).real for kind, _ in steps]
        self._far = [[kind.far(c, low) for low in _LOWS] for kind, _ in steps]
        self._spread = []  # bounds on the standard deviations of the tilted losses
        for kind, _ in steps:
            _, mean, curvature = kind.rough(float(c.mid()))
            reach = min(1.0, 0.1 / math.sqrt(curvature), float(c.mid()) / 2)
            self._spread.append(kind.spread(c, mean, reach))

    def beyond(self, start: arb) -> Any:
        """h sum of |phi(y)| / y^2 over the points y >= start."""
        total, at, ends = arb(0), start, self._at(start, None)
        for _ in range(_MOST_BLOCKS):
            last = self._size_far(at) * (self._step / at**2 + 1 / at)
            near = self._gaussian(at)  # of the next block, were it made
            for (_, times), g in zip(self._steps, ends, strict=True):
                near *= upper(g + (1 - g) / 4) ** (times / arb(2))
            if last < arb(_NEGLIGIBLE) or not self._size_far(at) > near:
                return upper(total + last)
            # So wide that interpolation loses a quarter of each gap 1 - g.
            rows = zip(ends, self._spread, strict=True)
            width = min(math.sqrt(_gap(g)) / float(spread.mid()) for g, spread in rows)
            after = arb(float((at + width).mid()))
            reached = self._at(after, ends)
            share = self._step / at**2 + 1 / at - 1 / after  # h sum of 1/y^2 over the block
            total += self._between(at, after, ends, reached) * share
            at, ends = after, reached
        raise NotCertified(TOO_SLOW)

    def _at(self, y: arb, before: Sequence[Any] | None) -> list[Any]:
        """|phi_j(y)|^2 of each step, from above; sharp compared with the gap 1 - g before it."""
        found = []
        for row, ((kind, _), mass) in enumerate(zip(self._steps, self._mass, strict=True)):
            wide = None if before is None else _gap(before[row]) * float(mass.mid()) / 100
            with ctx.workprec(_BLOCK_BITS):
                size = abs(kind.transform(acb(self._c, y), wide)) / mass
                found.append(upper(size**2).min(1))
        return found

    def _between(self, at: arb, after: arb, one: Sequence[Any], other: Sequence[Any]) -> Any:
        size, width = self._gaussian(at), after - at
        rows = zip(self._steps, self._spread, one, other, strict=True)
        for (_, times), spread, left, right in rows:
            most = left.max(right) + (spread * width) ** 2 / 4
            size *= upper(most).min(1) ** (times / arb(2))
        return upper(size)

    def _size_far(self, at: arb) -> Any:
        size = self._gaussian(at)
        for (_, times), ways in zip(self._steps, self._far, strict=True):
            best = arb(1)
            for out, v in ways:
                best = best.min(upper(out + v / at))
            size *= best**times
        return upper(size)

    def _gaussian(self, y: arb) -> Any:
        return (-self._variance * y**2 / 2).exp()


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
            total += count * np.array(step.rough(z))
        return float(total[0]), float(total[1]), float(total[2])

    def decay(self, c: float, y: float) -> float:
        """ln |E e^{(c+iy)L}| / E e^{cL}."""
        total = -0.5 * float(self.variance.mid()) * y * y
        for step, count in self.steps:
            _, loss, log_weight = step.tilted(c, 10001)
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
        # delta(eps - P) e^{-cP} <= e^{-cP}; delta(eps + P) e^{cP} by Chernoff at other tilts.
        tilts = (c * np.geomspace(1.02, 6.0, 40)).tolist()
        above = min((law.rough(t)[0] - t * epsilon + need) / (t - c) for t in tilts)
        reach = Reach(c, max(need / c, above), 1 / math.sqrt(law.rough(c)[2] + 1 / c**2))
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


@final
class RigorousLine:
    """The integrand on one line, sampled once; `delta_upper` then answers near one epsilon."""

    def __init__(self, law: Composition, reach: Reach) -> None:
        self._law, self.c = law, arb(float(f"{reach.c:.6g}"))
        self._step = 2 * arb.pi() / arb(float(f"{reach.period:.6g}"))
        self._points = [acb(self.c, n * self._step) for n in range(reach.points)]
        self._values = [self._log_transform(z).exp() / (z * (z + 1)) for z in self._points]
        # What is left out: (h/pi) sum_{n >= points} |e^{K(c + iy)}| / y^2, y = nh.
        lead = self._log_transform(acb(self.c)).real.exp() / arb.pi()
        tail = Tail(law.steps, law.variance, self.c, self._step)
        self._rest = upper(lead * tail.beyond(arb((self._step * reach.points).lower())))

    def _log_transform(self, z: acb) -> Any:
        """K(z) up to a multiple of 2 pi i, which exp does not see."""
        total = self._law.variance * z * (z + 1) / 2
        for step, count in self._law.steps:
            total += count * step.transform(z).log()
        return total

    def delta_upper(self, epsilon: arb) -> Any:
        """An upper bound on delta(epsilon)."""
        pairs = zip(self._points, self._values, strict=True)
        terms = [(value * (-z * epsilon).exp()).real for z, value in pairs]
        total = (terms[0] / 2 + sum(terms[1:], arb(0))) * self._step / arb.pi()
        return upper(total + self._rest * (-self.c * epsilon).exp())
