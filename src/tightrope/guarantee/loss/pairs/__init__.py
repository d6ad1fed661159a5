"""The pairs of laws that dominate a release: one module, and one line here, for each mechanism."""

from __future__ import annotations

from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses
from tightrope.guarantee.loss.pairs.allocation import AllocationPair
from tightrope.guarantee.loss.pairs.discrete import (
    DiscretePair,
    approx_pair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    randomized_response_pair,
)
from tightrope.guarantee.loss.pairs.fixed_size import FixedSizeGaussianPair
from tightrope.guarantee.loss.pairs.gaussian import GaussianPair
from tightrope.guarantee.loss.pairs.laplace import BoundedRangePair, LaplaceMixturePair, LaplacePair
from tightrope.guarantee.loss.pairs.mixture import GaussianMixturePair
from tightrope.guarantee.loss.pairs.public import PublicMixturePair
from tightrope.guarantee.loss.pairs.sampled import SampledGaussianPair
from tightrope.guarantee.loss.pairs.sampling import Direction

__all__ = [
    "AbstractLossPair",
    "AllocationPair",
    "BoundedRangePair",
    "Direction",
    "DiscretePair",
    "FixedSizeGaussianPair",
    "GaussianMixturePair",
    "GaussianPair",
    "LaplaceMixturePair",
    "LaplacePair",
    "LogMasses",
    "PublicMixturePair",
    "SampledGaussianPair",
    "approx_pair",
    "discrete_gaussian_pair",
    "discrete_laplace_pair",
    "randomized_response_pair",
]
