"""Which losses a lattice leaves out, and from where: a point s, or the loss of a public mixture."""

from __future__ import annotations

from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.gaussian import point_of_log_ratio
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicMixturePair

__all__ = ["is_cut", "point_of", "far_point"]


def is_cut(pair: AbstractLossPair) -> bool:
    """Do its losses have no end, so that those too rare to matter count as infinite?"""
    if isinstance(pair, PublicMixturePair):
        return any(is_cut(part) for _, part in pair.parts)
    return pair.has_jumps or pair.has_rare_losses


def point_of(pair: AbstractLossPair, loss: float) -> float:
    """The point s with this loss, or about there."""
    if isinstance(pair, PublicMixturePair):
        return loss
    if isinstance(pair, GaussianMixturePair):
        return pair.point(loss)
    rate, mu = getattr(pair, "rate", 1.0), getattr(pair, "mu", 1.0)
    return float(point_of_log_ratio(loss, rate, mu))


def far_point(pair: AbstractLossPair) -> float:
    """A point s beyond all that counts of a pair that is not cut."""
    return 40.0 + 1.5 * float(getattr(pair, "mu", 0.0))
