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
from tightrope.numerics.rounding import ULP
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


@final
@dataclass(frozen=True)
class DiscretePair(AbstractLossPair):
    """L takes the values `losses` with `masses` under P (and mass * e^-loss under Q), and +inf.

    What is missing to 1 under Q sits at L = -inf. Under P nothing is missing: the masses and
    `infinite_mass` are scaled to add up to 1, each is right to a few units, and who uses them may
    rely on either.
    """

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite_mass: float = 0.0
    loss_units: float = 8.0  # by which losses may be off, of the largest

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
        under_q = float(np.sum(_under_q(losses, masses)))
        if abs(total - 1.0) > _SUM_TOLERANCE or under_q > 1.0 + _SUM_TOLERANCE:
            raise InvalidInput(
                f"masses + infinite_mass must sum to 1 and masses * e^-losses to at most 1; got "
                f"{total!r} and {under_q!r}. The second sum is the mass of the same values under Q."
            )
        held = math.fsum(masses)
        if held > 0.0:
            masses = masses * ((1.0 - self.infinite_mass) / held)
        object.__setattr__(self, "losses", tuple(losses.tolist()))
        object.__setattr__(self, "masses", tuple(masses.tolist()))

    @property
    def support(self) -> tuple[float, float]:
        return (self.losses[0], self.losses[-1])

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        return tuple(zip(self.losses, self.masses, strict=True))

    @property
    def masses_under_q(self) -> FloatArray:
        """Those of the same losses."""
        return _under_q(np.array(self.losses), np.array(self.masses))

    def reversed(self) -> DiscretePair:
        under_q = self.masses_under_q
        return DiscretePair(
            tuple((-np.array(self.losses)).tolist()),
            tuple(np.minimum(under_q, 1.0).tolist()),
            max(0.0, 1.0 - float(under_q.sum())) if self._has_q_atom else 0.0,
            self.loss_units,
        )

    @property
    def _has_q_atom(self) -> bool:
        return 1.0 - float(self.masses_under_q.sum()) > _SUM_TOLERANCE

    @cached_property
    def _log_tables(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """ln mass above and below each of the n+1 gaps between the losses, for P and Q."""
        losses = np.array(self.losses)
        with np.errstate(divide="ignore"):
            log_p = np.log(np.array(self.masses))
            log_inf = np.log(self.infinite_mass)
            at_minus_inf = max(0.0, 1.0 - float(np.exp(log_p - losses).sum()))
            log_zero = np.log(at_minus_inf) if self._has_q_atom else -np.inf
        log_q = log_p - losses
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
        return np.full(as_losses(loss).shape, 4.0 * ULP * len(self.losses))


def _under_q(losses: FloatArray, masses: FloatArray) -> FloatArray:
    """Masses under Q of values with these losses and masses under P."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.exp(np.log(masses) - losses))


def _cumulative(log_terms: FloatArray) -> FloatArray:
    return np.asarray(np.logaddexp.accumulate(log_terms))


def approx_pair(epsilon: float, delta: float) -> DiscretePair:
    """The four-point pair dominating every (epsilon, delta)-DP release (Kairouz-Oh-Viswanath)."""
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    high = (1.0 - delta) / (1.0 + math.exp(-epsilon))
    low = (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    if epsilon == 0.0:
        return DiscretePair((0.0,), (1.0 - delta,), delta)
    return DiscretePair((-epsilon, epsilon), (low, high), delta)


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
