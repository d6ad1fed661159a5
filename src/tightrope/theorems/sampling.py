"""Gaussian noise on sampled batches: Poisson, of fixed size, cut; records added or replaced."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, final

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.participation import ParticipationGuarantee
from tightrope.guarantee.kinds.renyi import PairsTerm, RenyiCurve, RenyiGuarantee
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    Direction,
    FixedSizeGaussianPair,
    GaussianMixturePair,
    PublicMixturePair,
    SampledGaussianPair,
)
from tightrope.numerics.binomial_tail import binomial_tail
from tightrope.process import (
    Adjacency,
    FixedSizeSampling,
    NoisySGD,
    PoissonSampling,
    TruncatedPoissonSampling,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    PRESENCE,
    REPLACED,
    Proved,
    Refusal,
    Source,
)


class PoissonSteps(Proved):
    """Theorems about Gaussian noise on Poisson batches, for a record that is there or not."""

    RELATIONS = PRESENCE

    @classmethod
    def condition(cls, process: NoisySGD) -> Refusal | None:
        if isinstance(process.sampling, PoissonSampling):
            return None
        return Refusal(
            f"{cls.NAME} needs Poisson sampling, where records join a batch independently; got "
            f"{process.sampling}. Other schemes can lose several times more privacy: train with a "
            "Poisson sampler, or use the analysis of the scheme you run."
        )


@final
class PoissonGaussianExactZdw22(PoissonSteps):
    """One Poisson-sampled Gaussian step, exactly.

    Statement: with rate q and mu = 1/noise_multiplier, the step is dominated by, and attains, the
        pair P = (1-q) N(0,1) + q N(mu,1) against Q = N(0,1) (a record is removed) and the reversed
        pair (added). T steps are dominated by T-fold products of the same ordered pair; the
        guarantee is the worse order. In f-DP: min{f, f^-1}** with f = (q G_mu + (1-q) Id)^(x T).
    Conditions: Poisson sampling, secret; add-or-remove neighbours, or zero-out ones: a null record
        in the batch adds what an absent one does. The noisy sum is divided by a public constant.
        (Deep Learning with GDP, Algorithm 1, divides by the realised batch size, which breaks its
        own Theorem 3: total variation 0.25 where 0.02 is claimed.)
    Validity: exact; outside the reach of the numerical composition a bound: by the Renyi
        divergences of the same pair for noise above 1e5, rates below 1e-30 and more than 1e15
        steps, by the number of steps that a record takes part in for noise below 0.05
        (`kinds/participation.py`).
    Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 11; Bu, Dong, Long, Su 2019
        (arXiv:1911.11607), Theorem 3.
    Error: none here; the numerical composition states its own.
    Vectors: sgm_delta, sgm_eps, sgm_tradeoff_point.
    """

    NAME = "Poisson-sampled Gaussian, exact"
    SOURCE = Source("Zhu, Dong, Wang 2022", "Theorem 11", "zdw22")
    VALIDITY = Validity.EXACT

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        closed = closed_form(process)
        if closed is not None:
            return closed
        rate, mu, steps = process.sampling.rate, process.step_mu, process.steps
        if not within_reach(rate, mu, steps):
            return renyi_bound(process, "optimal")
        orders = tuple(
            ((SampledGaussianPair(rate, mu, direction), steps),) for direction in ("remove", "add")
        )
        return LossGuarantee(orders, process.adjacency, Validity.EXACT, by_record=True)


_LARGEST_MU, _MOST_STEPS = 20.0, 10**15


def closed_form(process: NoisySGD) -> Guarantee | None:
    """The runs that need no numerical composition."""
    rate, mu, steps = process.sampling.rate, process.step_mu, process.steps
    if rate == 0.0 or steps == 0:
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    if mu == math.inf:  # no noise: nothing is promised
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    if rate == 1.0:
        return GaussianGuarantee(mu * math.sqrt(steps), process.adjacency, Validity.EXACT)
    return by_participations(process, mu) if mu > _LARGEST_MU else None


def by_participations(process: NoisySGD, mu: float) -> Guarantee:
    """A bound for any noise: how often the record takes part, not in which steps.

    mu: how far apart two batches are at most, of which one or none holds the record.
    """
    rate, steps = process.sampling.rate, process.steps
    if steps > _MOST_STEPS:  # sampling only helps
        return GaussianGuarantee(mu * math.sqrt(steps), process.adjacency, Validity.BOUND)
    # a replaced record may give way to one of gradient 0, and a record in the place of another too
    shown = 1.0 / process.noise_multiplier
    return ParticipationGuarantee(rate, mu, steps, process.adjacency, shown=shown)


def within_reach(rate: float, mu: float, steps: int) -> bool:
    """Can the numerical composition answer in double precision?"""
    return rate >= 1e-30 and 1e-5 <= mu <= _LARGEST_MU and steps <= _MOST_STEPS


def renyi_bound(process: NoisySGD, route: str) -> RenyiGuarantee:
    """The Renyi divergences of the steps, converted by the named route; holds everywhere.

    Removal is the worse order for every order of the divergence (Mironov, Talwar, Zhang 2019
    (arXiv:1908.10530), Theorem 5).
    """
    pair = SampledGaussianPair(process.sampling.rate, process.step_mu, "remove")
    curve = RenyiCurve.of(PairsTerm((((pair, 1),),))) * process.steps
    return RenyiGuarantee(curve, process.adjacency, Validity.BOUND, route)


@final
class SampledGaussianReplaceDrs19(Proved):
    """Sampled Gaussian steps when one record is replaced.

    Statement: with rate q and noise_multiplier s (relative to the clip norm) a step is
        C_q(G_{2/s})-DP, C_q(f) = min{f_q, f_q^-1}**, f_q = q f + (1-q) Id; T steps compose it.
        A zeroed record in batches of fixed size obeys the same bound: a null record is a record.
    Proof for a zeroed record: that the sum moves by one clip norm only does not halve the shift.
    The
        batch of D' without the null record holds another one in its place. With G = e^eps >= 1 and
        e^eps - 1 = q (G' - 1), H_G of the step is q times H_G'(N(g), b N(0) + (1-b) N(y)), b =
        G/G', y being that other's gradient (joint convexity over the rest): at y = -g it compares
        N(2) with (1-b) N(0) + b N(1), which exceeds the Poisson pair, N(1) with N(0). The bound
        with all three at most 2/s apart holds; the lower end given is that of y = 0, the Poisson
        pair.
    Conditions: replace-one neighbours; batches of fixed size drawn without replacement (q = batch /
        dataset) or Poisson batches: in both, the two runs share everything but the replaced record,
        and every two of {with x, with x', without} are at most 2/s apart.
    Validity: upper bound, for one step attained. With batches of fixed size both ends of epsilon
        and delta are given: "all gradients -C v, one flipped" attains Poisson sampling with
        add-or-remove neighbours at half the noise, so the truth lies between the two (14.718 and
        18.454 at rate 256/60000, noise 1.1, 14062 steps, delta 1e-5). Most of that gap is slack of
        the upper end: with V_0(G) = (1 - G)_+ and V_k+1(G) = sup E_P[V_k(G Q/P)] over the positions
        g, g' and y of the record, its replacement and the record that gives way, V_T is the truth
        for adversaries that look back, and those with y = g or y = g' gain 0.1 to 0.4 % over the
        lower end where they were tried. What is missing is a proof that no other y is better: G
        above 1 asks for y far from g, G below 1 for y far from g', and V_k weighs both. Until then
        the bracket stays. With Poisson batches the exact pair is known
        (`poisson_replace_one_exact`), and this bound serves outside of its reach only.
    Source: Dong, Roth, Su 2019 (arXiv:1905.02383v3), Theorem 4.2; theory notes A28, C.9. The
        accounting of fixed-size batches as Poisson with add-or-remove neighbours, used by A Better
        Bound / Three Variants (Algorithm 1), under-reports: 2.38 instead of 18.45 at the MNIST
        setting of the GDP paper.
    Error: none here; the numerical composition states its own. Outside its reach (as for Poisson
        sampling, so for noise below 0.1) by the number of steps that a record takes part in.
    Vectors: clt_mu (symmetrised); examples of theory C.9.
    """

    NAME = "Sampled Gaussian, replace-one"
    SOURCE = Source("Dong, Roth, Su 2019", "Theorem 4.2", "drs19")
    RELATIONS = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)

    @classmethod
    def condition(cls, process: NoisySGD) -> Refusal | None:
        if not isinstance(process.sampling, (FixedSizeSampling, PoissonSampling)):
            return Refusal(
                f"{cls.NAME} needs batches drawn afresh for every step (fixed-size or Poisson); "
                f"got {process.sampling}. Epoch-wise schemes have analyses of their own."
            )
        fixed = isinstance(process.sampling, FixedSizeSampling)
        if process.adjacency in (cls.RELATIONS if fixed else REPLACED):
            return None
        return Refusal(
            f"{cls.NAME} needs replace-one neighbours; got {process.adjacency}. With batches of "
            "fixed size the dataset's size is public, so a record can only be replaced, or zeroed: "
            "declare Adjacency.REPLACE_ONE (--adjacency replace-one), or sample with "
            "PoissonSampling.",
            "neighbours",
        )

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        rate, steps = process.sampling.rate, process.steps
        if rate == 0.0 or steps == 0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if rate == 1.0 or process.step_mu == math.inf:
            return GaussianGuarantee(
                process.step_mu * math.sqrt(steps), process.adjacency, Validity.BOUND
            )
        mu = 2.0 / process.noise_multiplier  # of a zeroed record too: it takes the place of another
        if not within_reach(rate, mu, steps):
            return by_participations(process, mu)
        bound = ((FixedSizeGaussianPair(rate, mu), steps),)
        return LossGuarantee(
            (bound,), process.adjacency, Validity.BOUND, attained=_attained(process)
        )


def _attained(process: NoisySGD) -> tuple[Components, ...]:
    """Batches of fixed size whose other gradients are all opposite to the replaced one, or 0."""
    if not isinstance(process.sampling, FixedSizeSampling):
        return ()
    rate, mu = process.sampling.rate, process.step_mu
    directions: tuple[Direction, ...] = ("remove", "add")
    return tuple(((SampledGaussianPair(rate, mu, d), process.steps),) for d in directions)


@final
class PoissonReplaceOneExact(Proved):
    """Poisson-sampled Gaussian steps when one record is replaced, exactly.

    Statement: with rate q and noise_multiplier s (relative to the clip norm, taken as 1) a step is
        dominated by, and attains, the pair
            P = (1-q) N(0, s^2) + q N(1, s^2)   against   Q = (1-q) N(0, s^2) + q N(-1, s^2).
        T steps are dominated by its T-fold product; both orders of the neighbours have the same
        law.
    Proof: G = e^eps, phi the density of N(0, s^2 I), H_G(P, Q) = int (P - G Q)_+.

        *Interpolation lemma.* Let f = sum_i a_i phi(. - x_i) with real weights, not 0 everywhere,
        and F = int f_+. If the points x_i move smoothly with t,

            dF/dt = - 1/(2 s^2) sum_{i<j} a_i a_j (d|x_i - x_j|^2/dt) int delta(f) phi_i phi_j,

        delta(f) being the surface measure on {f = 0} over |grad f|, phi_i = phi(. - x_i). So moving
        two points of opposite sign apart raises F, and two points of equal sign apart lowers it.

        Take psi smooth and convex with psi -> (.)_+ uniformly. The derivative of int psi(f) is
        - int psi'(f) sum_i a_i x_i' . grad phi_i = int psi''(f) sum_i a_i phi_i x_i' . grad f (by
        parts), and grad f = - s^-2 sum_j a_j phi_j (x - x_j). Write x - x_j = (x - x_i) + (x_i -
        x_j). The first part gives - s^-2 int psi''(f) f sum_i a_i phi_i x_i' . (x - x_i), and
        psi''(f) f tends to 0 boundedly: f is analytic and not 0, so {f = 0} is a null set. The
        second part, with (i, j) and (j, i) added, has (x_i' - x_j') . (x_i - x_j) = half of d|x_i -
        x_j|^2/dt. QED

        *One step.* Condition on the other records of the batch and on the past (H_G is jointly
        convex), and move the origin to their sum: the step is (1-q) N(0) + q N(g) against (1-q)
        N(0) + q N(g'), |g|, |g'| <= 1. Let G >= 1. Then f = P - G Q has the weights a_0 =
        -(1-q)(G-1) at 0, a_1 = q at g and a_2 = -G q at g'.
        1. Turn g' away from g at fixed lengths: only |g - g'| grows, a_1 a_2 < 0, so F grows. Hence
           g = r_1 e and g' = -r_2 e on a line.
        2. Let r_1 grow: |g| and |g - g'| grow, both between opposite signs, so F grows. Hence r_1 =
           1.
        3. Let r_2 grow: |g - g'| = r_1 + r_2 grows (good), |g'| grows (a_0 a_2 >= 0: bad). On the
           line P/Q rises, so f has one zero x, and dF/dr_2 has the sign of q (r_1 + r_2) phi_1(x) -
           (G-1)(1-q) r_2 phi_0(x). There f = 0 says q phi_1 = G q phi_2 + (G-1)(1-q) phi_0 >=
           (G-1)(1-q) phi_0, so it is not negative: r_2 = 1.
        For G < 1, H_G(P, Q) = 1 - G + G H_{1/G}(Q, P), and the class of pairs is symmetric. QED

        *Composition.* A pair that dominates every step at every eps dominates every adaptive
        composition (Zhu, Dong and Wang 2022, Theorem 10). It is attained: by gradients that are 0
        but for the replaced record, which has g in one dataset and -g in the other.
    Conditions: Poisson sampling, secret; replace-one neighbours; noise and rate of each step fixed
        in advance; the noisy sum is divided by a public constant.
    Validity: exact; outside the reach of the numerical composition (as for add-or-remove
        neighbours) a bound by the number of steps that the record takes part in, at twice the
        shift.
    Source: our own; the proof above. Numerical tests of the lemma and of the domination over angles
        and lengths: tests/unit/theorems/test_poisson_replace_one.py. The bound used before,
        C_q(G_{2/s}), is 18.454 where the truth is 4.2213 (rate 256/60000, noise 1.1, 14062 steps,
        delta 1e-5).
    Error: none here; the numerical composition states its own. Where it is wide, the lower end is
        that of a record whose replacement has a gradient of 0: the Poisson pair of an absent
        record.
    Vectors: poisson_replace_one.
    """

    NAME = "Poisson-sampled Gaussian, replace-one, exact"
    SOURCE = Source("Tightrope", "the interpolation lemma on its page", "own")
    VALIDITY = Validity.EXACT
    RELATIONS = REPLACED

    @classmethod
    def condition(cls, process: NoisySGD) -> Refusal | None:
        if isinstance(process.sampling, PoissonSampling):
            return None
        return Refusal(f"{cls.NAME} needs Poisson sampling; got {process.sampling}.")

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        rate, steps, moved = process.sampling.rate, process.steps, process.step_mu
        if rate == 0.0 or steps == 0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if moved == math.inf:  # no noise: nothing is promised
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        if rate == 1.0:
            return GaussianGuarantee(moved * math.sqrt(steps), process.adjacency, Validity.EXACT)
        mu = 0.5 * moved  # one clip norm each way
        if not within_reach(rate, mu, steps):
            return by_participations(process, moved)
        pair = GaussianMixturePair(rate, mu, 1, 1)
        bound = SampledGaussianReplaceDrs19.guarantee(process)
        ways: tuple[Direction, ...] = ("remove", "add")
        zeroed = tuple(((SampledGaussianPair(rate, mu, way), steps),) for way in ways)
        return LossGuarantee(
            (((pair, steps),),), process.adjacency, Validity.EXACT, otherwise=bound, attained=zeroed
        )


@final
class TruncatedPoisson(Proved):
    """Poisson batches that are cut to a largest size.

    Statement: every record joins a batch with probability q; of a batch of more than B a uniform
        subset of B is kept. n counts the records of the data set that holds the record in question.
        With tau = P(Bin(n-1, q) >= B) and p = P(Bin(n, q) > B) B / (n tau), a step is dominated by
        the public mixture of
            (1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2), with probability 1 - tau, and
            (1-p) N(0, s^2) + p N(2, s^2) against N(0, s^2), with probability tau,
        and by the two pairs turned round (added). Where a record is replaced, the parts are the
        exact pair of Poisson batches and that of fixed-size batches of rate p, C_p(G_{2/s}); where
        it is zeroed, Poisson's pair as above and the latter: a null record that is drawn takes a
        place too. For groups that are added or removed, q takes the place of p in every link of the
        chain.
    Proof: give away whether the others alone fill the batch; that does not depend on the record. If
        they do not, nothing is cut, and the step is a Poisson step. If m >= B others were drawn,
        the record is kept with probability q B/(m + 1), and then it takes the place of one other;
        the kept others are a uniform subset whatever m is, so only the mean p of that probability
        counts, which is E[q B/(m + 1); m >= B]/tau = P(Bin(n, q) > B) B/(n tau). Couple the kept
        others with and without the record so that they differ in the one who gives way: two sums of
        clipped gradients, at most 2 apart, and joint convexity gives the second pair. Steps compose
        because each is dominated at every epsilon (Zhu, Dong, Wang 2022, Theorem 10). Groups: the
        data sets in between have n' < n records, a smaller tau and a larger p, which is at most q.
        With q in its place the second pair dominates the first, so the mixture rises with tau, and
        that of n dominates all links.
    Conditions: secret sampling and cutting; n is public; the noisy sum is divided by a public
        constant.
    Validity: upper bound. The lower ends are attained by data whose other gradients are 0: plain
        Poisson steps of rate (1-tau) q + tau p.
    Source: Ganesh et al. 2025 (arXiv:2508.15089) for the mixture; the order of the pairs as above.
    Error: tau and p in 50-digit decimals; the numerical composition states its own. Outside of its
        reach the bound is that of plain Poisson steps at half the noise, which dominate both parts.
    Vectors: truncated_poisson.
    """

    NAME = "Poisson batches cut at a largest size"
    SOURCE = Source("Ganesh et al. 2025", "public mixture of two sampled Gaussians", "g25")
    RELATIONS = ONE_RECORD
    SAMPLING = (TruncatedPoissonSampling,)

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        sampling = _sampling(process)
        rate, mu, steps = sampling.join_rate, process.step_mu, process.steps
        if rate == 0.0 or steps == 0 or sampling.largest_batch == 0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if mu == math.inf:  # no noise: nothing is promised
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        tau, kept = cut(rate, sampling.largest_batch, sampling.dataset_size)
        if tau == 0.0:  # there is never anything to cut
            return _poisson(replace(process, sampling=PoissonSampling(rate)))
        coarse = _half_noise(process)
        if not within_reach(kept, 2.0 * mu, steps):
            return coarse
        orders = tuple(((pair, steps),) for pair in _cut_pairs(process, tau, kept))
        return LossGuarantee(
            orders,
            process.adjacency,
            Validity.BOUND,
            otherwise=coarse,
            attained=_cut_attained(process),
        )


_DIRECTIONS: tuple[Direction, ...] = ("remove", "add")


_NEARLY_ALL = 1.0 - 2.0**-53  # weighs 1e-15 at most where it stands for 1: see `cut`
_SMALLEST, _UP = 1e-300, 1.0 + 4e-15


def _sampling(process: NoisySGD) -> TruncatedPoissonSampling:
    assert isinstance(process.sampling, TruncatedPoissonSampling)
    return process.sampling


def cut(rate: float, largest: int, records: int) -> tuple[float, float]:
    """tau, at most 1 - 1e-15, and p rounded up; tau = 0 only where a batch cannot be too large.

    Every delta of the second pair grows at least as fast as p (it is convex in p, and 0 at p = 0),
    so that p (1 + 4e-15) makes up for a tau that is 1e-15 too small.
    """
    if records <= largest:
        return 0.0, rate
    if rate == 1.0:
        return 1.0 - 1e-15, min(largest / records * _UP, 1.0)
    others = binomial_tail(records - 1, rate, largest)
    kept = binomial_tail(records, rate, largest + 1) * largest / (records * others)
    return min(max(float(others), _SMALLEST), 1.0 - 1e-15), min(float(kept) * _UP, 1.0)


def _cut_pairs(process: NoisySGD, tau: float, kept: float) -> list[AbstractLossPair]:
    rate, mu = min(_sampling(process).join_rate, _NEARLY_ALL), 1.0 / process.noise_multiplier
    if process.adjacency is Adjacency.ADD_OR_REMOVE:
        return [
            PublicMixturePair(
                tau, SampledGaussianPair(rate, mu, d), SampledGaussianPair(kept, 2.0 * mu, d)
            )
            for d in _DIRECTIONS
        ]
    full = FixedSizeGaussianPair(kept, 2.0 * mu)
    if _sampling(process).join_rate == 1.0:  # all are drawn, and the others alone fill the batch
        return [full]
    if process.adjacency is Adjacency.REPLACE_ONE:
        return [PublicMixturePair(tau, GaussianMixturePair(rate, mu, 1, 1), full)]
    return [PublicMixturePair(tau, SampledGaussianPair(rate, mu, d), full) for d in _DIRECTIONS]


def _cut_attained(process: NoisySGD) -> tuple[Components, ...]:
    """The other gradients are 0: only whether the record is kept counts, rounded down.

    A record may be replaced by one whose gradient is 0 too, which is easier to compose.
    """
    rate, mu = process.sampling.rate * (1.0 - 4e-15), 1.0 / process.noise_multiplier
    pairs: list[AbstractLossPair] = [SampledGaussianPair(rate, mu, d) for d in _DIRECTIONS]
    if process.adjacency is Adjacency.REPLACE_ONE:
        pairs.insert(0, GaussianMixturePair(rate, mu, 1, 1))
    return tuple(((pair, process.steps),) for pair in pairs)


def _poisson(process: NoisySGD) -> Guarantee:
    if process.adjacency is Adjacency.REPLACE_ONE:
        return PoissonReplaceOneExact.guarantee(process)
    return PoissonGaussianExactZdw22.guarantee(process)


def _half_noise(process: NoisySGD) -> Guarantee:
    """Poisson steps whose record moves the sum by twice as much, or C_q(G_{2/s})."""
    if process.adjacency is not Adjacency.ADD_OR_REMOVE:
        plain = replace(
            process,
            sampling=PoissonSampling(_sampling(process).join_rate),
            adjacency=Adjacency.REPLACE_ONE,  # of a null record too: it takes a place
        )
        found: Any = _as_bound(SampledGaussianReplaceDrs19.guarantee(plain))
        return replace(found, adjacency=process.adjacency)  # type: ignore[no-any-return]
    noise, sampling = process.noise_multiplier / 2.0, PoissonSampling(_sampling(process).join_rate)
    return _as_bound(_poisson(replace(process, sampling=sampling, noise_multiplier=noise)))


def _as_bound(found: Guarantee) -> Guarantee:
    """What is proved of the steps that stand in for the cut ones; not of groups of records."""
    bound = found.as_bound()
    return replace(bound, by_record=False) if isinstance(bound, LossGuarantee) else bound
