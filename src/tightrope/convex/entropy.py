"""Randomness of a private fit: operating-system entropy, or a seed that forfeits privacy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from tightrope.entropy import Words, open_stream
from tightrope.validate import FloatArray


@final
class Entropy:
    """The randomness of one fit, each request under a key of its own (see tightrope.entropy).

    With a seed the noise can be recomputed by whoever knows the seed, so `private` is False and
    stays so. `cryptographic`: noise and coins from SHAKE-256 instead of the ordinary generator.
    """

    def __init__(self, seed: int | None = None, *, cryptographic: bool = False) -> None:
        if isinstance(seed, np.random.RandomState):  # what scikit-learn passes around
            seed = int(seed.randint(2**63, dtype=np.int64))
        self._stream = open_stream("convex", seed=seed, cryptographic=cryptographic)
        self._cryptographic = cryptographic

    @property
    def description(self) -> str:
        return self._stream.description

    @property
    def private(self) -> bool:
        return self._stream.private

    def normal(self, shape: tuple[int, ...]) -> FloatArray:
        """Independent standard normal numbers."""
        if self._cryptographic:
            return normal_from_words(self._stream.words, shape)
        return self._stream.generator().standard_normal(shape)

    def included(self, count: int, rate: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each of `count` records, whether an independent coin of bias `rate` says yes."""
        if self._cryptographic:
            return np.asarray((self._stream.words(count) >> np.uint64(11)) * 2.0**-53 < rate)
        return np.asarray(self._stream.generator().random(count) < rate)

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return self._stream.uniform()

    def whole_number(self, low: int, high: int) -> int:
        """Uniform on low, ..., high."""
        if self._cryptographic:  # 128 bits, so that the remainder favours none by 2^-64 of it
            first, second = (int(word) for word in self._stream.words(2))
            return low + ((first << 64) | second) % (high - low + 1)
        return int(self._stream.generator().integers(low, high, endpoint=True))


def normal_from_words(words: Callable[[int], Words], shape: tuple[int, ...]) -> FloatArray:
    """Standard normal numbers by the method of Box and Muller, from three words for each.

    The radius has 128 bits, so it reaches 13 standard deviations; the angle has 53.
    """
    count = math.prod(shape)
    high, low, angle = (words(count).astype(np.float64) * 2.0**-64 for _ in range(3))
    uniform = high + (low + 2.0**-65) * 2.0**-64  # in (0, 1], with all its leading digits
    radius = np.sqrt(-2.0 * np.log(np.minimum(uniform, 1.0)))
    return np.asarray(radius * np.cos(2.0 * math.pi * angle)).reshape(shape)
