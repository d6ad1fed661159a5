"""Randomness of a private fit: operating-system entropy, or a seed that forfeits privacy."""

from __future__ import annotations

import os
from typing import Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

__all__ = ["Entropy"]

_KEY_BYTES = 32


@final
class Entropy:
    """One stream of randomness for one fit.

    Without a seed it starts from 256 bits of the operating system's entropy. With a seed the noise
    can be recomputed by whoever knows the seed, so `private` is False and stays so.
    """

    def __init__(self, seed: Any = None) -> None:
        self.private = seed is None
        self._generator = _generator(seed)

    def normal(self, shape: tuple[int, ...]) -> FloatArray:
        """Independent standard normal numbers."""
        return self._generator.standard_normal(shape)

    def included(self, count: int, rate: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each of `count` records, whether an independent coin of bias `rate` says yes."""
        return np.asarray(self._generator.random(count) < rate)

    def poisson(self, mean: float) -> int:
        """A Poisson number of this mean."""
        return int(self._generator.poisson(mean))

    def whole_number(self, low: int, high: int) -> int:
        """Uniform on low, ..., high."""
        return int(self._generator.integers(low, high, endpoint=True))


def _generator(seed: Any) -> np.random.Generator:
    if seed is None:
        key = int.from_bytes(os.urandom(_KEY_BYTES), "little")
        return np.random.Generator(np.random.PCG64DXSM(key))
    if isinstance(seed, np.random.RandomState):  # what scikit-learn passes around
        return np.random.default_rng(seed.randint(2**31, size=4))
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidInput(
            f"A seed must be a whole number >= 0; got {seed!r}. Leave it out (None) for a private "
            "fit: then the operating system's entropy is used."
        )
    return np.random.default_rng(int(seed))
