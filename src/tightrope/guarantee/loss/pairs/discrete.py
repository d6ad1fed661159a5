"""Pairs whose loss takes finitely many values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput
from tightrope.guarantee.loss.abstract import AbstractLossPair, Group, LogMasses, Side, as_losses
from tightrope.guarantee.loss.pairs.points import OneLaw, atoms_measure, log_mass, point_nodes
from tightrope.guarantee.loss.pairs.sampling import log_mix, log_sampled, log_sampled_error
from tightrope.guarantee.renyi.kernel import log_excess
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import AbstractFamily, Decay, TiltedNodes, no_decay
from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import (
    FloatArray,
    check_count,
    check_delta,
    check_epsilon,
    check_positive,
    check_probability,
    check_real,
)

_SUM_TOLERANCE = 1e-12  # masses typed by people or summed in double precision
_LOG_LEAST = -750.0  # below ln of every number
_MARGIN = 1e-14  # rounding of a mean failure


@final
@dataclass(frozen=True)
class DiscretePair(AbstractLossPair):
    """L takes the values `losses` with `masses` under P (and mass * e^-loss under Q), and +inf.

    Under Q, L is -inf with the mass `only_under_q`; what is missing to 1 beside it is added to it.
    Where `is_cut`, the masses at +inf and -inf stand for finite losses that were left out.
    D_order(P||Q) <= zero_concentrated * order, the losses that were left out included.
    Error: ln of the masses are taken to be right to `log_errors`, and losses to `loss_error`.
    """

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite_mass: float = 0.0
    only_under_q: float = 0.0
    loss_units: float = 8.0  # by which losses may be off, of the largest
    is_cut: bool = False
    zero_concentrated: float = math.inf

    is_discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        losses = np.atleast_1d(check_real(self.losses, "losses"))
        masses = np.atleast_1d(check_probability(self.masses, "masses"))
        object.__setattr__(
            self, "infinite_mass", check_probability(self.infinite_mass, "infinite_mass")
        )
        if losses.ndim != 1 or losses.shape != masses.shape:
            raise InvalidInput(
                f"losses and masses must be two lists of one length; got shapes {losses.shape} "
                f"and {masses.shape}. Each mass is the probability under P of its loss."
            )
        order = np.argsort(losses, kind="stable")
        losses, masses = losses[order], masses[order]
        total = float(masses.sum()) + self.infinite_mass
        under_q = float(np.exp(_logs(masses) - losses).sum()) + self.only_under_q
        if abs(total - 1.0) > _SUM_TOLERANCE or under_q > 1.0 + _SUM_TOLERANCE:
            raise InvalidInput(
                f"masses + infinite_mass must sum to 1 and masses * e^-losses to at most 1; got "
                f"{total!r} and {under_q!r}. The second sum is the mass of the same values under Q."
            )
        if abs(total - 1.0) > 64.0 * ULP:  # not by rounding: P is scaled to 1
            masses = masses * ((1.0 - self.infinite_mass) / (total - self.infinite_mass))
        missing = 1.0 - under_q if 1.0 - under_q > _SUM_TOLERANCE else 0.0
        object.__setattr__(self, "losses", tuple(losses.tolist()))
        object.__setattr__(self, "masses", tuple(masses.tolist()))
        object.__setattr__(self, "only_under_q", self.only_under_q + missing)

    @property
    def least_infinite_mass(self) -> float:
        return 0.0 if self.is_cut else self.infinite_mass

    @property
    def support(self) -> tuple[float, float]:
        return (self.losses[0], self.losses[-1])

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        return tuple(zip(self.losses, self.masses, strict=True))

    def reversed(self) -> DiscretePair:
        losses = np.array(self.losses)
        under_q = np.minimum(np.exp(self.log_masses - losses), 1.0)
        return DiscretePair(
            tuple((-losses).tolist()),
            tuple(under_q.tolist()),
            self.only_under_q,
            self.infinite_mass,
            self.loss_units,
            self.is_cut,
            self.zero_concentrated,
        )

    @property
    def loss_error(self) -> float:
        return self.loss_units * UNIT * max(self.losses[-1], -self.losses[0])

    @cached_property
    def log_masses(self) -> FloatArray:
        return _logs(np.array(self.masses))

    @property
    def log_errors(self) -> FloatArray:
        """Errors of the logarithms of the masses under P and under Q, which differ by the loss."""
        sizes = np.abs(np.maximum(self.log_masses, _LOG_LEAST)) + np.abs(self.losses)
        return np.asarray(4.0 * ULP * (3.0 + sizes) + self.loss_error)

    @cached_property
    def _log_tables(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """ln mass above and below each of the n+1 gaps between the losses, for P and Q."""
        log_p, log_q = self.log_masses, self.log_masses - np.array(self.losses)
        log_inf, log_zero = _logs(np.array([self.infinite_mass, self.only_under_q]))
        above_p = _cumulative(np.append(log_p, log_inf)[::-1])[::-1]
        above_q = np.append(_cumulative(log_q[::-1])[::-1], -np.inf)
        below_p = np.append(-np.inf, _cumulative(log_p))
        below_q = _cumulative(np.append(log_zero, log_q))
        return above_p, above_q, below_p, below_q

    def _gap(self, loss: ArrayLike) -> Any:
        return np.searchsorted(np.array(self.losses), as_losses(loss), side="right")

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        above_p, above_q, _, _ = self._log_tables
        i = self._gap(loss)
        return above_p[i], above_q[i]

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        _, _, below_p, below_q = self._log_tables
        i = self._gap(loss)
        return below_p[i], below_q[i]

    def log_error(self, loss: ArrayLike) -> FloatArray:
        most = 4.0 * ULP * len(self.losses) + float(np.max(self.log_errors))
        return np.full(as_losses(loss).shape, most)

    def log_delta_single(self, epsilon: float) -> Interval:
        """Both ends of every loss and mass."""
        ends = []
        for way, infinite in ((-1.0, self.least_infinite_mass), (1.0, self.infinite_mass)):
            gaps = np.array(self.losses) + way * self.loss_error - epsilon
            logs = self.log_masses + way * self.log_errors
            total = float(np.exp(logs[gaps > 0.0]) @ -np.expm1(-gaps[gaps > 0.0])) + infinite
            value = math.log(total) if total > 0.0 else -math.inf
            size = abs(value) if math.isfinite(value) else 0.0
            ends.append(value + way * ULP * (len(gaps) + 8.0 + 2.0 * size))
        return Interval(ends[0], min(0.0, ends[1]))

    # ------------------------------------------------------------------------------- its order
    @property
    def family(self) -> object:
        return DiscretePair if self._is_response else None

    @property
    def _is_response(self) -> bool:
        """Are its losses -e and e, beside a failure?"""
        losses, masses = self.losses, self.masses
        if len(losses) != 2 or losses[0] != -losses[1] or self.is_cut:
            return False
        odds = masses[1] * math.exp(-losses[1]) / masses[0] if masses[0] > 0 else 0.0
        return abs(odds - 1.0) <= 1e-12 and self.only_under_q == self.infinite_mass

    @property
    def strength(self) -> tuple[float, ...]:
        return (self.losses[1],)

    def dominating(self, group: Group, side: Side) -> AbstractLossPair:
        """Randomised response with the failure that, so many times, is that of all of the group."""
        pick = max if side == "upper" else min
        level, steps = pick(pair.losses[1] for pair, _ in group), sum(n for _, n in group)
        kept = math.fsum(n * math.log1p(-pair.infinite_mass) for pair, n in group)
        failure = -math.expm1(kept / steps) * (1.0 + (_MARGIN if side == "upper" else -_MARGIN))
        failure = min(max(failure, 0.0), 1.0)
        high = (1.0 - failure) / (1.0 + math.exp(-level))
        masses = (high * math.exp(-level), high)
        return DiscretePair((-level, level), masses, failure, failure)

    # ---------------------------------------------------------------------------- its cumulant
    def cumulant(self, count: int = 1) -> AbstractFamily:
        return DiscreteCumulant(self, count)

    # --------------------------------------------------------------------------- on a lattice
    @property
    def _closest(self) -> float:
        return float(np.diff(np.array(self.losses)).min())

    @property
    def spacing(self) -> float | None:
        if len(self.losses) < 2:
            return None
        return self._closest if self.on_one_lattice else self.losses[-1] - self.losses[0]

    @property
    def on_one_lattice(self) -> bool:
        if len(self.losses) < 2:
            return False
        grid = self._closest
        if grid <= 1e-12 * (self.losses[-1] - self.losses[0]):
            return False
        place = (np.array(self.losses) - self.losses[0]) / grid
        return bool(np.all(np.abs(place - np.round(place)) <= 1e-10))

    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        atoms = np.array([a for a in self.atoms if a[1] > 0.0])
        return atoms[:, 0], np.log(atoms[:, 1])

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        losses, masses = np.array(self.losses), np.array(self.masses)
        relative = float(np.max(self.log_errors[masses > 0.0]))
        return atoms_measure(losses, masses, side, step, rate, relative, self.loss_units)

    # ------------------------------------------------------------------------------- by cells
    def divergence_terms(self, order: float, way: float) -> FloatArray:
        """ln of Q h(x) of every loss, each at its lower or upper end, and of L = -inf."""
        losses = np.array(self.losses)
        ends = np.copysign(np.maximum(np.abs(losses) + way * self.loss_error, 0.0), losses)
        logs = self.log_masses - losses + way * self.log_errors
        with np.errstate(divide="ignore"):
            nowhere = np.log((order - 1.0) * self.only_under_q)
        return np.append(logs + log_excess(ends, order), nowhere)


def _logs(masses: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(masses))


def _cumulative(log_terms: FloatArray) -> FloatArray:
    return np.asarray(np.logaddexp.accumulate(log_terms))


def approx_pair(epsilon: float, delta: float) -> DiscretePair:
    """The four-point pair dominating every (epsilon, delta)-DP release (Kairouz-Oh-Viswanath)."""
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    high = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    low = (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    if epsilon == 0.0:
        return DiscretePair((0.0,), (1.0 - delta,), delta, delta)
    return DiscretePair((-epsilon, epsilon), (low, high), delta, delta)


def randomized_response_pair(epsilon: float, categories: int = 2) -> DiscretePair:
    """Truth with probability e^eps/(e^eps + k - 1), any other of the k answers equally likely."""
    epsilon, k = check_epsilon(epsilon), check_count(categories, "categories", low=2)
    low = math.exp(-epsilon) / (1.0 + (k - 1) * math.exp(-epsilon))
    high = 1.0 / (1.0 + (k - 1) * math.exp(-epsilon))
    if epsilon == 0.0:
        return DiscretePair((0.0,), (1.0,))
    if k == 2:
        return DiscretePair((-epsilon, epsilon), (low, high))
    return DiscretePair((-epsilon, 0.0, epsilon), (low, (k - 2) * low, high))


# ---- Noise on whole numbers, whole or on a Poisson sample, as pairs of finitely many losses
# P = (1-q) X + q (X + s) if `plus`, Q = (1-q) X + q (X - s) if `minus`, otherwise X: the noise X at
# 0, moved by the sensitivity s where the record is there. A record that is removed is plus, added
# (and mirrored) minus, replaced by its opposite both; q = 1 is a release without sampling.
_REACH, _FAR = 38.0, 1e-300  # deviations, and a bound on what lies beyond
_LOG_TINY = -708.0  # ln of the smallest normal number
_Moved = Callable[[int], FloatArray]  # something of the noise moved by so much


def discrete_laplace_pair(
    decay: float, sensitivity: int = 1, rate: float = 1.0, plus: bool = True, minus: bool = False
) -> DiscretePair:
    """Noise of mass proportional to e^{-decay |k|}: beyond both points the loss is constant."""
    decay = check_positive(decay, "decay")
    shift = check_count(sensitivity, "sensitivity", low=1)
    low, high = (-shift if minus else 0), (shift if plus else 0)
    x = np.arange(low, high + 1, dtype=np.float64)
    # tanh(decay/2) e^{-decay |k|} inside; from an end on e^{-decay |k|}/(1 + e^-decay)
    factor = np.full(len(x), math.log(math.tanh(0.5 * decay)))
    factor[[0, -1]] = -math.log1p(math.exp(-decay))
    return _pair(
        lambda at: factor - decay * np.abs(x - at),
        lambda at: decay * (np.abs(x) - np.abs(x - at)),
        shift,
        rate,
        (plus, minus),
        0.0,
    )


def discrete_gaussian_pair(
    noise_multiplier: float,
    sensitivity: int = 1,
    rate: float = 1.0,
    plus: bool = False,
    minus: bool = True,
) -> DiscretePair:
    """Discrete Gaussian noise of parameter sigma (Canonne-Kamath-Steinke 2020).

    Error: values beyond 38 sigma (mass below 1e-300) count as L = +inf in upper ends, and for
    nothing in lower ends. The Renyi divergence of the noise moved by d is at most order d^2 / (2
    sigma^2) (Proposition 5 there), and a sample's at most as large, since it is quasi-convex.
    """
    sigma = check_positive(noise_multiplier, "noise_multiplier")
    shift = check_count(sensitivity, "sensitivity", low=1)
    reach = math.ceil(_REACH * sigma) + shift
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    log_total = _log_sum(-0.5 * (x / sigma) ** 2)
    return _pair(
        lambda at: -0.5 * ((x - at) / sigma) ** 2 - log_total,
        lambda at: at * (2.0 * x - at) / (2.0 * sigma * sigma),
        shift,
        rate,
        (plus, minus),
        _FAR,
        0.5 * ((plus + minus) * shift / sigma) ** 2,
    )


def _pair(
    log_noise: _Moved,
    ratio: _Moved,
    shift: int,
    rate: float,
    there: tuple[bool, bool],
    far: float,
    zero_concentrated: float = math.inf,
) -> DiscretePair:
    """From ln of the masses, and of their ratios to those at 0; is the record in P, in Q?"""
    (plus, plus_error), (minus, minus_error) = (
        _arm(ratio(way * shift), rate if counts else 0.0)
        for way, counts in zip((1, -1), there, strict=True)
    )
    log_p = log_mix(log_noise(0), log_noise(shift), rate) if there[0] else log_noise(0)
    log_p -= _log_sum(log_p)  # what rounding took or gave
    losses, held = plus - minus, log_p > _LOG_TINY
    left_out = float(np.exp((log_p - losses)[~held]).sum())  # of Q, where P has no normal number
    off = float(np.max(plus_error + minus_error)) / float(np.max(np.abs(losses[held])))
    return DiscretePair(
        tuple(losses[held].tolist()),
        tuple(np.exp(log_p[held]).tolist()),
        infinite_mass=far,
        only_under_q=far + left_out,
        loss_units=off / UNIT,
        is_cut=far > 0.0,
        zero_concentrated=zero_concentrated,
    )


def _arm(u: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """a = ln(1 + rate (e^u - 1)) and its rounding; its slope in u is rate e^{u - a}."""
    if rate == 0.0:
        return np.zeros_like(u), np.zeros_like(u)
    found = log_sampled(u, rate)
    slope = np.exp(np.minimum(math.log(rate) + u - found, 0.0))
    return found, 4.0 * UNIT * slope * np.abs(u) + log_sampled_error(found, rate)


def _log_sum(logs: FloatArray) -> float:
    """ln of a sum of masses, the largest about 1 over their number; below 1e-40 left out."""
    return math.log(math.fsum(np.exp(logs[logs > -92.0]).tolist()))


# ---- The cumulant
@final
class DiscreteCumulant(OneLaw):
    """Finitely many losses."""

    def __init__(self, pair: DiscretePair, count: int) -> None:
        super().__init__(count)
        held = np.isfinite(pair.log_masses)
        self.losses, self.log_masses = np.array(pair.losses)[held], pair.log_masses[held]
        self.log_errors = pair.log_errors[held]
        self.point_error = np.full(len(self.losses), pair.loss_error)
        self.beyond = (pair.infinite_mass, pair.only_under_q)

    def _rough(self, top: float) -> tuple[FloatArray, FloatArray]:
        return self.losses, self.log_masses

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        exponents = tilt * self.losses + self.log_masses
        error = UNIT * (2.0 + 2.0 * np.abs(tilt * self.losses)) + self.log_errors
        errors = (error + abs(tilt) * self.point_error, self.point_error)
        mass = log_mass(self.losses, self.log_masses, tilt, errors, self.beyond)
        return point_nodes(self.losses, exponents, mass, errors, 0.0)

    def decay(self, tilt: float) -> Decay:
        return no_decay()  # the transform of a discrete law comes back to 1 again and again
