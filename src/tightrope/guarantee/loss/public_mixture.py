"""A release whose kind is drawn at random, independently of the record, and seen by everybody."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput
from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses, as_losses
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_probability

__all__ = ["PublicMixturePair"]


@final
@dataclass(frozen=True)
class PublicMixturePair(AbstractLossPair):
    """With probability `share` the release is `rare`, otherwise `usual`; which one is known.

    delta(eps) = (1 - share) delta_usual(eps) + share delta_rare(eps), and so are the masses. The
    share is taken to be right to 2 units.
    """

    share: float
    usual: AbstractLossPair
    rare: AbstractLossPair

    def __post_init__(self) -> None:
        share = check_probability(self.share, "share")
        if not 0.0 < share < 1.0:
            raise InvalidInput(
                f"share must lie between 0 and 1; got {share!r}. At either end one pair is enough."
            )
        object.__setattr__(self, "share", share)

    @property
    def has_rare_losses(self) -> bool:
        return any(part.has_rare_losses for _, part in self.parts)

    @property
    def parts(self) -> tuple[tuple[float, AbstractLossPair], ...]:
        """(weight, pair)."""
        return ((1.0 - self.share, self.usual), (self.share, self.rare))

    @property
    def infinite_mass(self) -> float:
        return math.fsum(weight * pair.infinite_mass for weight, pair in self.parts)

    @property
    def least_infinite_mass(self) -> float:
        return math.fsum(weight * pair.least_infinite_mass for weight, pair in self.parts)

    @property
    def support(self) -> tuple[float, float]:
        low, high = zip(self.usual.support, self.rare.support, strict=True)
        return min(low), max(high)

    @property
    def loss_units(self) -> float:
        return max(self.usual.loss_units, self.rare.loss_units)

    def reversed(self) -> PublicMixturePair:
        return PublicMixturePair(self.share, self.usual.reversed(), self.rare.reversed())

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        return _mixed([(w, pair.log_survival(loss)) for w, pair in self.parts])

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        return _mixed([(w, pair.log_cdf(loss)) for w, pair in self.parts])

    def log_error(self, loss: ArrayLike) -> FloatArray:
        errors = [pair.log_error(loss) for _, pair in self.parts]
        return np.maximum(*errors) + 8.0 * ULP * (1.0 + np.abs(as_losses(loss)))


def _mixed(parts: list[tuple[float, LogMasses]]) -> LogMasses:
    (one, first), (other, second) = parts
    p, q = (
        np.logaddexp(math.log(one) + a, math.log(other) + b)
        for a, b in zip(first, second, strict=True)
    )
    return p, q
