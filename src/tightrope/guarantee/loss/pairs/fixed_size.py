"""Gaussian noise on batches of a fixed size, one record of which is replaced.

Error of the cumulant: Gauss-Legendre panels from mu/2 on; the integrand is bounded on a Bernstein
ellipse around each, and beyond the last by a Gaussian tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from tightrope.errors import NotCertified
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss.abstract import (
    LogMasses,
    Side,
    as_losses,
    mirrored,
)
from tightrope.guarantee.loss.pairs.jumps import NormalJumps
from tightrope.guarantee.loss.pairs.normals import (
    BRANCH,
    AbstractSampledPair,
    beyond_end,
    end_of_tail,
    log_normal_moment,
    normal_edges,
    normal_error,
    rough_grid,
    variation_of_normals,
)
from tightrope.guarantee.loss.pairs.points import COUNTS, EqualPanels, OneLaw, point_nodes
from tightrope.guarantee.loss.pairs.sampled import SampledCumulant, SampledGaussianPair
from tightrope.guarantee.loss.pairs.sampling import (
    log_mix,
    log_ratio,
    log_sampled_error,
    point_of_log_ratio,
    point_slack,
    sampled_both,
)
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import (
    LOG_MASS_SLACK,
    AbstractFamily,
    Decay,
    TiltedNodes,
)
from tightrope.numerics.lattice import LatticeMeasure, normalised
from tightrope.numerics.quadrature import LOG_ROOT_2PI, log_ellipse_error, log_sum_exp
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray


@final
@dataclass(frozen=True)
class FixedSizeGaussianPair(AbstractSampledPair):
    """C_rate(G_mu), for fixed-size batches under replace-one.

    The "remove" pair on s > mu/2 (L > 0), its mirror image (L < 0), and an atom at L = 0.
    """

    rate: float
    mu: float

    @property
    def has_jumps(self) -> bool:
        return True

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        # (1 - rate)(Phi(mu/2) - Phi(-mu/2))
        mass = (1.0 - self.rate) * variation_of_normals(self.mu)
        return ((0.0, mass),) if mass > 0.0 else ()

    def reversed(self) -> FixedSizeGaussianPair:
        return self

    def _tail(self, size: FloatArray) -> LogMasses:
        """ln mix(ln r > size), ln N(0,1)(ln r > size) for size >= 0."""
        s = point_of_log_ratio(size, self.rate, self.mu)
        base = log_ndtr(-s)
        return log_mix(base, log_ndtr(self.mu - s), self.rate), base

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        x = as_losses(loss)
        mix, base = self._tail(np.abs(x))
        # for l < 0: P(L > l) = 1 - P(L <= l), and P(L <= -|l|) = N(ln r >= |l|)
        return _where_complement(x >= 0, mix, base), _where_complement(x >= 0, base, mix)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        x = as_losses(loss)
        mix, base = self._tail(np.abs(x))
        return _where_complement(x < 0, base, mix), _where_complement(x < 0, mix, base)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        x = np.abs(as_losses(loss))
        s = point_of_log_ratio(x, self.rate, self.mu)
        return normal_error(np.abs(s) + self.mu, point_slack(x, s, self.rate, self.mu))

    def log_delta_single(self, epsilon: float) -> Interval:
        if epsilon < 0.0:
            return mirrored(self.log_delta_single(-epsilon), epsilon)
        return sampled_both(self.rate, epsilon, partial(log_gaussian_delta, mu=self.mu))

    # ------------------------------------------------------------------------------- its order
    @property
    def family(self) -> object:
        return FixedSizeGaussianPair

    # ---------------------------------------------------------------------------- its cumulant
    def cumulant(self, count: int = 1) -> AbstractFamily:
        return FixedSizeCumulant(self, count)

    # --------------------------------------------------------------------------- on a lattice
    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        loss, base = rough_grid(self.mu, self.rate, 0.5 * self.mu)
        atom = self.atoms[0][1] if self.atoms else 1e-320
        losses = np.concatenate([-loss[::-1], [0.0], loss])
        return losses, np.concatenate([base[::-1], [math.log(atom)], base + loss])

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        """The positive branch (P = base r), its mirror image (P = base), and the atom at 0."""
        q, mu = self.rate, self.mu
        lift = -math.log1p(-q) if q < 1.0 else 0.0  # a lattice point on L = 0
        atom = self.atoms[0][1] if self.atoms else 0.0
        far = end_of_tail(q, mu, rate, 0.5 * mu, math.log(atom) if atom > 0.0 else -math.inf)
        up = BRANCH[side](q, mu, rate + 1.0, step, lift, 0.5 * mu, cut)
        down = BRANCH[side](q, mu, -rate, step, lift, 0.5 * mu, far)
        scale = max(up.log_scale, down.log_scale, 0.0)
        weight_up, weight_down = math.exp(up.log_scale - scale), math.exp(down.log_scale - scale)
        below = len(down.masses) - 1 + down.start  # steps from the lowest point to 0
        masses = np.zeros(below + up.start + len(up.masses))
        masses[: len(down.masses)] += weight_down * down.masses[::-1]
        masses[below + up.start :] += weight_up * up.masses
        masses[below] += math.exp(-scale) * atom
        lost = beyond_end(down, q, mu, rate, scale)
        error = weight_up * up.absolute_error + weight_down * down.absolute_error + lost
        relative = up.relative_error + down.relative_error
        return normalised(-below * step, step, masses, scale, rate, error, relative)

    @property
    def jumps(self) -> NormalJumps:
        return NormalJumps(self.rate, self.mu, sum(mass for _, mass in self.atoms))

    def point_of(self, loss: float) -> float:
        """No point lies left of mu/2."""
        return max(float(point_of_log_ratio(loss, self.rate, self.mu)), 0.5 * self.mu)

    def largest_up_to(self, point: float) -> float:
        return float(log_ratio(point, self.rate, self.mu))

    # ------------------------------------------------------------------------------- by cells
    def cell_edges(self, order: float, cells: int) -> FloatArray:
        points, losses = normal_edges(self.mu, order, cells)
        if self.rate == 1.0:  # then no loss has an upper end
            return losses
        losses = log_ratio(points, self.rate, self.mu)  # the mirror image holds L < 0
        return np.concatenate([-losses[losses > 0.0], losses[losses > 0.0]])

    def log_last_cell(self, order: float) -> float:
        return log_normal_moment(self.mu, order)


def _where_complement(direct: ArrayLike, log_mass: FloatArray, log_other: FloatArray) -> FloatArray:
    """log_mass where `direct`, otherwise ln(1 - e^log_other)."""
    with np.errstate(divide="ignore"):
        complement = np.log1p(-np.exp(np.minimum(log_other, 0.0)))
    return np.where(direct, log_mass, complement)


@final
class FixedSizeCumulant(OneLaw):
    """M(z) = atom + E[r^{1+z} + r^{-z}; s > mu/2]; M - 1 = E[(r^{1+z} - 1)(1 - r^{-z}); same]."""

    def __init__(self, pair: FixedSizeGaussianPair, count: int) -> None:
        super().__init__(count)
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

    def _law(self, tilt: float, panels: EqualPanels) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Losses (right, left, atom), exponents of the tilted weights, and the points s."""
        s, log_weight = panels.points()
        lr = log_ratio(s, self.rate, self.mu)
        base = log_weight - LOG_ROOT_2PI - 0.5 * s * s
        losses = np.concatenate([lr, -lr])
        exponents = np.concatenate([(1.0 + tilt) * lr + base, -tilt * lr + base])
        if self.atom > 0.0:
            losses = np.append(losses, 0.0)
            exponents = np.append(exponents, math.log(self.atom))
        return losses, exponents, s

    def _rough(self, top: float) -> tuple[FloatArray, FloatArray]:
        high = self._reach(top, 32.0)
        panels = max(2, math.ceil(high * max(1.0, self.mu)))
        return self._law(0.0, EqualPanels(0.5 * self.mu, high, panels, 12))[:2]

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        panels, log_error = self._choose(tilt, frequency, nats)
        losses, exponents, s = self._law(tilt, panels)
        n = len(s)
        moved = 4.0 * UNIT * (1.0 + np.abs(s))  # rounding of the Gauss points
        lr = losses[:n]
        share = np.exp(np.minimum(math.log(self.rate) + self.mu * (s - 0.5 * self.mu) - lr, 0.0))
        lr_error = share * self.mu * moved + log_sampled_error(lr, self.rate)
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
        return point_nodes(losses, exponents, (value, rounding), (errors, point_error), quadrature)

    def _choose(self, tilt: float, frequency: float, nats: float) -> tuple[EqualPanels, float]:
        low, high = 0.5 * self.mu, self._reach(tilt, nats + 3.0)
        powers = (1.0 + tilt, -tilt, 1.0, 0.0)
        log_r = float(log_ratio(high, self.rate, self.mu))
        ends = -0.5 * high * high + np.array([w * log_r for w in powers])
        outside = float(np.sum(np.exp(np.minimum(ends, 700.0)))) * (2.0 + abs(tilt))
        panels = max(1, math.ceil((high - low) * max(0.5, 0.5 * self.mu, frequency * self.mu / 16)))
        while panels < 100_000:
            for count in COUNTS:
                trial = EqualPanels(low, high, panels, count)
                error = self._panel_errors(trial, powers, frequency) + outside
                if error <= 0.0 or math.log(error) < -nats + max(0.0, self._log_size(tilt)):
                    return trial, math.log(max(error, 1e-300))
            panels *= 2
        raise NotCertified("The fixed-size cumulant needs too many panels; use the lattice method.")

    def _panel_errors(
        self, panels: EqualPanels, powers: tuple[float, ...], frequency: float
    ) -> float:
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
                bound = float(log_sum_exp(f)) + 0.5 * depth * depth - LOG_ROOT_2PI
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
        scale = log_size + LOG_MASS_SLACK + math.log(self.rate * self.mu) + LOG_ROOT_2PI
        sides = []
        for w in (1.0 + tilt, -tilt):
            g = -0.5 * s * s + (w + 1.0) * lr - (self.mu * s - 0.5 * self.mu**2) - scale
            bend = 0.125 * width**2 * max(0.0, 0.25 * (w + 1.0) * self.mu**2 - 1.0)
            sides.append(np.exp(np.minimum(g[:-1], g[1:]) - bend))
        heights = np.concatenate([sides[1][::-1], sides[0]])
        edges = np.concatenate([-lr[::-1], lr[1:]])
        return self._layered(edges, heights, tilt)
