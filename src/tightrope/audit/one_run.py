"""What right guesses in one run prove: of epsilon, of a trade-off curve, of a whole claim.

1. Lower bounds on epsilon from one run: many canaries, each in the data by a fair coin.

Statement: m canaries are independently in or out with probability 1/2; from the output alone an
    attacker guesses r of them and abstains on the rest. Under (epsilon, delta)-DP
    P(at least v right) <= P(B >= v) + 2 m delta max_{1<=i<=v} P(v > B >= v - i)/i,
    B ~ Bin(r, 1/(1 + e^-epsilon)).
Conditions: the neighbours of the claim are the two states of one canary (in or out for
    add-or-remove; one of two records for replace-one); r is fixed before the output is seen.
Validity: bound.
Source: Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846), Theorem 5.2.
Error: rounding of binomial tails, about 1e-13 relative.
Vectors: one_run_audit_pvalue in tests/golden/audit.json.

2. Refuting a trade-off curve, Gaussian DP above all, from one run.

Statement: as in `one_run`, c_g guesses on m canaries, c of them right. With p_j = P(j right),
    r_c = sum_{j>=c} j p_j/m (a uniformly chosen canary is guessed, rightly, and at least c are
    right) and h_c = sum_{j>=c} (c_g - j) p_j/m (guessed wrongly, ...), f-DP gives
    h_{c-1} >= f(1 - r_c) for every c. If P(at least c right) were tau, then r_c >= tau c/m, and
    following the inequalities down to c = 0 the total r_0 + h_0, which is c_g/m, would be
    reached or passed.
Conditions: those of `one_run`; f convex, for both orders of the neighbours.
Validity: bound.
Source: Mahloujifar, Melis and Chaudhuri 2024 (arXiv:2410.22235), Theorem 9 and Algorithm 3.
    Flipping canary i, all else held: the guess stays and turns from right to wrong, so the wrong
    event of count c - 1 is the right event of count c under the neighbour; convexity of f averages
    over i. Checked against the linear program of all the inequalities (tests).
Error: rounding only.
Vectors: tests/unit/audit/test_one_run.py.

3. Does what an attack saw refute a claim, anywhere on its trade-off curve?

Statement: a claim is (eps_k, delta_k)-DP for many k at once, so its trade-off function f lies above
    all the lines 1 - delta_k - e^eps_k x and their mirror images. Under the claim P(at least v of r
    guesses right) is at most the bound of (1) for each k, and at most that of
    (2) for the largest of the lines. All of them bound the same probability, so the
    least of them does, and nothing is paid for trying all: with c the smallest count whose bound is
    below the allowed miss, a claim is refused only where v >= c, so a true one with at most that
    probability.
    Many runs: TPR <= e^eps_k FPR + delta_k, and the same of the complements, for every k.
Conditions: those of (1) and of `many_runs`.
Validity: bound.
Source: derived here; Neyman and Pearson 1933 for the region, (1), (2) and `many_runs` for the
    counts.
Error: more lines would refute more; every set of lines is on the safe side.
Vectors: tests/attacks/test_audit_evidence.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, expit, ndtr, ndtri
from scipy.stats import binom

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.validate import (
    FloatArray,
    check_count,
    check_delta,
    check_epsilon,
    check_probability,
)

Bits = NDArray[np.bool_]
_LARGEST = 100.0
_TOLERANCE = 1e-6


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest chance of so many right guesses against an (epsilon, delta)-DP algorithm."""
    m, r, v = check_guesses(canaries, guesses, correct)
    eps, d = check_epsilon(epsilon), check_delta(delta)
    law = binom(r, 1.0 / (1.0 + math.exp(-eps)))
    chance = float(law.sf(v - 1))
    if d > 0.0 and v > 0:
        steps = np.arange(1, v + 1)
        window = np.cumsum(law.pmf(v - steps))  # P(v > B >= v - i) for i = 1..v
        chance += 2.0 * m * d * float(np.max(window / steps))
    return min(chance, 1.0)


@lru_cache(maxsize=4096)
def epsilon_lower(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """The largest epsilon that this many right guesses refute at this confidence; 0 if none."""
    miss = 1.0 - check_confidence(confidence)
    return _most(lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) < miss)


def check_guesses(canaries: int, guesses: int, correct: int) -> tuple[int, int, int]:
    m = check_count(canaries, "canaries", low=1)
    r, v = check_count(guesses, "guesses"), check_count(correct, "correct")
    if not v <= r <= m:
        raise InvalidInput(
            f"There cannot be more guesses than canaries, nor more right guesses than guesses; got "
            f"{m} canaries, {r} guesses, {v} right."
        )
    return m, r, v


def check_confidence(confidence: float) -> float:
    level = check_probability(confidence, "confidence")
    if not 0.0 < level < 1.0:
        raise InvalidInput(
            f"confidence is the chance that the bound holds, strictly between 0 and 1; got {level}."
        )
    return float(level)


def refutes(
    survivor: Callable[[float], float], canaries: int, guesses: int, correct: int, miss: float
) -> bool:
    """Are this many right guesses less likely than `miss` under the trade-off curve f?

    survivor(x) = f(1 - x): the least mass under one neighbour of an event of mass x under another.
    """
    m, total, c = check_guesses(canaries, guesses, correct)
    right, wrong = miss * c / m, miss * (total - c) / m
    for count in range(c - 1, -1, -1):
        least = max(wrong, survivor(right))
        right += count / (total - count) * (least - wrong)
        wrong = least
        if right + wrong > total / m:
            return True
    return False


