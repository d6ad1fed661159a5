"""Losses that are divided by how many examples were drawn, or by something computed from them.

One example more then changes the gradients of all others. The factors that the losses were
multiplied by stand in the graph; one that follows the size of the batch over several batches gives
it away. What cannot be told from a public constant or schedule is warned about.
"""

from __future__ import annotations

import math
import random
import warnings
from typing import final

from torch import Tensor

from tightrope.errors import ModelNotPrivate
from tightrope.process.sampling import AbstractSampling, sizes_vary
from tightrope.train.factors import Factor, factors_of
from tightrope.train.gradients.recorder import reading_graphs

__all__ = ["BatchScale"]

_SIZES = 3  # batch sizes that a factor must follow
_FIRST, _CHANCE = 20, 1 / 20  # steps looked at
_SAME, _SAME_BY_CHANCE = 2, 8  # batches of one size and of no other, which may be a constant
_EQUAL = 1e-5
_PLACES = 10_000  # in graphs, remembered at a time

Sized = dict[int, Factor]  # the factor at one place of the graph, for each size of a batch


@final
class BatchScale:
    """Remembers the factors of some batches."""

    def __init__(self, sampling: AbstractSampling) -> None:
        self._same = _SAME_BY_CHANCE if sizes_vary(sampling) else _SAME
        self._chance, self._steps, self._told = random.Random(), 0, False
        self._sizes: set[int] = set()
        self._batches = 0
        self._seen: dict[int, Sized] = {}

    def check(self, losses: Tensor, *, last: bool = True) -> None:
        """Refuse losses whose scale has followed the size of their batch.

        last: do they end a batch? Else they are those of a part, as long as the user wants it.
        """
        size = len(losses)
        if size == 0 or losses.grad_fn is None:
            return
        self._steps, self._batches = self._steps + 1, self._batches + last
        self._sizes.add(size)
        if self._steps > _FIRST and self._chance.random() >= _CHANCE:
            return
        with reading_graphs():
            factors = factors_of(losses)
        if len(self._seen) > _PLACES:
            self._seen.clear()
        places = [self._note(place, size, factor) for place, factor in factors.items()]
        for seen in places:
            if len(seen) >= _SIZES and _follows(seen):
                raise ModelNotPrivate(_FOLLOWS.format(", ".join(map(str, sorted(seen)))))
        if not self._told:
            self._warn(size, places)

    def _note(self, place: int, size: int, factor: Factor) -> Sized:
        seen = self._seen.setdefault(place, {})
        if len(seen) > 2 * _SIZES:
            seen.clear()
        seen.setdefault(size, factor)
        return seen

    def _warn(self, size: int, places: list[Sized]) -> None:
        alone = size > 1 and len(self._sizes) == 1 and self._batches >= self._same
        divided = [max(seen) for seen in places if _is_every_size(seen, 1 if alone else 2)]
        if divided:
            self._told = True
            warnings.warn(_DIVIDED.format(divided[0]), stacklevel=6)
        elif any(map(_is_statistic, places)):
            self._told = True
            warnings.warn(_TENSOR, stacklevel=6)


_FOLLOWS = (
    "The losses are multiplied by a number that follows the size of the batch (seen in batches of "
    "{}), so one example more changes the gradients of all others. Do not average over the batch: "
    "the step divides by expected_batch_size."
)
_DIVIDED = (
    "The losses were divided by {}, which is how many examples were drawn. If that is the batch "
    "size, then one example more changes the gradients of all others, and the guarantee is void. "
    "Do not average over the batch: the step divides by expected_batch_size."
)
_TENSOR = (
    "The losses are multiplied by a tensor without gradient that changes from batch to batch. If "
    "it is computed from the batch (a mean, a maximum, a count), one example changes the gradients "
    "of all others, and the guarantee is void. A public schedule is better given as a number."
)


def _is_every_size(seen: Sized, least: int) -> bool:
    """Is the factor the size in all batches, of at least so many sizes?

    Of one size alone, it may be a constant of the model.
    """
    return len(seen) >= least and all(_is_size(size, f.value) for size, f in seen.items())


def _is_size(size: int, factor: float) -> bool:
    return math.isclose(factor, size, rel_tol=1e-6) or math.isclose(factor * size, 1, rel_tol=1e-6)


def _is_statistic(seen: Sized) -> bool:
    """Is it a tensor that changes from batch to batch?

    One number for each example (a label, a weight) may be the same for all of a batch by chance,
    but hardly so in all batches, and another one in each.
    """
    values = {f.value for f in seen.values() if not math.isnan(f.value)}
    if any(f.each for f in seen.values()):
        return _SIZES <= len(seen) == len(values)
    return len(values) > 1 and all(f.tensor for f in seen.values())


def _follows(seen: Sized) -> bool:
    """Is the factor proportional to the size, or to its inverse, in all batches?"""
    for power in (1, -1):
        constants = [f.value * size**power for size, f in seen.items()]
        if any(map(math.isnan, constants)):
            return False
        spread = max(constants) - min(constants)
        if spread <= _EQUAL * max(map(abs, constants)) and constants[0] != 0:
            return True
    return False
