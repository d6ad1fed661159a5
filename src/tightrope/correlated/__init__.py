"""Correlated noise: strategies as data, what they move, what they leave, and how they are run."""

from tightrope.correlated.strategies import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    SquareRoot,
    Strategy,
    ToeplitzStrategy,
    Triangular,
    banded_inverse_square_root,
    previous_step,
    square_root,
    white,
)
from tightrope.correlated.streaming import Stream, taps
from tightrope.correlated.workloads import Workload, noise_left

__all__ = [
    "Strategy",
    "ToeplitzStrategy",
    "SquareRoot",
    "BandedToeplitz",
    "InverseToeplitz",
    "BufferedToeplitz",
    "Triangular",
    "white",
    "square_root",
    "banded_inverse_square_root",
    "previous_step",
    "Stream",
    "taps",
    "Workload",
    "noise_left",
]