def gaussian_survivor(mu: float) -> Callable[[float], float]:
    """f(1 - x) = Phi(Phi^-1(x) - mu) of mu-Gaussian DP."""
    return lambda mass: float(ndtr(ndtri(min(mass, 1.0)) - mu))


@lru_cache(maxsize=4096)
def mu_lower(canaries: int, guesses: int, correct: int, confidence: float) -> float:
    """The largest mu whose Gaussian DP these guesses refute at this confidence; 0 if none."""
    miss = 1.0 - check_confidence(confidence)
    return _most(lambda mu: refutes(gaussian_survivor(mu), canaries, guesses, correct, miss))


def _most(refuted: Callable[[float], bool]) -> float:
    """The largest parameter that is refuted, within the tolerance below it; 0 if none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < _LARGEST:
        low, high = high, 2.0 * high
    while high - low > _TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


# Where the lines touch, in delta: from masses of a few canaries in a million to nearly everybody.
_DELTAS = (*np.geomspace(1e-7, 0.1, 13).tolist(), *np.linspace(0.15, 0.95, 9).tolist())


@final
@dataclass(frozen=True)
class Lines:
    """Pairs (epsilon, delta), all of which a claim promises."""

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def survivor(self, mass: float) -> float:
        """The least mass under a neighbour of an event of this mass: f(1 - mass)."""
        growth, deltas = np.exp(np.array(self.epsilons)), np.array(self.deltas)
        steep, flat = 1.0 - deltas - growth * (1.0 - mass), (mass - deltas) / growth
        return max(float(np.max(steep)), float(np.max(flat)), 0.0)


def lines_of(claim: Guarantee, delta: float) -> Lines:
    """Lines below the claim's trade-off curve: its safe ends at many deltas and between them."""
    found = {claim.epsilon(d).upper for d in (*_DELTAS, delta)} | {0.0}
    touched = sorted(epsilon for epsilon in found if epsilon < 700.0)  # e^700 is still a double
    between = [0.5 * (a + b) for a, b in itertools.pairwise(touched)]
    epsilons = sorted({*touched, *between})
    return Lines(tuple(epsilons), tuple(claim.delta(eps).upper for eps in epsilons))


@final
@dataclass(frozen=True)
class Guessed:
    """One test of one run: how many of the guesses on the canaries were right."""

    attack: str
    canaries: int
    guesses: int
    correct: int
    miss: float  # the chance of a false alarm that this test may take

    def bounds(self, delta: float) -> tuple[float, float]:
        """What the test proves of epsilon and of mu."""
        counts, confidence = (self.canaries, self.guesses, self.correct), 1.0 - self.miss
        return epsilon_lower(*counts, delta, confidence), mu_lower(*counts, confidence)

    def refutes(self, lines: Lines) -> bool:
        """Are so many right guesses less likely than `miss` under a claim above these lines?"""
        counts = (self.canaries, self.guesses, self.correct)
        if self.correct > 0:  # binomial tails: pairs that refute if their delta is small enough
            right = expit(np.array(lines.epsilons))
            chance = betainc(self.correct, self.guesses - self.correct + 1, right)
            for small, *pair in zip(chance < self.miss, lines.epsilons, lines.deltas, strict=True):
                if small and p_value(*counts, *pair) < self.miss:
                    return True
        return refutes(lines.survivor, *counts, self.miss)


# ---- from the scores of canaries to guesses, counts and ROC points
def checked(scores: ArrayLike, included: ArrayLike) -> tuple[FloatArray, Bits]:
    """One finite score and one coin for each canary."""
    values, bits = real_array(scores, "scores"), np.asarray(included)
    if values.ndim != 1 or values.shape != bits.shape or len(values) == 0:
        raise InvalidInput(
            f"Give one score and one coin for each canary; got shapes {values.shape} and "
            f"{bits.shape}."
        )
    if bits.dtype != np.bool_:
        raise InvalidInput(f"`included` holds True or False for each canary; got {bits.dtype}.")
    if np.isnan(values).any():
        raise InvalidInput("A score is NaN; a canary without a score cannot be ranked.")
    return values, bits


def real_array(values: ArrayLike, name: str) -> FloatArray:
    """As float64; what would lose something on the way is refused."""
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise InvalidInput(
            f"{name} must hold real numbers; got {found.dtype}. For complex scores, give the "
            "part or the modulus by which they are ranked."
        )
    return np.asarray(found, dtype=np.float64)


def count_correct(scores: FloatArray, included: Bits, guesses: int) -> int:
    """Right guesses when the highest scores are called "in" and as many of the lowest "out".

    Equal scores are taken in the order that is worst for the attacker: present ones first, so that
    the lowest hold as many present and the highest as many absent canaries as they can. No order
    has fewer right guesses, so what these prove, guesses with ties broken by fresh coins prove too,
    whatever the order of the list knows.
    """
    order = np.lexsort((~included, scores))
    out, into = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int(np.sum(included[into]) + np.sum(~included[out]))


def roc_points(scores: FloatArray, included: Bits) -> tuple[tuple[float, float], ...]:
    """(false positive rate, true positive rate) at every threshold, from (0, 0) to (1, 1)."""
    order = np.argsort(-scores, kind="stable")
    hits, alarms = np.cumsum(included[order]), np.cumsum(~included[order])
    ranked = scores[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # tied scores pass a threshold together
    hits, alarms = hits[last], alarms[last]
    rates = zip(
        alarms / max(int(np.sum(~included)), 1), hits / max(int(np.sum(included)), 1), strict=True
    )
    return ((0.0, 0.0), *((float(a), float(h)) for a, h in rates))
