"""Findings of an examination, and statistical tests with one rate of false alarms for all.

A trial states how likely something at least as strange is in a sound run. Every law here is exact
(binomial, chi-square, normal, Kolmogorov), so the rate holds for small models and few steps too;
`judge` divides the rate among all trials of its group (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, final

import numpy as np
import scipy  # which imports its stats when they are needed: that takes long
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Diagnosis", "Finding", "Trial", "Verdict", "binomial", "chi_square", "correlation", "fault",
    "good", "judge", "kolmogorov", "likeliest", "normal", "note", "phases",
]  # fmt: skip


class Verdict(Enum):
    """GOOD: tested and in order. NOTE: worth knowing. FAULT: guarantee or training fails."""

    GOOD = "good"
    NOTE = "note"
    FAULT = "fault"


@final
@dataclass(frozen=True)
class Finding:
    """The outcome of one check, in words."""

    check: str
    verdict: Verdict
    text: str


def good(check: str, text: str) -> Finding:
    """Tested and in order."""
    return Finding(check, Verdict.GOOD, text)


def note(check: str, text: str) -> Finding:
    """Worth knowing, and no fault."""
    return Finding(check, Verdict.NOTE, text)


def fault(check: str, text: str) -> Finding:
    """The guarantee or the training fails."""
    return Finding(check, Verdict.FAULT, text)


@final
@dataclass(frozen=True)
class Diagnosis:
    """All findings. They describe private data: do not publish them.

    false_alarm: the largest chance that a sound run is accused, over all statistical tests.
    """

    findings: tuple[Finding, ...]
    false_alarm: float = 0.0

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are faults."""
        return tuple(f for f in self.findings if f.verdict is Verdict.FAULT)

    @property
    def healthy(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def of(self, check: str) -> tuple[Finding, ...]:
        """The findings of one check."""
        return tuple(f for f in self.findings if f.check == check)

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON data."""
        rows = [
            {"check": f.check, "verdict": f.verdict.value, "text": f.text} for f in self.findings
        ]
        return {"healthy": self.healthy, "false_alarm": self.false_alarm, "findings": rows}

    def __str__(self) -> str:
        marks = {Verdict.GOOD: "ok   ", Verdict.NOTE: "note ", Verdict.FAULT: "FAULT"}
        return "\n".join(f"{marks[f.verdict]} {f.check}: {f.text}" for f in self.findings)


class Trial(NamedTuple):
    """p: the chance of something at least as strange in a sound run."""

    check: str
    p: float
    text: str


def judge(trials: Iterable[Trial], rate: float, blame: dict[str, str]) -> list[Finding]:
    """One finding for each check: a fault where a trial is stranger than its share of the rate."""
    trials, found = list(trials), []
    level = rate / max(len(trials), 1)
    for check, why in blame.items():
        mine = [trial for trial in trials if trial.check == check]
        if not mine:
            found.append(good(check, "too few draws to test"))
            continue
        worst = min(mine, key=lambda trial: trial.p)
        text = f"{worst.text} (p = {worst.p:.2g}, the strangest of {len(mine)} tests)"
        found.append(fault(check, f"{text}: {why}") if worst.p < level else good(check, text))
    return found


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
