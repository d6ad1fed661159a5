"""The pairs, gathered: ordered dominating pairs (P, Q) with L = ln dP/dQ."""

from __future__ import annotations

from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses
from tightrope.guarantee.loss.allocation import AllocationPair
from tightrope.guarantee.loss.closed_form import log_delta_single
from tightrope.guarantee.loss.discrete import (
    DiscretePair,
    approx_pair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    randomized_response_pair,
)
from tightrope.guarantee.loss.gaussian import (
    Direction,
    FixedSizeGaussianPair,
    GaussianPair,
    SampledGaussianPair,
)
from tightrope.guarantee.loss.laplace import BoundedRangePair, LaplaceMixturePair, LaplacePair
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicMixturePair

__all__ = [
    "AbstractLossPair",
    "LogMasses",
    "AllocationPair",
    "Direction",
    "GaussianPair",
    "SampledGaussianPair",
    "FixedSizeGaussianPair",
    "GaussianMixturePair",
    "PublicMixturePair",
    "LaplacePair",
    "BoundedRangePair",
    "LaplaceMixturePair",
    "DiscretePair",
    "approx_pair",
    "randomized_response_pair",
    "discrete_gaussian_pair",
    "discrete_laplace_pair",
    "log_delta_single",
]
