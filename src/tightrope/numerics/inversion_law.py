"""Independent sums of random variables, known through the cumulants of their parts.

A law F on the real line has mass at most 1 and K(z) = ln int e^{zx} dF(x). A family is several laws
that are treated in one go, each taken a number of times.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay
from tightrope.numerics.inversion_nodes import ComplexArray, TiltedNodes, log1p_complex
from tightrope.numerics.quadrature import FloatArray
from tightrope.numerics.rounding import UNIT

__all__ = [
    "AbstractFamily",
    "SumLaw",
    "Samples",
    "Wanted",
    "SumOnLine",
    "MAX_WORK",
]

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
            _check_work(nodes, decay.log_mass, wanted)
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


def _check_work(nodes: TiltedNodes, log_mass: FloatArray | None, wanted: Wanted) -> None:
    """Refuses too much work, and a quick estimate of the mass that turns out to be off."""
    _check_size(nodes.size, wanted)
    if log_mass is None:
        return
    if float(np.max(np.abs(log_mass - nodes.log_mass))) > LOG_MASS_SLACK:
        raise NotCertified("The quick estimate of a cumulant is off; use the lattice method.")
