"""Releases whose laws with and without a record are given outright, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, check_adjacency
from tightrope.process.users import OneRecord
from tightrope.validate import check_count, check_non_negative, check_positive, check_probability

__all__ = ["CutDiscreteGaussianMechanism", "DeclaredPair", "MixtureOfGaussians"]

_MOST_OUTCOMES, _SUM_TOLERANCE = 2_000_001, 1e-12
_LARGEST_BOUND = 37.0  # deviations: what is cut beyond weighs less than 1e-290


@final
@dataclass(frozen=True)
class DeclaredPair(OneRecord):
    """A release whose outcomes have these two laws, or dominated ones, on every two neighbours.

    first[i] and second[i] are the probabilities of the same outcome; where one of two neighbours
    has one record more, first is its law. Both orders are accounted.

    >>> from tightrope import account
    >>> from tightrope.process import DeclaredPair
    >>> print(account(DeclaredPair((0.75, 0.25), (0.25, 0.75))).epsilon(delta=0.0))
    [0, 1.098612289]
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        laws = []
        for name in ("first", "second"):
            laws.append(_chances(getattr(self, name), name))
            object.__setattr__(self, name, laws[-1])
        if len(laws[0]) != len(laws[1]):
            raise InvalidInput(
                f"Two laws of the same outcomes have equally many; got {len(laws[0])} and "
                f"{len(laws[1])}. Give 0 for an outcome that one of them does not have."
            )
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


@final
@dataclass(frozen=True)
class MixtureOfGaussians(OneRecord):
    """Gaussian noise on a sum that a record moves by sensitivities[i] with probability chances[i].

    By how much is drawn afresh and kept secret: Poisson sampling is (0, 1) with (1 - rate, rate).
    Of vectors, the sensitivities are lengths.
    """

    noise_std: float
    sensitivities: tuple[float, ...]
    chances: tuple[float, ...]
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_std", float(check_positive(self.noise_std, "noise_std")))
        moves = tuple(float(check_non_negative(s, "sensitivities")) for s in self.sensitivities)
        object.__setattr__(self, "sensitivities", moves)
        object.__setattr__(self, "chances", _chances(self.chances, "chances"))
        if len(moves) != len(self.chances):
            raise InvalidInput(
                f"Each sensitivity has one probability; got {len(moves)} sensitivities and "
                f"{len(self.chances)} chances."
            )
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


@final
@dataclass(frozen=True)
class CutDiscreteGaussianMechanism(OneRecord):
    """Discrete Gaussian noise of parameter `sigma` that is drawn again until it is within `bound`.

    On one whole number of integer `sensitivity`.
    """

    sigma: float
    bound: int
    sensitivity: int = 1
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", float(check_positive(self.sigma, "sigma")))
        for name in ("bound", "sensitivity"):
            object.__setattr__(self, name, check_count(getattr(self, name), name, low=1))
        if 2 * self.bound >= _MOST_OUTCOMES or self.bound > _LARGEST_BOUND * self.sigma:
            raise InvalidInput(
                f"bound must be at most a million and {_LARGEST_BOUND:g} sigma; got {self.bound}. "
                "Noise that is cut further out is that of DiscreteGaussianMechanism."
            )
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


def _chances(given: object, name: str) -> tuple[float, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InvalidInput(f"{name} must be a list of probabilities; got {given!r:.100}.")
    found = tuple(float(check_probability(chance, name)) for chance in given)
    if not 1 <= len(found) <= _MOST_OUTCOMES or abs(math.fsum(found) - 1.0) > _SUM_TOLERANCE:
        raise InvalidInput(
            f"{name} must be at most {_MOST_OUTCOMES:,} probabilities that sum to 1 up to 1e-12; "
            f"got {len(found)} that sum to {math.fsum(found)!r}."
        )
    return found
