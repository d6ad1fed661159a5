"""Any contractive iteration with Gaussian noise whose last state alone is released.

Statement: X_t = psi_t(X_{t-1}) + N(0, sigma_t^2 I), psi_t Lipschitz with constant c_t, and
    |psi_t - psi'_t| <= s_t between neighbours. For every a_t >= 0 with z_t = c_t z_{t-1} + s_t -
    a_t >= 0, z_0 = the distance of the starts and z_T = 0, the last state is mu-GDP with
    mu^2 = sum_t (a_t / sigma_t)^2. The least such mu^2 is the cost of a greatest convex minorant.
    Where every state is projected on a set of diameter D, any time may be taken as the start with
    z = D; the best is used.
Conditions: Gaussian noise in l2; replace-one neighbours; only the last state is released.
Validity: upper bound; attained when the maps are scalings by c_t plus pushes in one direction
    and the minorant has one segment.
Source: Feldman, Mironov, Talwar, Thakurta 2018 (arXiv:1808.06651), Theorem 22 with Lemmas 20 and
    21, in Renyi form for c_t = 1; Bok, Su, Altschuler 2024, shifted interpolation, for Gaussian
    DP. Printed slips corrected here: the a_t must be >= 0, not "reals"; the induction
    needs psi'(X'_t), not psi'(X'_{t+1}); the informal Theorem 1 lacks a square on |x_0 - x'_0|.
Error: mu is raised by the rounding bound of `numerics.hull`.
Vectors: optimal_shift.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.numerics.hull import least_cost, least_window_cost, rounding
from tightrope.process import Process
from tightrope.process.convex import ContractiveIteration, IterationNoise
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_steps import columns, refusal

NAME = "Last iterate by shifted interpolation (optimal shifts)"
SOURCE = Source("Feldman et al. 2018; Bok, Su, Altschuler 2024", "Theorem 22; Section 3", "bsa24")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


def squared_mu(process: ContractiveIteration) -> float:
    """The least sum of (a_t / sigma_t)^2, rounded up; of any process with Gaussian columns."""
    pushes, factors, scales = columns(process)
    cost = least_cost(pushes, factors, scales, getattr(process, "start_distance", 0.0))
    if process.diameter is not None:
        cost = min(cost, least_window_cost(pushes, factors, scales, process.diameter).cost)
    return cost * (1.0 + rounding(len(pushes)))


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, (ContractiveIteration,))
    if reason is not None:
        return reason
    assert isinstance(process, ContractiveIteration)
    if process.noise is not IterationNoise.GAUSSIAN:
        return Refusal(f"{NAME} is about Gaussian noise; got {process.noise}.")
    return None


def guarantee(process: ContractiveIteration) -> Guarantee:
    require(applies(process))
    return GaussianGuarantee(math.sqrt(squared_mu(process)), process.adjacency, VALIDITY)
