"""Stop-PNSGD: one pass that stops after a secret random number of records, last iterate.

Statement: n records, T uniform on {1 .. n}. Record t is unused if T < t and otherwise followed by
    k - 1 = T - t common noisy steps. With mu_k the parameter after k noisy steps (2 L / (noise_std
    sqrt(k)) for c = 1),
        delta(eps) <= (1/n) sum_{k=1}^{n-t+1} delta(eps; mu_k).
    The dataset's guarantee is that of the first record, t = 1.
Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
    gradient is that of such a loss), replace-one neighbours, last iterate only, T secret.
Validity: upper bound.
Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 26. Corrected: the printed
    4 a L^2 ln(n)/(n sigma^2) rests on H_n <= ln n, which is false; at n = 1 it claims that one
    Gaussian step has no privacy loss at all. The mean over k is unconditional and about half of
    the corrected 4 a L^2 H_n/(n sigma^2), which needs sigma >= L sqrt(2 a (a-1)).
Error: beyond 4096 records delta is raised by grouping numbers k within 0.2 %, on the safe side.
Vectors: stop_pnsgd (Renyi form, in hidden_stop_renyi).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.process import Process
from tightrope.process.convex import StopSGD
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_cyclic import squared_mu
from tightrope.theorems.hidden_mixture import blocks, profile_of_mixture
from tightrope.theorems.hidden_steps import contraction, convexity_refusal, refusal, step_mu
from tightrope.validate import FloatArray

NAME = "Last iterate of a pass with a secret end (Stop-PNSGD)"
SOURCE = Source("Feldman et al. 2018", "Theorem 26", "fmtt18")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

_EXACT_UP_TO = 4096


def squared_mus(factor: float, noisy_steps: FloatArray) -> FloatArray:
    """mu_k^2 over the squared mu of one step: one use followed by k - 1 common steps."""
    last = float(noisy_steps.max())
    return np.asarray(squared_mu(factor, int(last), 1, last - noisy_steps + 1.0))


@dataclass(frozen=True)
class StopProfile:
    """The mean of delta(eps; mu_k) over the stopping time."""

    step: float
    factor: float
    records: int
    index: int = 1

    def __call__(self, epsilon: float) -> float:
        steps, sizes = blocks(self.records - self.index + 1, _EXACT_UP_TO)
        mus = self.step * np.sqrt(squared_mus(self.factor, steps)) * (1.0 + 1e-14)
        return profile_of_mixture(epsilon, mus, sizes / self.records)


def applies(process: Process) -> Refusal | None:
    return refusal(NAME, process, (StopSGD,)) or convexity_refusal(NAME, process)


def guarantee(process: StopSGD) -> Guarantee:
    require(applies(process))
    factor = contraction(process.loss, process.step_size)
    profile = StopProfile(step_mu(process), factor, process.records, process.index or 1)
    return ProfileGuarantee(profile, process.adjacency, VALIDITY)
