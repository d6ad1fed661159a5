"""Cumulants of pairs with atoms: discrete laws, Laplace, and the fixed-size Gaussian (theory C.9).

Integrals over a bounded or half-bounded range use Gauss-Legendre panels; the integrand is bounded
on a Bernstein ellipse around each panel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.cumulant_sampled import SampledCumulant
from tightrope.guarantee.loss.discrete import DiscretePair, LaplacePair
from tightrope.guarantee.loss.gaussian import (
    FixedSizeGaussianPair,
    SampledGaussianPair,
    log_ratio,
)
from tightrope.numerics.inversion_decay import (
    LOG_MASS_SLACK,
    Decay,
    layers_of_steps,
    no_decay,
)
from tightrope.numerics.inversion_law import AbstractFamily
from tightrope.numerics.inversion_nodes import TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import (
    UNIT,
    FloatArray,
    expm1_minus,
    gauss_legendre,
    log_ellipse_error,
    log_sum_exp,
)

__all__ = ["DiscreteCumulant", "LaplaceCumulant", "FixedSizeCumulant"]

_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_COUNTS = (8, 12, 16, 24, 32)


@final
@dataclass(frozen=True)
class _Panels:
    """Equal panels on [low, high] with `count` Gauss points each."""

    low: float
    high: float
    panels: int
    count: int

    @property
    def half(self) -> float:
        return 0.5 * (self.high - self.low) / self.panels

    @property
    def centres(self) -> FloatArray:
        return self.low + self.half * (2.0 * np.arange(self.panels, dtype=np.float64) + 1.0)

    def points(self) -> tuple[FloatArray, FloatArray]:
        x, w = gauss_legendre(self.count)
        s = (self.centres[:, None] + self.half * x).reshape(-1)
        return s, np.log(np.tile(self.half * w, self.panels))


def _nodes(
    losses: FloatArray,
    exponents: FloatArray,
    mass: tuple[float, float],
    errors: tuple[FloatArray, FloatArray],
    quadrature: float,
) -> TiltedNodes:
    """One law as a family of one row; errors: of the exponents and of the losses."""
    value, rounding = np.array([mass[0]]), np.array([mass[1]])
    return tilted_nodes(
        losses[None, :],
        exponents[None, :],
        (value, rounding),
        errors[0][None, :],
        errors[1][None, :],
        np.array([quadrature]),
    )


def _moments(
    points: FloatArray, exponents: FloatArray, counts: FloatArray
) -> tuple[float, float, float]:
    times = float(counts[0])
    top = float(np.max(exponents))
    p = np.exp(exponents - top)
    total = float(np.sum(p))
    mean = float(p @ points) / total
    variance = float(p @ (points - mean) ** 2) / total
    return times * (top + math.log(total)), times * mean, times * variance


@final
class DiscreteCumulant(AbstractFamily):
    """Finitely many losses; the masses are taken as the exact numbers they are stored as."""

    def __init__(self, pair: DiscretePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        masses = np.array(pair.masses)
        held = masses > 0.0
        self.losses, self.masses = np.array(pair.losses)[held], masses[held]
        self.log_masses = np.log(self.masses)
        self.missing = 1.0 - math.fsum(self.masses)

    def values(self, tilts: FloatArray) -> FloatArray:
        return np.asarray(
            self.counts[0] * log_sum_exp(np.multiply.outer(tilts, self.losses) + self.log_masses)
        )

    def moments(self, tilt: float) -> tuple[float, float, float]:
        return _moments(self.losses, tilt * self.losses + self.log_masses, self.counts)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        x = tilt * self.losses
        exponents = x + self.log_masses
        error = UNIT * (8.0 + 2.0 * np.abs(x) + 2.0 * np.abs(self.log_masses))
        value = float(log_sum_exp(exponents))
        if abs(value) <= 0.5:  # M - 1 = sum m (e^x - 1) - missing
            terms = self.masses * np.expm1(x)
            total = math.fsum(terms) - self.missing
            value, size = math.log1p(total), float(np.abs(terms) @ (error + 4.0 * UNIT))
            rounding = 1.1 * size / (1.0 + total) + 2.0 * UNIT * (abs(total) + self.missing)
        else:
            rounding = float(np.exp(exponents - value) @ error) + 24.0 * UNIT * (1.0 + abs(value))
        return _nodes(self.losses, exponents, (value, rounding), (error, 0.0 * x), 0.0)

    def decay(self, tilt: float) -> Decay:
        return no_decay()  # the transform of a discrete law comes back to 1 again and again


@final
class LaplaceCumulant(AbstractFamily):
    """L = top (1 - 2x) with density (top/2) e^{-top x} for x in [0, 1], and an atom at each end."""

    def __init__(self, pair: LaplacePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.top = 1.0 / pair.scale

    @property
    def max_tilt(self) -> float:
        return 2e3 / self.top

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        """M(z) = (e^{z top} + e^{-(1+z) top})/2 + int; in closed form where nothing cancels."""
        z, top = tilt, self.top
        if (1.0 + 2.0 * z) * top < 2.0:
            return super().real(tilt, nats)
        inner = math.log(-math.expm1(-(1.0 + 2.0 * z) * top) / (1.0 + 2.0 * z))
        logs = np.array([z * top, -(1.0 + z) * top, z * top + inner])
        value = float(log_sum_exp(logs)) - math.log(2.0)
        return np.array([value]), np.array([UNIT * (32.0 + 8.0 * abs(z * top))])

    def _points(self, panels: _Panels) -> tuple[FloatArray, FloatArray]:
        """Losses and ln masses under P: the panels, then the two atoms."""
        x, log_weight = panels.points()
        inner = math.log(0.5 * self.top) - self.top * x + log_weight
        ends = np.array([-math.log(2.0) - self.top, -math.log(2.0)])
        losses = np.append(self.top * (1.0 - 2.0 * x), [-self.top, self.top])
        return losses, np.append(inner, ends)

    def _rough(self, tilt: float) -> tuple[FloatArray, FloatArray]:
        slope = self.top * abs(1.0 + 2.0 * tilt)
        return self._points(_Panels(0.0, 1.0, min(400, 2 + int(slope / 8.0)), 24))

    def values(self, tilts: FloatArray) -> FloatArray:
        losses, log_masses = self._rough(float(np.max(np.abs(tilts))))
        exponents = np.multiply.outer(tilts, losses) + log_masses
        return np.asarray(self.counts[0] * log_sum_exp(exponents))

    def _log_size(self, tilt: float) -> float:
        losses, log_masses = self._rough(tilt)
        return float(log_sum_exp(tilt * losses + log_masses))

    def moments(self, tilt: float) -> tuple[float, float, float]:
        losses, log_masses = self._rough(tilt)
        return _moments(losses, tilt * losses + log_masses, self.counts)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        panels, log_error = self._choose(tilt, frequency, nats)
        losses, log_masses = self._points(panels)
        exponents = tilt * losses + log_masses
        point_error = 8.0 * UNIT * (np.abs(losses) + self.top)
        error = UNIT * (64.0 + 4.0 * np.abs(log_masses) + 4.0 * np.abs(tilt * losses))
        error += (abs(tilt) + 1.0) * point_error
        value = float(log_sum_exp(exponents))
        if abs(value) <= 0.5:
            # P and Q have mass 1: M - 1 = sum p h(zl) + z q (l (e^l - 1) - h(l)), h = e^x-1-x
            first = np.exp(log_masses) * expm1_minus(tilt * losses)
            bracket = losses * np.expm1(losses) - expm1_minus(losses)
            second = np.exp(log_masses - losses) * bracket
            total = float(np.sum(first + tilt * second))
            size = float((first + 3.0 * abs(tilt) * second) @ (2.0 * error + 64.0 * UNIT))
            slope = np.exp(log_masses) * np.abs(np.expm1(tilt * losses)) * (1.0 + abs(tilt))
            value = math.log1p(total)
            rounding = 1.2 * (size + float(slope @ point_error)) / (1.0 + total)
        else:
            rounding = float(np.exp(exponents - value) @ error) + 24.0 * UNIT * (1.0 + abs(value))
        quadrature = 3.0 * math.exp(log_error - value)
        return _nodes(losses, exponents, (value, rounding), (error, point_error), quadrature)

    def _choose(self, tilt: float, frequency: float, nats: float) -> tuple[_Panels, float]:
        """Panels for an entire integrand whose exponent has slope at most `slope` in x."""
        slope = self.top * (abs(1.0 + 2.0 * tilt) + 2.0 * frequency + 2.0)
        ends = max(self.top * tilt, -self.top * (1.0 + tilt), 0.0)
        for panels in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
            half = 0.5 / panels
            for count in _COUNTS:
                radius = max(1.5, 2.0 * count / max(half * slope, 1e-3))
                bound = (
                    ends + math.log(0.5 * self.top) + 0.5 * slope * half * (radius + 1.0 / radius)
                )
                # all panels together: their half widths add up to 1/2
                log_error = log_ellipse_error(count, radius, bound, 0.5)
                if log_error < -nats:
                    return _Panels(0.0, 1.0, panels, count), log_error
        raise NotCertified("The Laplace cumulant needs too many panels; use the lattice method.")

    def decay(self, tilt: float) -> Decay:
        """The density of L under the tilted law is proportional to e^{(tilt + 1/2) L}."""
        edges = np.linspace(-self.top, self.top, 65)
        log_size = self._log_size(tilt)
        g = (tilt + 0.5) * edges - 0.5 * self.top + math.log(0.25) - log_size - LOG_MASS_SLACK
        heights = np.exp(np.minimum(g[:-1], g[1:]))
        layers = layers_of_steps(edges, heights, int(np.argmax(heights)))
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]))


@final
class FixedSizeCumulant(AbstractFamily):
    """M(z) = atom + E[r^{1+z} + r^{-z}; s > mu/2]; M - 1 = E[(r^{1+z} - 1)(1 - r^{-z}); same]."""

    def __init__(self, pair: FixedSizeGaussianPair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.rate, self.mu = pair.rate, pair.mu
        self.atom = (1.0 - pair.rate) * math.erf(pair.mu / math.sqrt(8.0))

    @property
    def max_tilt(self) -> float:
        return 5e3 / self.mu

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        if tilt * self.mu > 2e4 and tilt * self.mu**2 > 200.0:
            # E[r^{1+z}; s > mu/2] rules: the rest is at most 2, the part s < mu/2 at most 1
            pair = SampledGaussianPair(self.rate, self.mu, "remove")
            value, error = SampledCumulant([pair], [1]).real(tilt, nats)
            return value, error + 4.0 * np.exp(np.maximum(-value, -700.0))
        return super().real(tilt, nats)

    def _reach(self, tilt: float, nats: float) -> float:
        return max(1.0 + tilt, -tilt, 1.0) * self.mu + math.sqrt(2.0 * nats) + 0.5

    def _law(self, tilt: float, panels: _Panels) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Losses (right, left, atom), exponents of the tilted weights, and the points s."""
        s, log_weight = panels.points()
        lr = log_ratio(s, self.rate, self.mu)
        base = log_weight - _LOG_ROOT_2PI - 0.5 * s * s
        losses = np.concatenate([lr, -lr])
        exponents = np.concatenate([(1.0 + tilt) * lr + base, -tilt * lr + base])
        if self.atom > 0.0:
            losses = np.append(losses, 0.0)
            exponents = np.append(exponents, math.log(self.atom))
        return losses, exponents, s

    def _rough(self, tilt: float) -> _Panels:
        high = self._reach(tilt, 32.0)
        return _Panels(0.5 * self.mu, high, max(2, math.ceil(high * max(1.0, self.mu))), 12)

    def values(self, tilts: FloatArray) -> FloatArray:
        panels = self._rough(float(np.max(np.abs(tilts))))
        logs = [float(log_sum_exp(self._law(float(z), panels)[1])) for z in tilts]
        return np.asarray(self.counts[0] * np.array(logs))

    def _log_size(self, tilt: float) -> float:
        return float(log_sum_exp(self._law(tilt, self._rough(tilt))[1]))

    def moments(self, tilt: float) -> tuple[float, float, float]:
        losses, exponents, _ = self._law(tilt, self._rough(tilt))
        return _moments(losses, exponents, self.counts)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        panels, log_error = self._choose(tilt, frequency, nats)
        losses, exponents, s = self._law(tilt, panels)
        n = len(s)
        moved = 4.0 * UNIT * (1.0 + np.abs(s))  # rounding of the Gauss points
        lr = losses[:n]
        share = np.exp(np.minimum(math.log(self.rate) + self.mu * (s - 0.5 * self.mu) - lr, 0.0))
        lr_error = share * self.mu * moved + 4.0 * UNIT * lr
        power = abs(tilt) + 1.0
        error = UNIT * (96.0 + s * s + 2.0 * power * lr) + power * lr_error + moved * s
        extra = [32.0 * UNIT] if self.atom > 0.0 else []
        errors = np.append(np.concatenate([error, error]), extra)
        point_error = np.append(np.concatenate([lr_error, lr_error]), [0.0] * len(extra))
        value = float(log_sum_exp(exponents))
        if abs(value) <= 0.5:
            weight = np.exp(exponents[n : 2 * n] + tilt * lr)
            x = np.minimum((1.0 + tilt) * lr, 700.0)
            terms = weight * np.expm1(x) * -np.expm1(np.maximum(-tilt * lr, -700.0))
            total = float(np.sum(terms))
            # d ln(e^{ax} - 1) <= (1/x + a) dx for each of the two factors
            relative = error + 2.0 * lr_error * (1.0 / lr + power)
            rounding = float(np.abs(terms) @ relative)
            value, rounding = math.log1p(total), 1.2 * rounding / (1.0 + total)
        else:
            rounding = float(np.exp(exponents - value) @ errors) + 24.0 * UNIT * (1.0 + abs(value))
        quadrature = math.exp(min(log_error - value, 0.0))
        return _nodes(losses, exponents, (value, rounding), (errors, point_error), quadrature)

    def _choose(self, tilt: float, frequency: float, nats: float) -> tuple[_Panels, float]:
        low, high = 0.5 * self.mu, self._reach(tilt, nats + 3.0)
        powers = (1.0 + tilt, -tilt, 1.0, 0.0)
        ends = -0.5 * high * high + np.array([w * self._log_r(high) for w in powers])
        outside = float(np.sum(np.exp(np.minimum(ends, 700.0)))) * (2.0 + abs(tilt))
        panels = max(1, math.ceil((high - low) * max(0.5, 0.5 * self.mu, frequency * self.mu / 16)))
        while panels < 100_000:
            for count in _COUNTS:
                trial = _Panels(low, high, panels, count)
                error = self._panel_errors(trial, powers, frequency) + outside
                if error <= 0.0 or math.log(error) < -nats + max(0.0, self._log_size(tilt)):
                    return trial, math.log(max(error, 1e-300))
            panels *= 2
        raise NotCertified("The fixed-size cumulant needs too many panels; use the lattice method.")

    def _log_r(self, s: float) -> float:
        return float(log_ratio(s, self.rate, self.mu))

    def _panel_errors(self, panels: _Panels, powers: tuple[float, ...], frequency: float) -> float:
        """Bernstein bounds for phi r^w. On the ellipse f = -x^2/2 + w ln r obeys
        f(x) <= f(m) + |f'(m)| reach + reach^2/2 max(0, w mu^2/4 - 1); |r(x+id)| >= r cos(theta/2).
        """
        m, half, best = panels.centres, panels.half, math.inf
        lr = log_ratio(m, self.rate, self.mu)
        for radius in (1.8, 2.5, 3.5, 5.0, 8.0, 12.0):
            depth = 0.5 * half * (radius - 1.0 / radius)
            theta = self.mu * depth
            if theta > 0.9 * math.pi:
                break
            reach = 0.5 * half * (radius + 1.0 / radius)
            total = 0.0
            for w in powers:
                steep = np.abs(m) + abs(w) * self.mu
                f = -0.5 * m * m + w * lr + steep * reach
                f += 0.5 * reach * reach * max(0.0, 0.25 * w * self.mu**2 - 1.0)
                f += min(w, 0.0) * math.log(math.cos(0.5 * theta)) + frequency * theta
                bound = float(log_sum_exp(f)) + 0.5 * depth * depth - _LOG_ROOT_2PI
                log_error = log_ellipse_error(panels.count, radius, bound, half)
                total += (1.0 + abs(powers[0])) * math.exp(min(log_error, 700.0))
            best = min(best, total)
        return best

    def decay(self, tilt: float) -> Decay:
        """Layers of the density on both sides of 0; the atom stays uncovered."""
        high = self._reach(tilt, 12.0)
        s = np.linspace(0.5 * self.mu, high, min(2000, math.ceil(high / 0.05)) + 1)
        width = s[1] - s[0]
        lr, log_size = log_ratio(s, self.rate, self.mu), self._log_size(tilt)
        scale = log_size + LOG_MASS_SLACK + math.log(self.rate * self.mu) + _LOG_ROOT_2PI
        sides = []
        for w in (1.0 + tilt, -tilt):
            g = -0.5 * s * s + (w + 1.0) * lr - (self.mu * s - 0.5 * self.mu**2) - scale
            bend = 0.125 * width**2 * max(0.0, 0.25 * (w + 1.0) * self.mu**2 - 1.0)
            sides.append(np.exp(np.minimum(g[:-1], g[1:]) - bend))
        heights = np.concatenate([sides[1][::-1], sides[0]])
        edges = np.concatenate([-lr[::-1], lr[1:]])
        layers = layers_of_steps(edges, heights, int(np.argmax(heights)))
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]))
