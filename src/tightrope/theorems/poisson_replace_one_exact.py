"""Poisson-sampled Gaussian steps when one record is replaced, exactly.

Statement: with rate q and noise_multiplier s (relative to the clip norm, taken as 1) a step is
    dominated by, and attains, the pair
        P = (1-q) N(0, s^2) + q N(1, s^2)   against   Q = (1-q) N(0, s^2) + q N(-1, s^2).
    T steps are dominated by its T-fold product; both orders of the neighbours have the same law.
Proof: G = e^eps, phi the density of N(0, s^2 I), H_G(P, Q) = int (P - G Q)_+.

    *Interpolation lemma.* Let f = sum_i a_i phi(. - x_i) with real weights, not 0 everywhere, and
    F = int f_+. If the points x_i move smoothly with t,

        dF/dt = - 1/(2 s^2) sum_{i<j} a_i a_j (d|x_i - x_j|^2/dt) int delta(f) phi_i phi_j,

    delta(f) being the surface measure on {f = 0} over |grad f|, phi_i = phi(. - x_i). So moving two
    points of opposite sign apart raises F, and two points of equal sign apart lowers it.

    Take psi smooth and convex with psi -> (.)_+ uniformly. The derivative of int psi(f) is
    - int psi'(f) sum_i a_i x_i' . grad phi_i = int psi''(f) sum_i a_i phi_i x_i' . grad f (by
    parts), and grad f = - s^-2 sum_j a_j phi_j (x - x_j). Write x - x_j = (x - x_i) + (x_i - x_j).
    The first part gives - s^-2 int psi''(f) f sum_i a_i phi_i x_i' . (x - x_i), and psi''(f) f
    tends to 0 boundedly: f is analytic and not 0, so {f = 0} is a null set. The second part, with
    (i, j) and (j, i) added, has (x_i' - x_j') . (x_i - x_j) = half of d|x_i - x_j|^2/dt. QED

    *One step.* Condition on the other records of the batch and on the past (H_G is jointly convex),
    and move the origin to their sum: the step is (1-q) N(0) + q N(g) against (1-q) N(0) + q N(g'),
    |g|, |g'| <= 1. Let G >= 1. Then f = P - G Q has the weights a_0 = -(1-q)(G-1) at 0, a_1 = q at
    g and a_2 = -G q at g'.
    1. Turn g' away from g at fixed lengths: only |g - g'| grows, a_1 a_2 < 0, so F grows. Hence
       g = r_1 e and g' = -r_2 e on a line.
    2. Let r_1 grow: |g| and |g - g'| grow, both between opposite signs, so F grows. Hence r_1 = 1.
    3. Let r_2 grow: |g - g'| = r_1 + r_2 grows (good), |g'| grows (a_0 a_2 >= 0: bad). On the line
       P/Q rises, so f has one zero x, and dF/dr_2 has the sign of
       q (r_1 + r_2) phi_1(x) - (G-1)(1-q) r_2 phi_0(x). There f = 0 says
       q phi_1 = G q phi_2 + (G-1)(1-q) phi_0 >= (G-1)(1-q) phi_0, so it is not negative: r_2 = 1.
    For G < 1, H_G(P, Q) = 1 - G + G H_{1/G}(Q, P), and the class of pairs is symmetric. QED

    *Composition.* A pair that dominates every step at every eps dominates every adaptive
    composition (Zhu, Dong and Wang 2022, Theorem 10). It is attained: by gradients that are 0 but
    for the replaced record, which has g in one dataset and -g in the other.
Conditions: Poisson sampling, secret; replace-one neighbours; noise and rate of each step fixed in
    advance; the noisy sum is divided by a public constant.
Validity: exact; outside the reach of the numerical composition (as for add-or-remove neighbours) a
    bound by the number of steps that the record takes part in, at twice the shift.
Source: our own; the proof above. Numerical tests of the lemma and of the domination over angles and
    lengths: tests/unit/theorems/test_poisson_replace_one.py. The bound used before, C_q(G_{2/s}),
    is 18.454 where the truth is 4.2213 (rate 256/60000, noise 1.1, 14062 steps, delta 1e-5).
Error: none here; the numerical composition states its own. Where it is wide, the lower end is that
    of a record whose replacement has a gradient of 0: the Poisson pair of an absent record.
Vectors: poisson_replace_one.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.pairs import Direction, GaussianMixturePair, SampledGaussianPair
from tightrope.process import NoisySGD, PoissonSampling, Process
from tightrope.theorems import sampled_gaussian_replace_drs19
from tightrope.theorems.base import REPLACED, Refusal, Source, foreign, require
from tightrope.theorems.poisson_gaussian_exact_zdw22 import by_participations, within_reach

NAME = "Poisson-sampled Gaussian, replace-one, exact"
SOURCE = Source("Tightrope", "the interpolation lemma on its page", "own")
VALIDITY = Validity.EXACT
RELATIONS = REPLACED


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD):
        return foreign(NAME, "noisy SGD", process)
    if not isinstance(process.sampling, PoissonSampling):
        return Refusal(f"{NAME} needs Poisson sampling; got {process.sampling}.")
    if process.adjacency not in RELATIONS:
        return Refusal(
            f"{NAME} needs replace-one neighbours; got {process.adjacency}.", "neighbours"
        )
    return None


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    rate, steps, moved = process.sampling.rate, process.steps, process.step_mu
    if rate == 0.0 or steps == 0:
        return GaussianGuarantee(0.0, process.adjacency, VALIDITY)
    if moved == math.inf:  # no noise: nothing is promised
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    if rate == 1.0:
        return GaussianGuarantee(moved * math.sqrt(steps), process.adjacency, VALIDITY)
    mu = 0.5 * moved  # one clip norm each way
    if not within_reach(rate, mu, steps):
        return by_participations(process, moved)
    pair = GaussianMixturePair(rate, mu, 1, 1)
    bound = sampled_gaussian_replace_drs19.guarantee(process)
    ways: tuple[Direction, ...] = ("remove", "add")
    zeroed = tuple(((SampledGaussianPair(rate, mu, way), steps),) for way in ways)
    return LossGuarantee(
        (((pair, steps),),), process.adjacency, VALIDITY, otherwise=bound, attained=zeroed
    )
