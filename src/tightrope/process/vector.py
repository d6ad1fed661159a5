"""Noisy releases of many numbers at once, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.process.adjacency import Adjacency, check_adjacency
from tightrope.process.users import OneRecord
from tightrope.validate import check_count, check_non_negative, check_positive

__all__ = ["DiscreteGaussianVector", "TreeAggregation"]


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
