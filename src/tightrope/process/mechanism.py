"""Single noisy releases, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, check_adjacency
from tightrope.process.users import OneRecord
from tightrope.validate import (
    check_count,
    check_delta,
    check_epsilon,
    check_non_negative,
    check_order,
    check_positive,
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
    "TreeAggregation",
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
