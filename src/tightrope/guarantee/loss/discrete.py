"""Pairs whose loss takes finitely many values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput
from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses, as_losses
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import (
    FloatArray,
    check_count,
    check_delta,
    check_epsilon,
    check_probability,
    check_real,
)

__all__ = [
    "DiscretePair",
    "approx_pair",
    "randomized_response_pair",
]

_SUM_TOLERANCE = 1e-12  # masses typed by people or summed in double precision
_LOG_LEAST = -750.0  # below ln of every number


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
        """Of the logarithms of the masses under P and under Q, which differ by the loss."""
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
