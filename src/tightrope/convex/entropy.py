"""Randomness of a private fit: operating-system entropy, or a seed that forfeits privacy."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from tightrope.entropy import open_stream
from tightrope.validate import FloatArray

__all__ = ["Entropy"]


@final
class Entropy:
    """The randomness of one fit, each request under a key of its own (see tightrope.entropy).

    With a seed the noise can be recomputed by whoever knows the seed, so `private` is False and
    stays so.
    """

    def __init__(self, seed: Any = None) -> None:
        if isinstance(seed, np.random.RandomState):  # what scikit-learn passes around
            seed = int(seed.randint(2**63, dtype=np.int64))
        self._stream = open_stream("convex", seed=seed)

    @property
    def private(self) -> bool:
        return self._stream.private

    def normal(self, shape: tuple[int, ...]) -> FloatArray:
        """Independent standard normal numbers."""
        return self._stream.generator().standard_normal(shape)

    def included(self, count: int, rate: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each of `count` records, whether an independent coin of bias `rate` says yes."""
        return np.asarray(self._stream.generator().random(count) < rate)

    def poisson(self, mean: float) -> int:
        """A Poisson number of this mean."""
        return int(self._stream.generator().poisson(mean))

    def whole_number(self, low: int, high: int) -> int:
        """Uniform on low, ..., high."""
        return int(self._stream.generator().integers(low, high, endpoint=True))
