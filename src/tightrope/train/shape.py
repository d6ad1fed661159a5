"""The one number of rows with which a program runs."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import poisson

from tightrope.validate import check_count

__all__ = ["fixed_size"]

_LARGEST = 8192  # rows at a time if the user sets no limit
_OVERHEAD = 8.0  # a run of the program costs about as much as so many more rows


def fixed_size(expected: float, limit: int | None, *, exact: bool) -> int:
    """Rows of the program: those that make the padded rows of a batch fewest.

    A program always has the same number of rows, so batches are filled up, and larger ones are done
    in parts. exact: whether every batch has the expected size; otherwise it is random about it.
    """
    # A program of one row could not tell a dimension of the batch from one of size 1.
    largest = _LARGEST if limit is None else max(2, check_count(limit, "micro_batch", low=1))
    if exact:
        parts = math.ceil(expected / largest)
        return max(2, math.ceil(expected / parts))
    spread = math.sqrt(expected)
    sizes = np.arange(1, math.ceil(expected + 6 * spread) + 2)
    chance = poisson.pmf(sizes, expected)
    wanted = {
        math.ceil((expected + deviations * spread) / parts)
        for deviations in np.arange(0.0, 4.1, 0.25)
        for parts in range(1, 2 + math.ceil(expected / largest) + 2)
    }
    candidates = sorted(size for size in wanted if 2 <= size <= largest) or [2]
    cost = [
        float(((size + _OVERHEAD) * np.ceil(sizes / size) * chance).sum()) for size in candidates
    ]
    return candidates[int(np.argmin(cost))]
