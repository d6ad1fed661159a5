"""Sampled Gaussian steps when one record is replaced.

Statement: with rate q and noise_multiplier s (relative to the clip norm) a step is
    C_q(G_{2/s})-DP, C_q(f) = min{f_q, f_q^-1}**, f_q = q f + (1-q) Id; T steps compose it.
    A zeroed record in batches of fixed size obeys the same bound: a null record is a record.
Proof for a zeroed record: that the sum moves by one clip norm only does not halve the shift. The
    batch of D' without the null record holds another one in its place. With G = e^eps >= 1 and
    e^eps - 1 = q (G' - 1), H_G of the step is q times H_G'(N(g), b N(0) + (1-b) N(y)), b = G/G', y
    being that other's gradient (joint convexity over the rest): at y = -g it compares N(2) with
    (1-b) N(0) + b N(1), which exceeds the Poisson pair, N(1) with N(0). The bound with all three
    at most 2/s apart holds; the lower end given is that of y = 0, the Poisson pair.
Conditions: replace-one neighbours; batches of fixed size drawn without replacement (q = batch /
    dataset) or Poisson batches: in both, the two runs share everything but the replaced record,
    and every two of {with x, with x', without} are at most 2/s apart.
Validity: upper bound, for one step attained. With batches of fixed size both ends of epsilon and
    delta are given: "all gradients -C v, one flipped" attains Poisson sampling with add-or-remove
    neighbours at half the noise, so the truth lies between the two (14.718 and 18.454 at rate
    256/60000, noise 1.1, 14062 steps, delta 1e-5). Most of that gap is slack of the upper end: with
    V_0(G) = (1 - G)_+ and V_k+1(G) = sup E_P[V_k(G Q/P)] over the positions g, g' and y of the
    record, its replacement and the record that gives way, V_T is the truth for adversaries that
    look back, and those with y = g or y = g' gain 0.1 to 0.4 % over the lower end where they were
    tried. What is missing is a proof that no other y is better: G above 1 asks for y far from g, G
    below 1 for y far from g', and V_k weighs both. Until then the bracket stays. With Poisson
    batches the exact pair is known (`poisson_replace_one_exact`), and this bound serves outside of
    its reach only.
Source: Dong, Roth, Su 2019 (arXiv:1905.02383v3), Theorem 4.2; theory notes A28, C.9. The
    accounting of fixed-size batches as Poisson with add-or-remove neighbours, used by A Better
    Bound / Three Variants (Algorithm 1), under-reports: 2.38 instead of 18.45 at the MNIST
    setting of the GDP paper.
Error: none here; the numerical composition states its own. Outside its reach (as for Poisson
    sampling, so for noise below 0.1) by the number of steps that a record takes part in.
Vectors: clt_mu (symmetrised); examples of theory C.9.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Components, Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.pairs import Direction, FixedSizeGaussianPair, SampledGaussianPair
from tightrope.process import Adjacency, FixedSizeSampling, NoisySGD, PoissonSampling, Process
from tightrope.theorems.base import REPLACED, Refusal, Source, foreign, require
from tightrope.theorems.poisson_gaussian_exact_zdw22 import by_participations, within_reach

NAME = "Sampled Gaussian, replace-one"
SOURCE = Source("Dong, Roth, Su 2019", "Theorem 4.2", "drs19")
VALIDITY = Validity.BOUND
RELATIONS = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)  # zeroed with fixed-size batches only


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD):
        return foreign(NAME, "noisy SGD", process)
    if not isinstance(process.sampling, (FixedSizeSampling, PoissonSampling)):
        return Refusal(
            f"{NAME} needs batches drawn afresh for every step (fixed-size or Poisson); got "
            f"{process.sampling}. Epoch-wise schemes have analyses of their own."
        )
    fixed = isinstance(process.sampling, FixedSizeSampling)
    if process.adjacency not in (RELATIONS if fixed else REPLACED):
        return Refusal(
            f"{NAME} needs replace-one neighbours; got {process.adjacency}. With batches of fixed "
            "size the dataset's size is public, so a record can only be replaced, or zeroed: "
            "declare Adjacency.REPLACE_ONE (--adjacency replace-one), or sample with "
            "PoissonSampling.",
            "neighbours",
        )
    return None


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    rate, steps = process.sampling.rate, process.steps
    if rate == 0.0 or steps == 0:
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    if rate == 1.0 or process.step_mu == math.inf:
        return GaussianGuarantee(process.step_mu * math.sqrt(steps), process.adjacency, VALIDITY)
    mu = 2.0 / process.noise_multiplier  # of a zeroed record too: it takes the place of another
    if not within_reach(rate, mu, steps):
        return by_participations(process, mu)
    bound = ((FixedSizeGaussianPair(rate, mu), steps),)
    return LossGuarantee((bound,), process.adjacency, VALIDITY, attained=_attained(process))


def _attained(process: NoisySGD) -> tuple[Components, ...]:
    """Batches of fixed size whose other gradients are all opposite to the replaced one, or 0."""
    if not isinstance(process.sampling, FixedSizeSampling):
        return ()
    rate, mu = process.sampling.rate, process.step_mu
    directions: tuple[Direction, ...] = ("remove", "add")
    return tuple(((SampledGaussianPair(rate, mu, d), process.steps),) for d in directions)
