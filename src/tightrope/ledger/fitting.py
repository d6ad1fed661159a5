"""What would fit where something does not: fewer steps, or more noise."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from math import ceil, inf, sqrt
from typing import Any

from tightrope.errors import NotCertified
from tightrope.process import NoisySGD, UserLevel

__all__ = ["what_would_fit", "steps_that_fit", "noise_that_fits"]

_MOST_HUNDREDTHS = 10**6  # no more noise than 10,000 is proposed
_MOST_STEPS = 2**40
_MOST_TIMES = 1e12
_GUESSES = 8  # then halves, whatever the cost is like


def what_would_fit(process: Any, excess: Callable[[Any], float]) -> str:
    """In words, for a refusal. excess: by how much the limit would be passed (Book.excess)."""
    if isinstance(process, UserLevel):
        return what_would_fit(process.run, lambda run: excess(run and replace(process, run=run)))
    excess = _known(excess)
    steps, noise = 0, None
    if isinstance(process, NoisySGD):
        steps = steps_that_fit(process, lambda run: excess(run) <= 0.0)
    if hasattr(process, "noise_multiplier"):
        noise = noise_that_fits(process, excess)
    ways = []
    if steps:
        ways.append(f"{steps} steps at noise {process.noise_multiplier:g}")
    if noise is not None:
        kind = "these steps" if isinstance(process, NoisySGD) else "it"
        ways.append(f"noise {noise:g} for {kind}")
    if not ways:
        return "Nothing of this kind would fit."
    return f"What would fit: {', or '.join(ways)}."


def _known(excess: Callable[[Any], float]) -> Callable[[Any], float]:
    """What nothing could be certified of is not proposed."""

    def known(process: Any) -> float:
        try:
            return excess(process)
        except NotCertified:
            return inf

    return known


def steps_that_fit(run: NoisySGD, fits: Callable[[Any], bool]) -> int:
    """The most steps of this run that fit; no more than it has."""
    if run.noise_multiplier == 0.0:
        return 0
    counts = range(1, min(run.steps, _MOST_STEPS) + 1)
    return bisect_left(counts, True, key=lambda steps: not fits(replace(run, steps=steps)))


def noise_that_fits(process: Any, excess: Callable[[Any], float]) -> float | None:
    """The least noise multiplier in hundredths with which it fits; None where none does.

    What it costs goes about with 1/noise^2, so few values have to be tried.
    """
    left = -excess(None)
    low, high = 0, _MOST_HUNDREDTHS + 1  # too little; enough, or not proposed
    probe = min(max(ceil(process.noise_multiplier * 100), 1), _MOST_HUNDREDTHS)
    for tried in count():
        over = excess(replace(process, noise_multiplier=probe / 100))
        low, high = (low, probe) if over <= 0.0 else (probe, high)
        if high - low == 1:
            return high / 100 if high <= _MOST_HUNDREDTHS else None
        probe = _guess(probe, (over + left) / left if left > 0.0 else inf)
        if tried >= _GUESSES:
            probe = (low + high) // 2
        probe = min(max(probe, low + 1), high - 1)
    raise AssertionError("the two ends meet")


def _guess(probe: int, times: float) -> int:
    """The noise that costs so many times less."""
    return ceil(probe * sqrt(times)) if 0.0 < times < _MOST_TIMES else 2 * probe
