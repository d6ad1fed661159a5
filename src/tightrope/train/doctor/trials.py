"""Statistical tests as the doctor uses them: exact laws, and one rate of false alarms for all.

A trial states how likely something at least as strange is in a sound run. Every law here is exact
(binomial, chi-square, normal, Kolmogorov), so that the rate holds for small models and few steps
too; `judge` divides the rate among all trials of its group (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy  # which imports its stats when they are needed: that takes long
from numpy.typing import ArrayLike, NDArray

from tightrope.train.doctor.verdict import Finding, fault, good

__all__ = [
    "Trial",
    "judge",
    "binomial",
    "chi_square",
    "kolmogorov",
    "likeliest",
    "normal",
    "phases",
    "correlation",
]


@final
@dataclass(frozen=True)
class Trial:
    """p: the chance of something at least as strange in a sound run."""

    check: str
    p: float
    told: str


def judge(trials: Iterable[Trial], rate: float, blame: dict[str, str]) -> list[Finding]:
    """One finding for each check: a fault where a trial is stranger than its share of the rate."""
    trials = list(trials)
    level = rate / max(len(trials), 1)
    return [_verdict(check, trials, level, why) for check, why in blame.items()]


def _verdict(check: str, trials: list[Trial], level: float, why: str) -> Finding:
    mine = [trial for trial in trials if trial.check == check]
    if not mine:
        return good(check, "too few draws to test")
    worst = min(mine, key=lambda trial: trial.p)
    told = f"{worst.told} (p = {worst.p:.2g}, the strangest of {len(mine)} tests)"
    return fault(check, f"{told}: {why}") if worst.p < level else good(check, told)


def likeliest(p: ArrayLike) -> float:
    """The p-value of the smallest of several."""
    values = np.asarray(p, dtype=np.float64)
    return float(min(1.0, values.min() * values.size)) if values.size else 1.0


def binomial(count: ArrayLike, trials: ArrayLike, chance: ArrayLike) -> Any:
    """Two-sided p-values of counts."""
    below = scipy.stats.binom.cdf(count, trials, chance)
    above = scipy.stats.binom.sf(np.asarray(count) - 1, trials, chance)
    return np.minimum(1.0, 2 * np.minimum(below, above))


def chi_square(squares: ArrayLike, degrees: ArrayLike) -> Any:
    """Two-sided p-values of sums of squares of standard Gaussians."""
    below, above = scipy.stats.chi2.cdf(squares, degrees), scipy.stats.chi2.sf(squares, degrees)
    return np.minimum(1.0, 2 * np.minimum(below, above))


def normal(score: ArrayLike) -> Any:
    """Two-sided p-values of standard Gaussians."""
    return 2 * scipy.stats.norm.sf(np.abs(score))


def kolmogorov(uniform: ArrayLike) -> float:
    """Are these numbers uniform on [0, 1]?"""
    values = np.sort(np.asarray(uniform, dtype=np.float64))
    steps = np.arange(len(values) + 1) / len(values)
    distance = max(float((steps[1:] - values).max()), float((values - steps[:-1]).max()))
    return float(scipy.stats.kstwo.sf(min(distance, 1.0), len(values)))


def correlation(left: NDArray[Any], right: NDArray[Any]) -> tuple[float, float]:
    """Of rows of independent standard Gaussians: correlation, and its p-value given one side."""
    size, product = float((left**2).sum()), float((left * right).sum())
    other = float((right**2).sum())
    if size == 0 or other == 0:
        return 0.0, 1.0
    return product / (size * other) ** 0.5, float(normal(product / size**0.5))


def phases(count: int, lag: int) -> list[Any]:
    """Indices i such that the pairs (i, i + lag) have no member in common, in two turns."""
    first = np.arange(max(count - lag, 0))
    turn = first // lag % 2
    return [part for part in (first[turn == 0], first[turn == 1]) if len(part)]
