"""Lower bounds on epsilon and mu from many independent runs, half with the canary, half without.

Statement: a test with false positive rate FPR and true positive rate TPR against an (eps, delta)-DP
    algorithm has TPR <= e^eps FPR + delta and 1 - FPR <= e^eps (1 - TPR) + delta, and against a
    mu-GDP one Phi^-1(TPR) - Phi^-1(FPR) <= mu. Clopper-Pearson bounds, each at half the allowed
    miss, hold for both rates together.
Conditions: runs independent; the threshold chosen without the runs that measure the rates. Here one
    half of the runs, drawn at random, chooses it and the other half measures.
Validity: bound.
Source: Clopper and Pearson 1934; Jagielski, Ullman and Oprea 2020 (arXiv:2006.07709); Nasr et al.
    2023 (arXiv:2302.07956) for mu.
Error: rounding of beta quantiles.
Vectors: tests/unit/audit/test_many_runs.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from scipy.stats import beta

from tightrope.audit.one_run import Lines, check_confidence, real_array
from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray, check_count, check_delta

MOST_THRESHOLDS = 200


@lru_cache(maxsize=65536)
def clopper_pearson_lower(hits: int, trials: int, miss: float) -> float:
    """A lower bound on a probability, wrong with probability at most `miss`."""
    return 0.0 if hits == 0 else float(beta.ppf(miss, hits, trials - hits + 1))


@lru_cache(maxsize=65536)
def clopper_pearson_upper(hits: int, trials: int, miss: float) -> float:
    return 1.0 if hits == trials else float(beta.isf(miss, hits + 1, trials - hits))


@final
@dataclass(frozen=True)
class Rates:
    """FPR <= false_positive_upper and TPR >= true_positive_lower, together at `confidence`."""

    false_positive_upper: float
    true_positive_lower: float
    confidence: float

    def epsilon_lower(self, delta: float) -> float:
        """The larger of the two inequalities, hits against false alarms and their complements."""
        d = check_delta(delta)
        hit = _log_ratio(self.true_positive_lower - d, self.false_positive_upper)
        miss = _log_ratio(1.0 - self.false_positive_upper - d, 1.0 - self.true_positive_lower)
        return max(hit, miss, 0.0)

    def mu_lower(self) -> float:
        bound = ndtri(self.true_positive_lower) - ndtri(self.false_positive_upper)
        return max(float(bound), 0.0) if math.isfinite(bound) else 0.0

    def refutes(self, lines: Lines) -> bool:
        """Do these rates break one of the inequalities that a claim promises?"""
        alarms, hits = self.false_positive_upper, self.true_positive_lower
        pairs = zip(np.exp(lines.epsilons).tolist(), lines.deltas, strict=True)
        return any(
            hits > growth * alarms + delta or 1.0 - alarms > growth * (1.0 - hits) + delta
            for growth, delta in pairs
        )


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0.0 and below > 0.0 else 0.0


def rates_of(false_alarms: int, absent: int, hits: int, present: int, confidence: float) -> Rates:
    """Bounds on both rates from counts of independent runs."""
    miss = 0.5 * (1.0 - check_confidence(confidence))
    return Rates(
        clopper_pearson_upper(false_alarms, check_count(absent, "absent", low=1), miss),
        clopper_pearson_lower(hits, check_count(present, "present", low=1), miss),
        confidence,
    )


def measure_rates(
    present: ArrayLike, absent: ArrayLike, worth: Callable[[Rates], float], confidence: float
) -> Rates:
    """Rates of the test "score above a threshold", for scores of runs with and without the canary.

    The first half of the runs chooses the threshold, and which side of it is an alarm, by the
    largest `worth`; the second half measures, so the bounds hold for whatever was chosen. The order
    of the runs must know nothing of their scores (`audit_many_runs` shuffles them).
    """
    with_it, without = run_scores(present, "present"), run_scores(absent, "absent")
    first, second = len(with_it) // 2, len(without) // 2
    sign, threshold = _choose(with_it[:first], without[:second], worth, confidence)
    kept, other = sign * with_it[first:], sign * without[second:]
    hits, alarms = int(np.sum(kept > threshold)), int(np.sum(other > threshold))
    return rates_of(alarms, len(other), hits, len(kept), confidence)


def run_scores(values: ArrayLike, name: str) -> FloatArray:
    scores = real_array(values, name)
    if scores.ndim != 1 or len(scores) < 4 or np.isnan(scores).any():
        raise InvalidInput(
            f"{name} must hold one score for each of at least four runs, and no NaN; got shape "
            f"{scores.shape}. Half of the runs choose the threshold, the others test it."
        )
    return scores


def _choose(
    present: FloatArray, absent: FloatArray, worth: Callable[[Rates], float], confidence: float
) -> tuple[float, float]:
    """The (sign, threshold) worth most on these runs; any choice is valid."""
    best, chosen = -1.0, (1.0, 0.0)
    for sign in (1.0, -1.0):
        for threshold in _thresholds(sign * np.concatenate([present, absent])):
            hits = int(np.sum(sign * present > threshold))
            alarms = int(np.sum(sign * absent > threshold))
            found = rates_of(alarms, len(absent), hits, len(present), confidence)
            value = worth(found) + 1e-9 * (hits / len(present) - alarms / len(absent))
            if value > best:
                best, chosen = value, (sign, float(threshold))
    return chosen


def _thresholds(scores: FloatArray) -> FloatArray:
    """Midpoints between neighbouring scores, at most MOST_THRESHOLDS of them, dense at the ends."""
    levels = np.unique(scores[np.isfinite(scores)])
    middles: FloatArray = 0.5 * (levels[1:] + levels[:-1])
    if len(middles) <= MOST_THRESHOLDS:
        return middles
    ends = np.arange(MOST_THRESHOLDS // 4)
    inner = np.linspace(0, len(middles) - 1, MOST_THRESHOLDS // 2).astype(int)
    kept: FloatArray = middles[np.unique(np.concatenate([ends, inner, len(middles) - 1 - ends]))]
    return kept
