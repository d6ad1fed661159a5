"""Single noisy releases, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, OneRecord, check_adjacency
from tightrope.validate import (
    check_count,
    check_delta,
    check_epsilon,
    check_non_negative,
    check_order,
    check_positive,
    check_probability,
    one_number,
)

if TYPE_CHECKING:
    from tightrope.process import Process

__all__ = [
    "GaussianMechanism",
    "LaplaceMechanism",
    "DiscreteLaplaceMechanism",
    "DiscreteGaussianMechanism",
    "RandomizedResponse",
    "DeclaredApproxDP",
    "DeclaredRenyi",
    "DeclaredGaussianDP",
    "DeclaredZeroConcentrated",
    "ExponentialMechanism",
    "PermuteAndFlip",
    "DiscreteGaussianVector",
    "ThresholdedCounts",
    "TreeAggregation",
    "CutDiscreteGaussianMechanism",
    "DeclaredPair",
    "MixtureOfGaussians",
    "SampledRelease",
]

_DEFAULT = Adjacency.ADD_OR_REMOVE


@final
@dataclass(frozen=True)
class GaussianMechanism(OneRecord):
    """Gaussian noise; `noise_multiplier` = standard deviation / L2 sensitivity for `adjacency`.

    >>> from tightrope import GaussianMechanism, account
    >>> print(account(GaussianMechanism(noise_multiplier=4.0)).epsilon(delta=1e-5))
    [0.9263415039, 0.926341504]
    """

    noise_multiplier: float
    adjacency: Adjacency = _DEFAULT

    def __post_init__(self) -> None:
        _store(self, noise_multiplier=check_non_negative(self.noise_multiplier, "noise_multiplier"))


@final
@dataclass(frozen=True)
class LaplaceMechanism(OneRecord):
    """Laplace noise on one number; `noise_multiplier` = scale / L1 sensitivity for `adjacency`.

    >>> from tightrope import LaplaceMechanism, account
    >>> print(account(LaplaceMechanism(2.0)).epsilon(delta=0.0))
    0.5
    """

    noise_multiplier: float
    adjacency: Adjacency = _DEFAULT

    def __post_init__(self) -> None:
        _store(self, noise_multiplier=check_non_negative(self.noise_multiplier, "noise_multiplier"))


@final
@dataclass(frozen=True)
class DiscreteLaplaceMechanism(OneRecord):
    """Noise k of mass proportional to e^{-decay |k|} on one integer of integer `sensitivity`."""

    decay: float
    sensitivity: int = 1
    adjacency: Adjacency = _DEFAULT

    def __post_init__(self) -> None:
        _store(
            self,
            decay=check_positive(self.decay, "decay"),
            sensitivity=check_count(self.sensitivity, "sensitivity", low=1),
        )


@final
@dataclass(frozen=True)
class DiscreteGaussianMechanism(OneRecord):
    """Discrete Gaussian noise (parameter `sigma`) on one integer of integer `sensitivity`.

    >>> from tightrope import DiscreteGaussianMechanism, account
    >>> print(account(DiscreteGaussianMechanism(sigma=4.0)).epsilon(delta=1e-5).upper < 1.1)
    True
    """

    sigma: float
    sensitivity: int = 1
    adjacency: Adjacency = _DEFAULT

    def __post_init__(self) -> None:
        _store(
            self,
            sigma=check_non_negative(self.sigma, "sigma"),
            sensitivity=check_count(self.sensitivity, "sensitivity", low=1),
        )


@final
@dataclass(frozen=True)
class RandomizedResponse(OneRecord):
    """Keep one of `categories` answers, or with probability `flip` answer uniformly at random.

    A null record (zero-out neighbours) always answers uniformly at random.

    >>> from tightrope import RandomizedResponse, account
    >>> print(account(RandomizedResponse(flip=0.5)).epsilon(delta=0.0))
    [1.098612288, 1.098612289]
    """

    flip: float
    categories: int = 2
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        _store(
            self,
            flip=check_delta(self.flip, "flip"),
            categories=check_count(self.categories, "categories", low=2),
        )


@final
@dataclass(frozen=True)
class DeclaredApproxDP(OneRecord):
    """A release known to be (epsilon, delta)-DP.

    >>> from tightrope import DeclaredApproxDP, account
    >>> print(account(DeclaredApproxDP(epsilon=1.0, delta=1e-6)).epsilon(delta=1e-5).upper <= 1)
    True
    """

    epsilon: float
    delta: float = 0.0
    adjacency: Adjacency = _DEFAULT

    def __post_init__(self) -> None:
        _store(self, epsilon=check_epsilon(self.epsilon), delta=check_delta(self.delta))


@final
@dataclass(frozen=True)
class DeclaredRenyi(OneRecord):
    """A release known to be (order, gamma)-Renyi DP for each of the listed orders.

    >>> from tightrope import DeclaredRenyi, account
    >>> known = DeclaredRenyi(orders=(2.0, 8.0, 32.0), gammas=(0.01, 0.04, 0.16))
    >>> print(account(known).epsilon(delta=1e-5).upper < 1)
    True
    """

    orders: tuple[float, ...]
    gammas: tuple[float, ...]
    adjacency: Adjacency = _DEFAULT

    def __post_init__(self) -> None:
        orders = tuple(check_order(order) for order in self.orders)
        gammas = tuple(check_non_negative(gamma, "gamma") for gamma in self.gammas)
        if not orders or len(orders) != len(gammas):
            raise InvalidInput(
                f"Renyi DP is declared by one gamma for each order; got {len(orders)} orders and "
                f"{len(gammas)} gammas."
            )
        _store(self, orders=orders, gammas=gammas)


@final
@dataclass(frozen=True)
class DeclaredGaussianDP(OneRecord):
    """A release known to be mu-Gaussian DP.

    >>> from tightrope import DeclaredGaussianDP, account
    >>> print(account(DeclaredGaussianDP(mu=0.5)).epsilon(delta=1e-5))
    [0, 1.993091405]
    """

    mu: float
    adjacency: Adjacency = _DEFAULT

    def __post_init__(self) -> None:
        _store(self, mu=check_non_negative(self.mu, "mu"))


@final
@dataclass(frozen=True)
class DeclaredZeroConcentrated(OneRecord):
    """A release known to be (xi, rho)-zCDP: (order, xi + rho * order)-Renyi DP for every order.

    >>> from tightrope import DeclaredZeroConcentrated, account
    >>> print(account(DeclaredZeroConcentrated(rho=0.01)).epsilon(delta=1e-5).upper < 1)
    True
    """

    rho: float
    adjacency: Adjacency = _DEFAULT
    xi: float = 0.0

    def __post_init__(self) -> None:
        _store(self, rho=check_non_negative(self.rho, "rho"), xi=check_non_negative(self.xi, "xi"))


def _store(process: Process, **values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            one_number(value, name)
        object.__setattr__(process, name, value)
    object.__setattr__(process, "adjacency", check_adjacency(process.adjacency))


# ---- Releases of one candidate out of many, chosen by noisy scores, as data ----------------------


class _Choice(OneRecord):
    epsilon: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", float(check_epsilon(self.epsilon)))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


@final
@dataclass(frozen=True)
class ExponentialMechanism(_Choice):
    """One candidate, with probability proportional to e^{epsilon * score / (2 sensitivity)}.

    `sensitivity` bounds the change of every score between neighbours of `adjacency`.
    """

    epsilon: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE


@final
@dataclass(frozen=True)
class PermuteAndFlip(_Choice):
    """The first candidate in random order whose coin of chance e^{epsilon (score - best)/(2 s)}
    shows heads, s being the sensitivity of the scores: report-noisy-max with exponential noise.
    """

    epsilon: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE


# ---- Noisy releases of many numbers at once, as data ---------------------------------------------


@final
@dataclass(frozen=True)
class DiscreteGaussianVector(OneRecord):
    """Discrete Gaussian noise of parameter `sigma` on each of `dimension` whole numbers.

    `sensitivity` bounds the Euclidean length by which they move between neighbours of `adjacency`.
    """

    sigma: float
    sensitivity: float
    dimension: int
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", float(check_non_negative(self.sigma, "sigma")))
        moved = float(check_positive(self.sensitivity, "sensitivity"))
        object.__setattr__(self, "sensitivity", moved)
        object.__setattr__(self, "dimension", check_count(self.dimension, "dimension", low=1))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


@final
@dataclass(frozen=True)
class ThresholdedCounts(OneRecord):
    """Which categories occur: those whose count plus noise reaches `threshold`, and that count.

    Every record has at most one category. Categories that do not occur are never shown. Noise is
    discrete Gaussian of parameter `sigma`, drawn for each category that occurs.
    """

    sigma: float
    threshold: int
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", float(check_non_negative(self.sigma, "sigma")))
        object.__setattr__(self, "threshold", check_count(self.threshold, "threshold", low=2))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


@final
@dataclass(frozen=True)
class TreeAggregation(OneRecord):
    """The sums over all nodes of a binary tree of `leaves` batches, each with Gaussian noise.

    A node is released once all its leaves are there, so that sums of batches 1 to n can be read off
    at any time. Every record is in one batch, fixed in advance. `noise_multiplier` is relative to
    the norm of one record, of which a replaced one moves two.
    """

    noise_multiplier: float
    leaves: int
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        noise = float(check_non_negative(self.noise_multiplier, "noise_multiplier"))
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "leaves", check_count(self.leaves, "leaves", low=1))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))

    @property
    def depth(self) -> int:
        """The most nodes that one record is in: 1 + floor(log2 leaves)."""
        return self.leaves.bit_length()


# ---- Releases whose laws with and without a record are given outright, as data -------------------


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


# ---- One release on a secret Poisson sample of the records, as data ------------------------------


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
