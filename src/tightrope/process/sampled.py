"""One release on a secret Poisson sample of the records, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, check_adjacency
from tightrope.process.mechanism import (
    DeclaredPair,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    LaplaceMechanism,
)
from tightrope.process.users import OneRecord
from tightrope.validate import check_probability, one_number

__all__ = ["SampledRelease"]

_Release = (
    LaplaceMechanism
    | DiscreteLaplaceMechanism
    | DiscreteGaussianMechanism
    | DeclaredPair
    | DeclaredZeroConcentrated
)


@final
@dataclass(frozen=True)
class SampledRelease(OneRecord):
    """`release` of a sum over a batch that every record joins with probability `rate`.

    The noise of `release` is relative to the most that one record adds to the sum, either way, so
    it is declared for add-or-remove neighbours; `adjacency` says for whom the sampled one is
    accounted. A DeclaredPair may be any release; it is sampled for add-or-remove neighbours only.
    """

    release: _Release
    rate: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        known = isinstance(self.release, _Release)
        if not known or self.release.adjacency is not Adjacency.ADD_OR_REMOVE:
            raise InvalidInput(
                f"A sampled release is Laplace, discrete Laplace or discrete Gaussian noise whose "
                "sensitivity is that to one record added or removed, or a DeclaredPair or "
                f"DeclaredZeroConcentrated for such neighbours; got {self.release!r}. "
                "Sampled Gaussian noise is NoisySGD(PoissonSampling(rate), noise_multiplier, 1)."
            )
        rate = one_number(check_probability(self.rate, "rate"), "rate")
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))
