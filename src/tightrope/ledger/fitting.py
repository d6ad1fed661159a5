"""What would fit where something does not: fewer steps, or more noise."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

from tightrope.process import NoisySGD

__all__ = ["what_would_fit", "steps_that_fit", "noise_that_fits"]

_MOST_HUNDREDTHS = 10**6  # no more noise than 10,000 is proposed


def what_would_fit(process: Any, fits: Callable[[Any], bool]) -> str:
    """In words, for a refusal."""
    steps = steps_that_fit(process, fits) if isinstance(process, NoisySGD) else 0
    noise = noise_that_fits(process, fits) if hasattr(process, "noise_multiplier") else None
    ways = []
    if steps:
        ways.append(f"{steps} steps at noise {process.noise_multiplier:g}")
    if noise is not None:
        ways.append(f"noise {noise:g} for " + ("these steps" if steps_of(process) else "it"))
    if not ways:
        return "Nothing of this kind would fit."
    return f"What would fit: {', or '.join(ways)}."


def steps_of(process: Any) -> int:
    return process.steps if isinstance(process, NoisySGD) else 0


def steps_that_fit(run: NoisySGD, fits: Callable[[Any], bool]) -> int:
    """The most steps of this run that fit; no more than it has."""
    if run.noise_multiplier == 0.0:
        return 0
    counts = range(1, run.steps + 1)
    return bisect_left(counts, True, key=lambda steps: not fits(replace(run, steps=steps)))


def noise_that_fits(process: Any, fits: Callable[[Any], bool]) -> float | None:
    """The least noise multiplier in hundredths with which it fits; None where none does."""

    def enough(hundredths: int) -> bool:
        return fits(replace(process, noise_multiplier=hundredths / 100))

    low: int = max(ceil(process.noise_multiplier * 100), 1)
    high = low
    while not enough(high):
        if high >= _MOST_HUNDREDTHS:
            return None
        low, high = high, high + high // 4 + 1
    while low == high > 1:  # it fits as it is: how much less would?
        below = max(high - high // 5 - 1, 1)
        low, high = (below, below) if enough(below) else (below, high)
    return (low + bisect_left(range(low, high), True, key=enough)) / 100
