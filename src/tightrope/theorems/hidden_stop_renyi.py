"""Stop-PNSGD in Renyi form: passes with a secret end that are composed with other releases.

Statement: with T uniform on {1 .. n} and mu_k the parameter after k noisy steps, the last iterate
    satisfies at index t
        D_a <= (1/(a-1)) ln( (t-1)/n + (1/n) sum_{k=1}^{n-t+1} e^{a (a-1) mu_k^2/2} ).
    The dataset's guarantee is that of t = 1.
Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
    gradient is that of such a loss), replace-one neighbours, last iterate only, T secret.
Validity: upper bound.
Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 26 and Lemma 25. Corrected:
    ln n in the printed 4 a L^2 ln(n)/(n sigma^2) must be H_n, and its condition on sigma is not
    needed in the form used here (`printed`, `corrected` keep the other two for comparison).
Error: sums of positive terms, raised by 1e-12; beyond 4096 records numbers k within 0.2 % are
    grouped on the safe side.
Vectors: stop_pnsgd.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.process import Process
from tightrope.process.convex import StopSGD
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_mixture import blocks, renyi_of_mixture
from tightrope.theorems.hidden_steps import contraction, convexity_refusal, refusal, step_mu
from tightrope.theorems.hidden_stop import squared_mus
from tightrope.validate import FloatArray

NAME = "Last iterate of a pass with a secret end (Stop-PNSGD), Renyi"
SOURCE = Source("Feldman et al. 2018", "Theorem 26", "fmtt18")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


@dataclass(frozen=True)
class StopTerm:
    """The Renyi curve of one run."""

    step: float
    factor: float
    records: int
    index: int = 1
    exact_up_to: int = 4096

    def upper(self, orders: FloatArray) -> FloatArray:
        steps, sizes = blocks(self.records - self.index + 1, self.exact_up_to)
        squares = self.step**2 * squared_mus(self.factor, steps)
        return renyi_of_mixture(orders, squares, sizes / self.records) * (1.0 + 1e-12)


def printed(order: float, records: int, step: float) -> float:
    """Theorem 26 as printed, a step^2 ln(n)/n: FALSE at n = 1; for comparison only."""
    return order * step**2 * math.log(records) / records


def corrected(order: float, records: int, step: float) -> float:
    """a step^2 H_n/n, valid for (a-1) a step^2 <= 2: what the paper's own proof gives."""
    harmonic = math.fsum(1.0 / np.arange(1.0, records + 1.0))
    return order * step**2 * harmonic / records


def applies(process: Process) -> Refusal | None:
    return refusal(NAME, process, (StopSGD,)) or convexity_refusal(NAME, process)


def guarantee(process: StopSGD) -> Guarantee:
    require(applies(process))
    factor = contraction(process.loss, process.step_size)
    term = StopTerm(step_mu(process), factor, process.records, process.index or 1)
    return RenyiGuarantee(RenyiCurve.of(term), process.adjacency, VALIDITY)
