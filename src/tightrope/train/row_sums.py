"""Short sums of the rows of arrays: is a row that was drawn what it was when the run began?

The words of a row, of 32 bits or fewer, are added with random 64-bit weights that nobody is told.
Rows that differ have the same sum with a chance below 2^-32: the weights are drawn after the rows.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.samplers import Indices

__all__ = ["RowSums"]

_AT_ONCE = 2**22  # words added at a time


@final
class RowSums:
    """The sums of all rows of arrays in main memory, which NumPy can write to unseen.

    Arrays on other devices are written to by PyTorch alone, which counts.
    """

    def __init__(self, arrays: Sequence[Tensor]) -> None:
        self._weights = [_weights(part) for part in arrays]
        self._sums = [self._of(arrays, place) for place in range(len(arrays))]

    def check(self, taken: Sequence[Tensor], indices: Indices, advice: str) -> None:
        """Refuse rows that are not what those at these indices were."""
        index = torch.from_numpy(indices)
        for place, sums in enumerate(self._sums):
            found = self._of(taken, place)
            if sums is not None and found is not None and not torch.equal(found, sums[index]):
                raise InvalidInput(f"The data of this run were written to since it began. {advice}")

    def _of(self, arrays: Sequence[Tensor], place: int) -> Tensor | None:
        weights = self._weights[place]
        if weights is None:
            return None
        many = max(_AT_ONCE // max(len(weights), 1), 1)
        chunks = [(_words(chunk) * weights).sum(1) for chunk in arrays[place].split(many)]
        return torch.cat(chunks)


def _weights(part: Tensor) -> Tensor | None:
    if part.device.type != "cpu":
        return None
    count = _words(part[:1]).shape[1]
    return torch.from_numpy(np.frombuffer(secrets.token_bytes(8 * count), dtype=np.int64).copy())


def _words(part: Tensor) -> Tensor:
    """(rows, words) of the bytes of some rows."""
    size = math.prod(part.shape[1:]) * part.element_size()
    word = torch.uint8 if size % 4 else torch.int32
    # a copy: what has one value counts as contiguous whatever its strides
    flat = torch.empty(part.shape, dtype=part.dtype, device="cpu").copy_(part.detach()).reshape(-1)
    raw = flat.view(torch.uint8).view(word)
    return raw.reshape(len(part), size // word.itemsize)
