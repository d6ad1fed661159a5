"""Inverting the part of a sum in which at least one summand was a jump.

Each law is cut in two, M = M_bulk + M_jump. The sum is that of bulk parts only plus the rest, whose
transform prod (M_bulk + M_jump)^n - prod M_bulk^n is small wherever M_jump is: where the bulk is a
narrow spike beside which the jumps are wide, far fewer frequencies are needed. Both are positive
measures, so that Chernoff's bound and the one-sided aliases hold for each.

Error: with b, J the exact and computed M_bulk, M_jump over M_bulk(c), e_b, e_J their errors and
m >= |b|, |b + J| for both, that of prod (b+J)^n - prod b^n = int_0^1 d/dt prod (b + tJ)^n dt is at
most prod m^n [sum n e_J/m + (sum n |J|/m) (sum n (e_b + e_J)/m)], and also at most the sum of the
errors of both products, prod m^n [sum n (e_b + e_J)/m + sum n e_b/m].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay
from tightrope.numerics.inversion_law import Samples, SumLaw, Wanted, check_work
from tightrope.numerics.inversion_nodes import ComplexArray, TiltedNodes, log1p_complex
from tightrope.numerics.quadrature import UNIT, FloatArray

__all__ = ["Part", "Split", "RestLaw"]

_Moments = tuple[FloatArray, FloatArray, FloatArray]
_Real = list[tuple[FloatArray, FloatArray]]


class Part(Protocol):
    """The part of each law of a family that is no jump, or the other."""

    counts: FloatArray

    @property
    def max_tilt(self) -> float: ...
    def row_values(self, tilts: FloatArray) -> FloatArray: ...
    def row_moments(self, tilt: float) -> _Moments: ...
    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]: ...
    def nodes_and_real(
        self, tilt: float, frequency: float, nats: float, others: tuple[float, ...], coarse: float
    ) -> tuple[TiltedNodes, _Real]: ...


class Bulk(Part, Protocol):
    def decay(self, tilt: float) -> Decay: ...


class Jump(Part, Protocol):
    def shifted(self, tilt: float) -> Callable[[float], FloatArray]:
        """A bound on |M(tilt + iy)|/M(tilt) that falls with y, for M within LOG_MASS_SLACK."""


@final
@dataclass(frozen=True)
class Split:
    """The two parts of a family."""

    bulk: Bulk
    jump: Jump

    def log_ratio(self, tilt: float) -> FloatArray:
        """ln M_jump/M_bulk of each law; an estimate."""
        at = np.array([tilt])
        return np.asarray((self.jump.row_values(at) - self.bulk.row_values(at))[0])


def _log_expm1(x: FloatArray | float) -> FloatArray:
    """ln(e^x - 1) for x > 0."""
    x = np.maximum(x, 1e-300)
    return np.asarray(x + np.log(-np.expm1(-x)))


@final
@dataclass(frozen=True)
class RestLaw:
    """At least one jump among the split laws, times the transform of the others."""

    splits: tuple[Split, ...]
    others: SumLaw

    @property
    def steps(self) -> float:
        return self.others.steps + sum(float(np.sum(s.bulk.counts)) for s in self.splits)

    @property
    def max_tilt(self) -> float:
        tilts = [min(split.bulk.max_tilt, split.jump.max_tilt) for split in self.splits]
        return min([self.others.max_tilt, *tilts])

    def values(self, tilts: FloatArray) -> FloatArray:
        total, rise = self.others.values(tilts), np.zeros(len(tilts))
        for split in self.splits:
            bulk, n = split.bulk.row_values(tilts), split.bulk.counts
            total = total + bulk @ n
            rise = rise + np.logaddexp(0.0, split.jump.row_values(tilts) - bulk) @ n
        return np.asarray(total + _log_expm1(rise))

    def moments(self, tilt: float) -> tuple[float, float, float]:
        """With V = sum n ln(1 + M_jump/M_bulk): K = K_bulk + ln(e^V - 1)."""
        k, k1, k2 = self.others.moments(tilt)
        rise = first = second = 0.0
        for split in self.splits:
            n, bulk, jump = (
                split.bulk.counts,
                split.bulk.row_moments(tilt),
                split.jump.row_moments(tilt),
            )
            v = np.logaddexp(0.0, jump[0] - bulk[0])
            share, gap = np.exp(jump[0] - bulk[0] - v), jump[1] - bulk[1]
            k, k1, k2 = k + float(n @ bulk[0]), k1 + float(n @ bulk[1]), k2 + float(n @ bulk[2])
            rise += float(n @ v)
            first += float(n @ (share * gap))
            second += float(n @ (share * (jump[2] - bulk[2] + (1.0 - share) * gap * gap)))
        factor = 1.0 / -math.expm1(-max(rise, 1e-300))
        variance = k2 + factor * (second - (factor - 1.0) * first * first)
        return k + float(_log_expm1(rise)), k1 + factor * first, max(variance, 1e-300)

    def real(self, tilt: float, nats: float) -> tuple[float, float]:
        found = [(s.bulk.real(tilt, nats), s.jump.real(tilt, nats)) for s in self.splits]
        return self.real_sum(tilt, self.others.real(tilt, nats), found)

    def real_sum(
        self,
        tilt: float,
        others: tuple[float, float],
        found: list[tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]],
    ) -> tuple[float, float]:
        """The cumulant and its error from those of the parts.

        A relative error e of all M_jump/M_bulk moves ln(e^V - 1) by at most (1 + V) e.
        """
        value, error = others
        rise = slope = 0.0
        for split, (bulk, jump) in zip(self.splits, found, strict=True):
            n, units = split.bulk.counts, (16.0 + len(split.bulk.counts)) * UNIT
            own = bulk[1] + units * np.abs(bulk[0])
            value, error = value + float(n @ bulk[0]), error + float(n @ own)
            rise += float(n @ np.logaddexp(0.0, jump[0] - bulk[0]))
            slope = max(slope, float(np.max(own + jump[1] + units * (1.0 + np.abs(jump[0])))))
        own_error = (1.0 + rise) * math.expm1(min(slope, 1.0)) if slope < 1.0 else math.inf
        return value + float(_log_expm1(rise)), error + own_error + 16.0 * UNIT * (1 + abs(value))

    def on_line(self, tilt: float) -> RestOnLine:
        ratios = tuple(split.log_ratio(tilt) for split in self.splits)
        decays = tuple(split.bulk.decay(tilt) for split in self.splits)
        jumps = tuple(split.jump.shifted(tilt) for split in self.splits)
        return RestOnLine(self, tilt, ratios, decays, jumps)


@final
@dataclass(frozen=True)
class RestOnLine:
    """A RestLaw on the line Re z = tilt; ratios: estimates of ln M_jump/M_bulk there."""

    law: RestLaw
    tilt: float
    ratios: tuple[FloatArray, ...]
    decays: tuple[Decay, ...]
    jumps: tuple[Callable[[float], FloatArray], ...]

    @property
    def rise(self) -> float:
        """V = sum n ln(1 + M_jump/M_bulk)."""
        pairs = zip(self.law.splits, self.ratios, strict=True)
        return sum(float(s.bulk.counts @ np.logaddexp(0.0, ratio)) for s, ratio in pairs)

    def log_decay(self, y: FloatArray) -> FloatArray:
        """prod (|b| + |J|)^n - prod |b|^n rises with every |b| and |J|."""
        total, rise = self.law.others.on_line(self.tilt).log_decay(y), np.zeros(len(y))
        for split, ratio, decay, jump in zip(
            self.law.splits, self.ratios, self.decays, self.jumps, strict=True
        ):
            log_b, n = np.log(decay.bounds(y)), split.bulk.counts
            log_j = ratio + np.log(np.array([jump(float(v)) for v in y]) + 1e-300)
            log_j = log_j + 4.0 * LOG_MASS_SLACK
            total = total + log_b @ n
            rise = rise + np.logaddexp(0.0, log_j - log_b) @ n
        slack = 4.0 * LOG_MASS_SLACK * (1.0 + self.rise)
        return np.asarray(total + _log_expm1(rise) - float(_log_expm1(self.rise)) + slack)

    def vanishes_beyond(self, y: float) -> bool:
        return False

    def sample(self, wanted: Wanted) -> Samples:
        at = self.law.others.on_line(self.tilt).sample(wanted)
        sums = _RestSums(at, wanted, self.rise)
        found = []
        for split, ratio, decay in zip(self.law.splits, self.ratios, self.decays, strict=True):
            last, more = float(wanted.y[-1]), math.log1p(self.rise)
            bulk, bulk_real = split.bulk.nodes_and_real(
                self.tilt, last, wanted.nats, wanted.tilts, wanted.coarse
            )
            precise = wanted.nats - math.log(max(self.law.steps, 1.0)) + more
            jump, jump_real = split.jump.nodes_and_real(
                self.tilt, last, precise, wanted.tilts, wanted.coarse
            )
            check_work(bulk, decay.log_mass, wanted)
            check_work(jump, ratio + bulk.log_mass, wanted)
            sums.add(bulk, jump, split.bulk.counts)
            found.append(list(zip(bulk_real, jump_real, strict=True)))
        real = tuple(
            self.law.real_sum(tilt, at.real[i], [each[i] for each in found])
            for i, tilt in enumerate(wanted.tilts)
        )
        return sums.finish(real)


@final
class _RestSums:
    """Adds up ln prod b^n, V = sum n ln(1 + J/b), and the terms of the error."""

    def __init__(self, others: Samples, wanted: Wanted, rise: float) -> None:
        self.others, self.wanted, self.log_rest = others, wanted, float(_log_expm1(rise))
        self.log_b = np.zeros(wanted.count, dtype=np.complex128)
        self.rise, self.spent = np.zeros_like(self.log_b), np.zeros(wanted.count)
        self.log_top, self.error = np.zeros(wanted.count), np.zeros(wanted.count)
        self.jump_size, self.jump_error = np.zeros(wanted.count), np.zeros(wanted.count)
        self.bulk_error = np.zeros(wanted.count)
        self.log_mass, self.mass_error = others.log_mass, others.log_mass_error
        self.mean, self.turn, self.units = others.mean, others.turn, 16.0

    def add(self, bulk: TiltedNodes, jump: TiltedNodes, n: FloatArray) -> None:
        y = self.wanted.y
        x, e_b = bulk.transform(self.wanted.step, self.wanted.count)
        j, e_j = jump.transform(self.wanted.step, self.wanted.count)
        log_ratio, gap = jump.log_mass - bulk.log_mass, jump.centre - bulk.centre
        sizes = np.abs(jump.centre) + np.abs(bulk.centre)
        ratio = np.exp(log_ratio)[:, None]
        big = ratio * (1.0 + j) * np.exp(1j * (gap[:, None] * y))
        off = bulk.log_mass_error + jump.log_mass_error
        off = off + 8.0 * UNIT * (2.0 + np.abs(jump.log_mass) + np.abs(bulk.log_mass))
        e_j = ratio * e_j + np.abs(big) * (off[:, None] + 8.0 * UNIT * (1.0 + sizes[:, None] * y))
        b = 1.0 + x
        m = np.maximum(np.abs(b), np.abs(b + big)) + e_b + e_j
        safe = np.where(np.abs(b) > 1e-150, b, 1e-150)
        log_b, rise = log1p_complex(x), log1p_complex(big / safe)
        self.units = max(self.units, 16.0 + len(n))
        self.log_b, self.rise = self.log_b + n @ log_b, self.rise + n @ rise
        self.spent = self.spent + n @ (np.abs(log_b) + np.abs(rise))
        self.log_top = self.log_top + n @ np.log(m)
        e_b = e_b + 8.0 * UNIT * np.abs(x)
        self.bulk_error = self.bulk_error + n @ (e_b / m)
        self.error = self.error + n @ ((e_b + e_j) / m)
        self.jump_error = self.jump_error + n @ (e_j / m)
        self.jump_size = self.jump_size + n @ (np.abs(big) / m)
        self.mean += float(n @ bulk.centre)
        self.turn += float(n @ np.abs(bulk.centre))
        self.log_mass += float(n @ bulk.log_mass)
        own = bulk.log_mass_error + self.units * UNIT * np.abs(bulk.log_mass)
        self.mass_error += float(n @ own)

    def finish(self, real: tuple[tuple[float, float], ...]) -> Samples:
        """prod b^n (e^V - 1), normalised by its value on the real line."""
        rest = _exp_times_expm1(self.log_b - self.log_rest, self.rise)
        own = 2.0 * self.units * UNIT * (8.0 + self.spent)
        log_size = self.log_b.real + np.maximum(self.rise.real, 0.0) - self.log_rest
        rounding = np.exp(np.minimum(log_size, 700.0)) * np.minimum(np.abs(self.rise), 2.0) * own
        inner = np.minimum(
            self.jump_error + self.jump_size * self.error, self.error + self.bulk_error
        )
        error = np.exp(np.minimum(self.log_top - self.log_rest, 700.0)) * inner + rounding
        amplitude = self.others.amplitude * rest
        error = (np.abs(self.others.amplitude) + self.others.error) * error
        error = error + self.others.error * np.abs(rest) + 8.0 * UNIT * np.abs(amplitude)
        scale = 64.0 * UNIT * (1.0 + abs(self.log_mass) + abs(self.log_rest))
        return Samples(
            self.log_mass + self.log_rest,
            self.mass_error + scale,
            self.mean,
            self.turn,
            amplitude,
            error,
            real,
        )


def _exp_times_expm1(a: ComplexArray, v: ComplexArray) -> ComplexArray:
    """e^a (e^v - 1), accurate for small v and without overflow for large ones."""
    half = np.sin(0.5 * v.imag)
    growth = np.expm1(np.minimum(v.real, 1.0))
    small = growth * np.cos(v.imag) - 2.0 * half * half + 1j * (growth + 1.0) * np.sin(v.imag)
    near = np.exp(a) * small
    far = np.exp(a + v) - np.exp(a)
    return np.asarray(np.where(v.real < 1.0, near, far))
