"""Does what an attack saw refute a claim, anywhere on its trade-off curve?

Statement: a claim is (eps_k, delta_k)-DP for many k at once, so its trade-off function f lies above
    all the lines 1 - delta_k - e^eps_k x and their mirror images. Under the claim P(at least v of r
    guesses right) is at most the bound of `one_run` for each k, and at most that of
    `one_run_tradeoff` for the largest of the lines. All of them bound the same probability, so the
    least of them does, and nothing is paid for trying all: with c the smallest count whose bound is
    below the allowed miss, a claim is refused only where v >= c, so a true one with at most that
    probability.
    Many runs: TPR <= e^eps_k FPR + delta_k, and the same of the complements, for every k.
Conditions: those of `one_run` and `many_runs`.
Validity: bound.
Source: derived here; Neyman and Pearson 1933 for the region, `one_run` and `many_runs` for the
    counts.
Error: more lines would refute more; every set of lines is on the safe side.
Vectors: tests/attacks/test_audit_evidence.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import betainc, expit

from tightrope.audit.one_run import p_value
from tightrope.audit.one_run_tradeoff import refutes
from tightrope.guarantee.base import Guarantee

__all__ = ["Lines", "lines_of", "Guessed"]

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

    def refutes(self, lines: Lines) -> bool:
        """Are so many right guesses less likely than `miss` under a claim above these lines?"""
        counts = (self.canaries, self.guesses, self.correct)
        return any(
            p_value(*counts, epsilon, delta) < self.miss for epsilon, delta in self._likely(lines)
        ) or refutes(lines.survivor, *counts, self.miss)

    def _likely(self, lines: Lines) -> list[tuple[float, float]]:
        """The pairs that refute if their delta is small enough."""
        if self.correct == 0:
            return []
        right = expit(np.array(lines.epsilons))
        chance = betainc(self.correct, self.guesses - self.correct + 1, right)  # binomial tails
        pairs = zip(lines.epsilons, lines.deltas, strict=True)
        return [pair for pair, small in zip(pairs, chance < self.miss, strict=True) if small]
