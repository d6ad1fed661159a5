"""Losses that are divided by how many examples were drawn, or by something computed from them.

One example more then changes the gradients of all others. The factors that the losses were
multiplied by stand in the graph; one that follows the size of the batch over several batches gives
it away. What cannot be told from a public constant or schedule is warned about.
"""

from __future__ import annotations

import math
import random
import warnings
from typing import Any, final

import torch
from torch import Tensor

from tightrope.errors import ModelNotPrivate
from tightrope.process.sampling import (
    AbstractSampling,
    BallsInBinsSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
)
from tightrope.train.gradients.recorder import reading_graphs

__all__ = ["BatchScale"]

_DEPTH = 200  # nodes from the losses down
_SIZES = 3  # batch sizes that a factor must follow
_FIRST, _CHANCE = 20, 1 / 20  # steps looked at
_SAME, _SAME_BY_CHANCE = 2, 8  # batches of one size and of no other, which may be a constant
_BY_CHANCE = PoissonSampling, TruncatedPoissonSampling, BallsInBinsSampling
_EQUAL = 1e-5

Factor = tuple[float, bool]  # its value, and whether it came as a tensor


@final
class BatchScale:
    """Remembers the factors of some batches."""

    def __init__(self, sampling: AbstractSampling) -> None:
        self._same = _SAME_BY_CHANCE if isinstance(sampling, _BY_CHANCE) else _SAME
        self._chance, self._steps, self._told = random.Random(), 0, False
        self._sizes: set[int] = set()
        self._seen: dict[tuple[str, ...], dict[int, list[Factor]]] = {}

    def check(self, losses: Tensor) -> None:
        """Refuse losses whose scale has followed the size of their batch."""
        if losses.shape[0] < 2 or losses.grad_fn is None:
            return
        self._steps += 1
        self._sizes.add(len(losses))
        if self._steps > _FIRST and self._chance.random() >= _CHANCE:
            return
        with reading_graphs():
            names, factors = _factors(losses)
        if not factors:
            return
        if len(self._seen) > 64:
            self._seen.clear()
        seen = self._seen.setdefault(names, {})
        if len(seen) > 2 * _SIZES:
            seen.clear()
        seen.setdefault(len(losses), factors)
        if len(seen) >= _SIZES and _follows(seen):
            raise ModelNotPrivate(_FOLLOWS.format(", ".join(map(str, sorted(seen)))))
        if not self._told:
            self._warn(len(losses), factors, seen)

    def _warn(self, size: int, factors: list[Factor], seen: dict[int, list[Factor]]) -> None:
        alone = len(self._sizes) == 1 and self._steps >= self._same
        if any(_is_every_size(k, seen, 1 if alone else 2) for k in range(len(factors))):
            self._told = True
            warnings.warn(_DIVIDED.format(size), stacklevel=6)
        elif any(a[0] != b[0] and a[1] for other in seen.values()
                 for a, b in zip(factors, other, strict=False)):  # fmt: skip
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


def _is_every_size(k: int, seen: dict[int, list[Factor]], least: int) -> bool:
    """Is the factor k the size in all batches, of at least so many sizes?

    Of one size alone, it may be a constant of the model.
    """
    sizes = [(size, factors[k][0]) for size, factors in seen.items() if k < len(factors)]
    return len(sizes) >= least and all(_is_size(size, factor) for size, factor in sizes)


def _is_size(size: int, factor: float) -> bool:
    return math.isclose(factor, size, rel_tol=1e-6) or math.isclose(factor * size, 1, rel_tol=1e-6)


def _follows(seen: dict[int, list[Factor]]) -> bool:
    """Is one factor proportional to the size, or to its inverse, in all batches?"""
    for k in range(min(map(len, seen.values()))):
        pairs = [(size, factors[k][0]) for size, factors in seen.items()]
        for power in (1, -1):
            constants = [factor * size**power for size, factor in pairs]
            spread = max(constants) - min(constants)
            if spread <= _EQUAL * max(map(abs, constants)) and constants[0] != 0:
                return True
    return False


def _factors(losses: Tensor) -> tuple[tuple[str, ...], list[Factor]]:
    """Names of the first nodes of the graph, and the constant factors among their operands."""
    names: list[str] = []
    factors: list[Factor] = []
    queue: list[Any] = [losses.grad_fn]
    seen = set(queue)
    for node in queue:
        if len(names) >= _DEPTH:
            break
        names.append(node.name())
        if node.name() in ("MulBackward0", "DivBackward0"):
            factors += _constants(node)
        fresh = [child for child, _ in node.next_functions if child is not None]
        queue += [child for child in fresh if child not in seen]
        seen.update(fresh)
    return tuple(names), factors


def _constants(node: Any) -> list[Factor]:
    """The operands without gradient, where all their values are one number.

    A Python number stands in the graph as a tensor of 64 bits on the CPU.
    """
    found = []
    for (child, _), name in zip(node.next_functions, ("_saved_self", "_saved_other"), strict=False):
        value = getattr(node, name, None) if child is None else None
        if isinstance(value, Tensor) and value.dim() <= 1 and value.numel():
            first = float(value.reshape(-1)[0])
            number = value.dim() == 0 and not value.is_cuda and value.dtype in _NUMBERS
            found += [(first, not number)] if bool((value == first).all()) else []
    return found


_NUMBERS = (torch.float64, torch.int64, torch.bool, torch.complex128)
