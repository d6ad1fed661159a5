"""Independent sums of random variables, known through the cumulants of their parts.

A law F on the real line has mass at most 1 and K(z) = ln int e^{zx} dF(x). A family is several laws
that are treated in one go, each taken a number of times.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import NotCertified
from tightrope.numerics.quadrature import FloatArray
from tightrope.numerics.rounding import UNIT

MAX_WORK = 2e8  # frequencies x points of one family


class AbstractFamily(ABC):
    """K on the real line (quick or proved), and the laws tilted by e^{cx} as points."""

    counts: FloatArray  # how many times each law is taken

    @property
    def max_tilt(self) -> float:
        """No tilt beyond this size is to be asked for."""
        return 1e9

    @abstractmethod
    def values(self, tilts: FloatArray) -> FloatArray:
        """Sum of counts * K at several real tilts; an estimate, for searching only."""

    @abstractmethod
    def moments(self, tilt: float) -> tuple[float, float, float]:
        """Sums of counts * (K, K', K'') at a real tilt; an estimate, for searching only."""

    @abstractmethod
    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        """The tilted laws as points, right to e^-nats up to the given frequency (proved)."""

    def log_noise(self, tilts: FloatArray) -> FloatArray:
        """ln of the error of `nodes` that no precision asked for makes smaller, in units of M."""
        return np.full(len(tilts), -np.inf)

    def fewest_points(self, tilt: float, frequency: float) -> float:
        """Fewer than `nodes` will have, roughly: to refuse too much work before it is begun."""
        return 0.0

    @abstractmethod
    def decay(self, tilt: float) -> Decay:
        """Proved bounds on |M(tilt + iy)/M(tilt)|, M = e^K."""

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        """K of each law at a real tilt and a proved bound on its error."""
        at = self.nodes(tilt, 0.0, nats)
        return at.log_mass, at.log_mass_error

    def nodes_and_real(
        self, tilt: float, frequency: float, nats: float, others: tuple[float, ...], coarse: float
    ) -> tuple[TiltedNodes, list[tuple[FloatArray, FloatArray]]]:
        """`nodes` at one tilt and `real`, to e^-coarse, at others."""
        real = [self.real(other, coarse) for other in others]
        return self.nodes(tilt, frequency, nats), real


@final
@dataclass(frozen=True)
class Samples:
    """M(c + iy)/M(c) = e^{iy mean} amplitude +- error at y = 0, step, ...; ln M(c) = log_mass.

    turn: sum of the sizes of what was added up to `mean`, for its rounding. real: ln M and its
    error at other real tilts.
    """

    log_mass: float
    log_mass_error: float
    mean: float
    turn: float
    amplitude: ComplexArray
    error: FloatArray
    real: tuple[tuple[float, float], ...]


@final
@dataclass(frozen=True)
class Wanted:
    """Frequencies 0, step, ... on the line, right to e^-nats; the law at other real tilts."""

    step: float
    count: int
    nats: float
    tilts: tuple[float, ...] = ()
    coarse: float = 0.0  # nats at the other tilts
    work: float = MAX_WORK

    @property
    def y(self) -> FloatArray:
        return np.arange(self.count, dtype=np.float64) * self.step


@final
@dataclass(frozen=True)
class SumLaw:
    """Families of laws, plus a normal part of the given mean and variance."""

    parts: tuple[AbstractFamily, ...]
    mean: float = 0.0
    variance: float = 0.0

    @property
    def steps(self) -> float:
        return sum(float(np.sum(part.counts)) for part in self.parts)

    @property
    def max_tilt(self) -> float:
        return min((part.max_tilt for part in self.parts), default=1e9)

    def values(self, tilts: FloatArray) -> FloatArray:
        total = self.mean * tilts + 0.5 * self.variance * tilts * tilts
        for part in self.parts:
            total = total + part.values(tilts)
        return total

    def log_noise(self, tilts: FloatArray) -> FloatArray:
        """ln of the error of M, in units of M, that comes with the parts."""
        total = np.full(len(tilts), -np.inf)
        for part in self.parts:
            steps = math.log(float(np.sum(part.counts)))
            total = np.logaddexp(total, part.log_noise(tilts) + steps)
        return np.asarray(total)

    def moments(self, tilt: float) -> tuple[float, float, float]:
        k = self.mean * tilt + 0.5 * self.variance * tilt * tilt
        k1, k2 = self.mean + self.variance * tilt, self.variance
        for part in self.parts:
            at = part.moments(tilt)
            k, k1, k2 = k + at[0], k1 + at[1], k2 + at[2]
        return k, k1, k2

    def normal_part(self, tilt: float) -> tuple[float, float]:
        """The cumulant of the normal part, and its rounding error."""
        value = self.mean * tilt + 0.5 * self.variance * tilt * tilt
        return value, 4.0 * UNIT * (abs(self.mean * tilt) + self.variance * tilt * tilt)

    def real(self, tilt: float, nats: float) -> tuple[float, float]:
        """The cumulant of the sum and a bound on its error; nats is the precision of a part."""
        return self.real_sum(tilt, [part.real(tilt, nats) for part in self.parts])

    def real_sum(
        self, tilt: float, found: list[tuple[FloatArray, FloatArray]]
    ) -> tuple[float, float]:
        """The cumulant of the sum from those of the laws of each part."""
        value, error = self.normal_part(tilt)
        for part, (k, k_error) in zip(self.parts, found, strict=True):
            value += float(part.counts @ k)
            units = 8.0 + len(k)  # a dot product rounds once for each term
            error += float(part.counts @ (k_error + units * UNIT * np.abs(k)))
        return value, error + len(self.parts) * UNIT * abs(value)

    def on_line(self, tilt: float) -> SumOnLine:
        return SumOnLine(self, tilt, tuple(part.decay(tilt) for part in self.parts))


@final
@dataclass(frozen=True)
class SumOnLine:
    """A SumLaw on the line Re z = tilt."""

    law: SumLaw
    tilt: float
    decays: tuple[Decay, ...]

    def log_decay(self, y: FloatArray) -> FloatArray:
        """ln of a proved bound on |M(c + iy')/M(c)| for every y' >= y, for several y."""
        total = -0.5 * self.law.variance * y * y
        for decay, part in zip(self.decays, self.law.parts, strict=True):
            total = total + np.log(decay.bounds(y)) @ part.counts
        return total

    def sample(self, wanted: Wanted) -> Samples:
        law, y, count = self.law, wanted.y, wanted.count
        log_phi = -0.5 * law.variance * y * y + 0.0j
        spent, gap = np.abs(log_phi), np.zeros(count)  # sizes added up; ln(upper/|phi|)
        log_mass, mass_error = law.normal_part(self.tilt)
        mean = law.mean + law.variance * self.tilt
        turn, units = abs(mean), 8.0
        others: list[list[tuple[FloatArray, FloatArray]]] = []
        for part, decay in zip(law.parts, self.decays, strict=True):
            times, units = part.counts, max(units, 8.0 + len(part.counts))
            _check_size(part.fewest_points(self.tilt, float(y[-1])), wanted)
            nodes, real = part.nodes_and_real(
                self.tilt, float(y[-1]), wanted.nats, wanted.tilts, wanted.coarse
            )
            others.append(real)
            _check_size(nodes.size, wanted)
            if decay.log_mass is not None:
                off = float(np.max(np.abs(decay.log_mass - nodes.log_mass)))
                if off > LOG_MASS_SLACK:
                    raise NotCertified(
                        "The quick estimate of a cumulant is off; use the lattice method."
                    )
            x, error = nodes.transform(wanted.step, count)
            log_part = log1p_complex(x)
            log_phi += times @ log_part
            spent += times @ np.abs(log_part)
            gap += times @ np.log1p((error + 8.0 * UNIT * np.abs(x)) * np.exp(-log_part.real))
            mean += float(times @ nodes.centre)
            turn += float(times @ np.abs(nodes.centre))
            log_mass += float(times @ nodes.log_mass)
            own = nodes.log_mass_error + units * UNIT * np.abs(nodes.log_mass)
            mass_error += float(times @ own)
        mass_error += 2.0 * len(law.parts) * UNIT * abs(log_mass)
        # |a^T - b^T| <= (|a| + e)^T - |a|^T, and the rounding of exponent and phase
        rounding = 2.0 * units * UNIT * (4.0 + spent)
        error = np.exp(np.minimum(log_phi.real + gap, 0.0)) * (rounding - np.expm1(-gap))
        sums = tuple(
            law.real_sum(tilt, [real[i] for real in others]) for i, tilt in enumerate(wanted.tilts)
        )
        return Samples(log_mass, mass_error, mean, turn, np.exp(log_phi), error, sums)


def _check_size(points: float, wanted: Wanted) -> None:
    if wanted.count * points > wanted.work:
        raise NotCertified(
            f"The inversion integral would need {wanted.count * points:.1e} evaluations; the "
            f"limit is {wanted.work:.0e}. Use the lattice method."
        )


# ---- Tilted laws as weighted points, and their transforms on a uniform grid of frequencies -------
# With M(z) = int e^{zx} dF(x) and points x_j of weight p_j (the tilted law at c, summing to 1),
# M(c + iy)/M(c) = e^{i y m} (1 + sum_j p_j (e^{iy d_j} - 1)),   d_j = x_j - m,  m any centre.
# Writing frequency n dy as a dy + b A dy, e^{iy d} - 1 = u + v + u v with u, v small: thin tables
# and one matrix product replace a table of all frequencies, and no digit is lost for |y d| << 1.
# The thin tables are made from thinner ones in the same way, so that few sines are taken. Every
# array has one row for each law of a family.
ComplexArray = NDArray[np.complex128]
# e^{iyd} - 1 (laws, frequencies, points), and sum_j p_j (e^{iy d_j} - 1 - iy d_j)
_Turned = tuple[ComplexArray, ComplexArray]
_TABLE = 1 << 15  # entries of a table, to stay within the cache
_FEW = 12  # frequencies for which sines cost less than products
_SMALL, _UNKNOWN = 0.01, 1e100  # -ln(1 - x) <= 1.01 x up to the first
_NEGLIGIBLE = 1e-26  # weights left out; what they add up to counts as an error


def log1p_complex(x: ComplexArray) -> ComplexArray:
    """ln(1 + x) on the principal branch, accurate for small |x|; ln of 0 becomes ln 1e-300."""
    square = x.real * (2.0 + x.real) + x.imag * x.imag  # |1+x|^2 - 1
    modulus = 0.5 * np.log1p(np.maximum(square, -0.75))
    near = square > -0.75
    if not near.all():
        direct = np.log(np.maximum(np.hypot(1.0 + x.real, x.imag), 1e-300))
        modulus = np.where(near, modulus, direct)
    return np.asarray(modulus + 1j * np.arctan2(x.imag, 1.0 + x.real))


def _rotations(phase: FloatArray) -> tuple[ComplexArray, FloatArray]:
    """e^{i phase} - 1, and the imaginary part of e^{i phase} - 1 - i phase, all to a few units.

    The real parts of both are the same, and the sines, which cost most, are taken once.
    """
    turned = np.empty(phase.shape, dtype=np.complex128)
    half = np.sin(0.5 * phase)
    turned.real = -2.0 * half * half
    turned.imag = np.sin(phase)
    curved = turned.imag - phase
    small = np.abs(phase) < 1.0  # where sin x - x would lose digits
    x = phase[small]  # sin x - x = -x^3/6 (1 - x^2/20 (1 - x^2/42 (...)))
    square, series = x * x, np.ones_like(x)
    for k in (210.0, 156.0, 110.0, 72.0, 42.0, 20.0):
        series = 1.0 - square / k * series
    curved[small] = -x * square / 6.0 * series
    return turned, curved


def _direct(step: float, count: int, d: FloatArray, p: FloatArray) -> _Turned:
    turned, curved = _rotations((np.arange(count) * step)[:, None] * d)
    return turned, np.sum(turned.real * p, axis=2) + 1j * np.sum(curved * p, axis=2)


def _multiples(step: float, count: int, d: FloatArray, p: FloatArray) -> _Turned:
    """The table at y = 0, step, ..., for points d of weights p, both (laws, 1, points)."""
    if count <= _FEW:
        return _direct(step, count, d, p)
    inner = math.isqrt(count)
    near, far = _direct(step, inner, d, p), _direct(inner * step, -(-count // inner), d, p)
    u, v = near[0][:, None, :, :], far[0][:, :, None, :]
    turned = u * v
    turned += u
    turned += v
    turned = turned.reshape(len(p), -1, p.shape[2])
    return turned[:, :count], _joined(near, far, p)[:, :count]


def _joined(near: _Turned, far: _Turned, p: FloatArray) -> ComplexArray:
    """The weighted sums at all sums of two frequencies, those of `near` running fastest."""
    sums = far[0] @ (near[0] * p).transpose(0, 2, 1)
    sums += near[1][:, None, :]
    sums += far[1][:, :, None]
    return np.asarray(sums.reshape(len(p), -1))


@final
@dataclass(frozen=True)
class TiltedNodes:
    """log_mass = ln M(c) within log_mass_error; the points stand for the law tilted by e^{cx}.

    relative, point_error: bounds on the rounding of each weight and each point; common: of a factor
    of all weights of a law. fixed_error: bound on the quadrature error and what was left out, in
    units of M(c).
    """

    log_mass: FloatArray  # (laws,)
    log_mass_error: FloatArray
    centre: FloatArray
    deviations: FloatArray  # (laws, points)
    weights: FloatArray
    relative: FloatArray
    point_error: FloatArray
    common: FloatArray
    fixed_error: FloatArray

    @property
    def size(self) -> int:
        return self.weights.size

    def transform(self, step: float, count: int) -> tuple[ComplexArray, FloatArray]:
        """x = transform - 1 without e^{iym}, at y = 0, step, ..., and the bound on its error."""
        y = np.arange(count, dtype=np.float64) * step
        # sum p d is 0 but for rounding; taken exactly, it leaves only terms of second order
        linear = np.array([math.fsum(row) for row in (self.weights * self.deviations).tolist()])
        # sum_j p_j (e^{iy d_j} - 1 - iy d_j) by blocks of points
        inner = max(1, math.isqrt(count))
        outer = -(-count // inner)
        laws, points = self.weights.shape
        x = np.zeros((laws, outer * inner), dtype=np.complex128)
        block = max(64, _TABLE // (inner * laws))
        for first in range(0, points, block):
            d = self.deviations[:, None, first : first + block]
            p = self.weights[:, None, first : first + block]
            near = _multiples(step, inner, d, p)
            x += _joined(near, _multiples(inner * step, outer, d, p), p)
        x = x[:, :count] + 1j * (linear[:, None] * y)
        error = self.fixed_error[:, None] + self._error(y) + self.common[:, None] * np.abs(x)
        return x, error

    def _error(self, y: FloatArray) -> FloatArray:
        """Rounding: of points and weights (first order in y), of sums and products (second)."""
        weights, size = self.weights, np.abs(self.deviations)
        spread = np.sum(weights * size, axis=1)[:, None]
        second = np.sum(weights * size * size, axis=1)[:, None]
        slope = np.sum(weights * (size * (self.relative + 4.0 * UNIT) + self.point_error), axis=1)
        # With phases a, b, c, d of the four thinnest tables, a + b + c + d = y |d_j|: the products
        # add up to at most ab + cd + (a+b)(c+d) <= (yd)^2/2, and to at most 4 + yd.
        # 96 units: phases, sines, tables, pairwise sums, one for each block; n + 8 for products
        units = 96.0 + math.isqrt(len(y)) * weights.size / _TABLE + 2.0 * (weights.shape[1] + 8)
        curved = np.minimum(0.5 * y * y * second, 4.1 + y * spread)
        return np.asarray(1.01 * (y * slope[:, None] + units * UNIT * curved))


def log_error(share: FloatArray) -> FloatArray:
    """The error of ln M from one of M, as a share of M; infinite from 1 on."""
    large = np.where(share < 0.99, -1.01 * np.log1p(-np.minimum(share, 0.99)), _UNKNOWN)
    return np.where(share <= _SMALL, 1.01 * share, large)


def tilted_nodes(
    points: FloatArray,
    exponents: FloatArray,
    mass: tuple[FloatArray, FloatArray],
    exponent_error: FloatArray,
    point_error: FloatArray,
    quadrature: FloatArray,
) -> TiltedNodes:
    """Points x_j with unnormalised tilted weights e^exponent, where ln M = mass[0] +- mass[1].

    quadrature: bound on |M(c+iy) - sum|/M for every frequency allowed (0 too), not in mass[1].
    Columns of negligible weight are left out; their weight counts as an error.
    """
    value, rounding = mass
    p = np.exp(exponents - value[:, None])
    keep = np.any(p > _NEGLIGIBLE, axis=0)
    left_out = np.sum(p[:, ~keep], axis=1)
    p, x = p[:, keep], points[:, keep]
    centre = np.sum(p * x, axis=1)
    return TiltedNodes(
        log_mass=value,
        log_mass_error=log_error(quadrature) + rounding,
        centre=centre,
        deviations=x - centre[:, None],
        weights=p,
        relative=exponent_error[:, keep],
        point_error=point_error[:, keep],
        common=2.0 * UNIT * (np.abs(value) + 4.0) + 1.01 * rounding,
        fixed_error=4.2 * quadrature + 2.1 * left_out,
    )


# ---- Bounds on |E e^{iyX}| for ALL y beyond a given one, without evaluating it there
# Every unimodal density is a mixture of uniform laws on its level sets (the layer cake), and the
# transform of a uniform law of length l is at most sup_{x >= yl/2} |sin x / x|, which falls with y.
# What the layers do not cover counts with its full mass (docs/certificate_argument.md, 3.2).
LOG_MASS_SLACK = 1e-6
_SIDE_LOBE = 0.2172337  # > the largest |sin x/x| beyond its first zero

Layers = tuple[FloatArray, FloatArray]  # lengths and masses of uniform laws


def layers_of_steps(edges: FloatArray, heights: FloatArray, peak: int) -> Layers:
    """Layers of a density known to be >= heights[k] between edges[k] and edges[k+1].

    The step function is first lowered to one that falls away on both sides of cell `peak`.
    """
    left = np.minimum.accumulate(heights[: peak + 1][::-1])[::-1]
    right = np.minimum.accumulate(heights[peak:])
    levels = np.sort(np.concatenate([left, right[1:]]))[::-1]
    first = np.searchsorted(left, levels, side="left")  # left rises towards the peak
    last = peak + np.searchsorted(-right, -levels, side="right")
    lengths = edges[last] - edges[first]
    drops = levels - np.append(levels[1:], 0.0)
    return lengths, drops * lengths


@final
@dataclass(frozen=True)
class Decay:
    """For each law of a family, sup over y' >= y of |transform(y')|: the smallest of three bounds.

    layers: uniform laws inside it; variation/y: one integration by parts, where the total variation
    of the density is known; further: any other decreasing bound. All hold when ln M(c) is log_mass
    within LOG_MASS_SLACK.
    """

    lengths: FloatArray  # the layers of all laws, one after the other
    masses: FloatArray
    starts: NDArray[np.intp]
    variation: FloatArray
    log_mass: FloatArray | None = None
    further: Callable[[float], FloatArray] | None = None

    @classmethod
    def of(
        cls,
        layers: list[Layers],
        variation: FloatArray,
        log_mass: FloatArray | None = None,
        further: Callable[[float], FloatArray] | None = None,
    ) -> Decay:
        sizes = [len(lengths) for lengths, _ in layers]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
        lengths = np.concatenate([part[0] for part in layers])
        masses = np.concatenate([part[1] for part in layers])
        return cls(lengths, masses, starts, variation, log_mass, further)

    def bound(self, y: float) -> FloatArray:
        return np.asarray(self.bounds(np.array([y]))[0])

    def bounds(self, y: FloatArray) -> FloatArray:
        """The bound from each of several y on, (frequencies, laws)."""
        half = np.maximum(0.5 * y[:, None] * self.lengths, 1e-8)
        wave = np.sin(np.minimum(half, math.pi)) / half
        envelope = np.maximum(wave, np.minimum(_SIDE_LOBE, 1.0 / half))
        # 1 - sum m (1 - envelope): the uncovered mass counts fully
        covered = np.add.reduceat(self.masses * (1.0 - envelope), self.starts, axis=1)
        value = 1.0 - covered * (1.0 - 1e-12) + 8.0 * UNIT
        with np.errstate(over="ignore"):  # an infinite bound is one
            value = np.minimum(value, self.variation / y[:, None])
        if self.further is not None:
            for row, frequency in zip(value, y.tolist(), strict=True):
                if bool((row > 1e-3).any()):
                    np.minimum(row, self.further(frequency), out=row)
        return np.asarray(np.clip(value, 1e-300, 1.0))


def no_decay(laws: int = 1) -> Decay:
    """Nothing known but |transform| <= 1."""
    return Decay.of([(np.zeros(1), np.zeros(1))] * laws, np.full(laws, math.inf))
