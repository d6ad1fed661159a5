"""Single releases: Gaussian, Laplace, choices, trees, and what is declared of a release."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee, TableTerm
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    BoundedRangePair,
    DiscretePair,
    LaplacePair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    randomized_response_pair,
)
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    DeclaredApproxDP,
    DeclaredGaussianDP,
    DeclaredRenyi,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    ExponentialMechanism,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PermuteAndFlip,
    PoissonSampling,
    Process,
    RandomAllocationSampling,
    RandomizedResponse,
    ShuffledSampling,
    TreeAggregation,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    Proved,
    Refusal,
    Source,
    foreign,
    other_neighbours,
)
from tightrope.theorems.discrete_gaussian import of_many_points


@final
class GaussianGdpDrs19(Proved):
    """The Gaussian mechanism is Gaussian DP.

    Statement: releasing a query plus N(0, s^2) is mu-GDP with mu = sensitivity / s, attained. A
        full batch step of noisy SGD is such a release; its sum moves by the clip norm when a record
        is added or removed and by twice the clip norm when one is replaced.
    Conditions: Gaussian noise, every record in the release (no sampling).
    Validity: exact.
    Source: Dong, Roth, Su 2019 (arXiv:1905.02383v3), Theorem 2.7.
    Error: none beyond the rounding of one division.
    Vectors: gdp_delta, gdp_eps, tradeoff_gaussian.
    """

    NAME = "Gaussian mechanism"
    SOURCE = Source("Dong, Roth, Su 2019", "Theorem 2.7", "drs19")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    OF = (GaussianMechanism, NoisySGD)
    ABOUT = "a Gaussian mechanism or noisy SGD"

    @classmethod
    def condition(cls, process: GaussianMechanism | NoisySGD) -> Refusal | None:
        if isinstance(process, GaussianMechanism):
            return None
        if isinstance(process.sampling, _ALL_AT_RATE_ONE) and process.sampling.rate == 1.0:
            return None
        return Refusal(
            f"{cls.NAME} needs every record in every step; got {process.sampling}. "
            "Use the sampled Gaussian analyses."
        )

    @classmethod
    def proved(cls, process: GaussianMechanism | NoisySGD) -> GaussianGuarantee:
        if isinstance(process, NoisySGD):
            mu = process.step_mu * math.sqrt(process.steps)
            return GaussianGuarantee(
                mu if process.steps else 0.0, process.adjacency, Validity.EXACT
            )
        noise = process.noise_multiplier
        mu = 1.0 / noise if noise > 0 else math.inf
        return GaussianGuarantee(mu, process.adjacency, Validity.EXACT)


# with rate 1 each of these takes every record into every batch, once, and nothing gives way to it
_ALL_AT_RATE_ONE = (
    FullBatch,
    PoissonSampling,
    FixedSizeSampling,
    ShuffledSampling,
    CyclicSampling,
    BallsInBinsSampling,
    RandomAllocationSampling,
)


@final
class SingleReleasesExact(Proved):
    """Laplace noise, discrete Laplace and Gaussian noise and randomised response, exactly.

    Statement: each is dominated by, and attains, one pair of output laws: Laplace(0, b) against
        Laplace(1, b); discrete Laplace or Gaussian noise on the integers against itself moved by
        the sensitivity; k-ary randomised response on two different answers, or, where a record is
        zeroed, on an answer against a uniform one. Composition multiplies the pairs.
    Conditions: noise drawn as described, on one number (Laplace: L1 sensitivity 1 after scaling;
        discrete noise: an integer of integer sensitivity; randomised response: one answer, and
        replace-one neighbours, since an absent answer is not defined).
    Validity: exact.
    Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Section 3 (dominating pairs); Canonne, Kamath,
        Steinke 2020 (arXiv:2004.00010), Theorem 7 (discrete Gaussian).
    Error: the discrete Gaussian's far tail is counted as an infinite loss (below 1e-300). Where it
        has very many points it is known between two Gaussians instead (theorems/discrete_gaussian)
        or, if it is moved so far that next to no privacy is left, by its zero-concentrated DP
        (Theorem 4).
    Vectors: discrete_laplace; closed forms, in the tests of the pairs.
    """

    NAME = "Single releases, exact"
    SOURCE = Source("Zhu, Dong, Wang 2022", "Section 3", "zdw22")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    ABOUT = "Laplace noise, discrete Laplace and Gaussian noise, and randomised response"

    @classmethod
    def applies(cls, process: Process) -> Refusal | None:
        if isinstance(process, RandomizedResponse) and process.adjacency not in _ANSWERED:
            return Refusal(
                f"{cls.NAME}: randomised response compares two answers of one person, or an answer "
                f"with a null record's, so it needs replace-one or zero-out neighbours; got "
                f"{process.adjacency}. Declare Adjacency.REPLACE_ONE.",
                "neighbours",
            )
        if type(process) in _PAIRS:
            return other_neighbours(cls.NAME, process, cls.RELATIONS)
        return foreign(cls.NAME, cls.ABOUT, process)

    @classmethod
    def proved(cls, process: Process) -> Guarantee:
        if isinstance(process, DiscreteGaussianMechanism) and process.sigma > 0.0:
            wide = of_many_points(process.sigma, process.sensitivity, process.adjacency)
            if wide is not None:
                return wide
        if isinstance(process, RandomizedResponse) and process.adjacency is Adjacency.ZERO_OUT:
            return _response_of_null(process)
        pair = _PAIRS[type(process)](process)
        if pair is None:
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        return LossGuarantee((((pair, 1),),), process.adjacency, Validity.EXACT)


_ANSWERED = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)  # both have an answer to compare


def _response(process: RandomizedResponse) -> AbstractLossPair | None:
    if process.flip == 0:
        return None
    # truth with probability 1 - flip + flip/k, any other answer with flip/k
    epsilon = math.log1p(process.categories * (1.0 - process.flip) / process.flip)
    return randomized_response_pair(epsilon, process.categories)


def _response_of_null(process: RandomizedResponse) -> Guarantee:
    """P answers 1 - f + f/k truthfully and f/k otherwise; Q, the null record's, 1/k each."""
    f, k = process.flip, process.categories
    if f == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    wrong = f * (k - 1) / k
    losses = (math.log(f), math.log1p((k - 1) * (1.0 - f)))
    pair = DiscretePair(losses, (wrong, 1.0 - wrong)) if f < 1.0 else DiscretePair((0.0,), (1.0,))
    return LossGuarantee((((pair, 1),), ((pair.reversed(), 1),)), process.adjacency, Validity.EXACT)


# the dominating pair; each of these is its own mirror image, so one order suffices
_PAIRS: dict[type, Callable[[Any], AbstractLossPair | None]] = {
    LaplaceMechanism: lambda p: LaplacePair(p.noise_multiplier) if p.noise_multiplier > 0 else None,
    DiscreteLaplaceMechanism: lambda p: discrete_laplace_pair(p.decay, p.sensitivity),
    DiscreteGaussianMechanism: lambda p: (
        discrete_gaussian_pair(p.sigma, p.sensitivity) if p.sigma > 0 else None
    ),
    RandomizedResponse: _response,
}


@final
class ExponentialMechanismDdr20(Proved):
    """The exponential mechanism, by its bounded range.

    Statement: a release whose log-likelihood ratios between neighbours span at most e (they lie in
        [t - e, t] for some t) has delta(x) <= (E^(1/2) - X^(1/2))^2/(E - 1), E = e^e, X = e^x, |x|
        <= e; so it is dominated by the pair whose loss has the density proportional to e^(l/2) on
        [-e, e]. The exponential mechanism of parameter epsilon spans at most epsilon.
    Proof: the extreme laws of a ratio in [t - e, t] have two values: t with probability p under P,
        and t - e. Q has mass 1, so p = (E - T)/(E - 1), T = e^t, and delta(x) = p (1 - X/T) for t -
        e <= x <= t; this is largest at T = (E X)^(1/2), where it is the bound. Then P(L > x) =
        delta(x) - delta'(x) = (E - (E X)^(1/2))/(E - 1) gives the density. The exponential
        mechanism has ln P(y)/Q(y) = epsilon (u(y) - u'(y))/(2 s) + constant, which spans epsilon.
    Conditions: every score moves by at most its sensitivity s between neighbours.
    Validity: upper bound; the profile of one release is attained, at each x by some scores (two
        candidates whose scores move against each other). Composed adaptively, as Zhu, Dong and Wang
        2022 (Theorem 10) allow, it stays a bound; scores fixed in advance lose less (Dong, Durfee,
        Rogers 2020, Section 4).
    Source: Dong, Durfee, Rogers 2020 (arXiv:1909.13830), Lemma 3.4 and Theorem 3.
    Error: none here; the numerical composition states its own.
    Vectors: bounded_range.
    """

    NAME = "Exponential mechanism, bounded range"
    SOURCE = Source("Dong, Durfee, Rogers 2020", "Lemma 3.4", "ddr20")
    RELATIONS = ONE_RECORD
    OF = (ExponentialMechanism,)

    @classmethod
    def proved(cls, process: ExponentialMechanism) -> Guarantee:
        if process.epsilon == 0.0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        orders = (((BoundedRangePair(process.epsilon), 1),),)
        return LossGuarantee(orders, process.adjacency, Validity.BOUND, attained=orders)


@final
class PermuteAndFlipTheorem(Proved):
    """Permute-and-flip, by Laplace noise.

    Statement: permute-and-flip of parameter epsilon is dominated by Laplace(0, 1) against
        Laplace(epsilon, 1).
    Proof: it is report-noisy-max with exponential noise: with s_i = epsilon score_i/(2 sensitivity)
        and independent E_i of rate 1, the candidate of the largest s_i + E_i wins (Ding et al.
        2021). Let A be a set of candidates, X = max over A of s_i + E_i, Y the same over the
        others, and p(t) = P(X + t > Y). The chance of a winner in A is p(0); a neighbour moves each
        s_i by at most epsilon/2, so its chance lies between p(-epsilon) and p(epsilon), as p rises.
        At a point y above all s_i, with a_i = e^(s_i - y), X has the density sum_i a_i prod_{j /=
        i} (1 - a_j), the chance of exactly one success of independent trials of chances a_i, and
        P(X > y) is that of at least one: a hazard rate of at most 1. (Below a point s_i the density
        is 0.) So p' = E f_X(Y - t) <= E P(X > Y - t) = p, and with X and Y exchanged p' <= 1 - p.
        Laplace noise has f(F^-1(v)) = min(v, 1 - v), so F^-1(p(t)) rises by at most t: a chance v
        becomes at most F(F^-1(v) + epsilon). That is the best that a test of Laplace(epsilon)
        against Laplace(0) reaches at this level, for every set A. QED
    Conditions: every score moves by at most its sensitivity between neighbours.
    Validity: upper bound; the profile of one release is attained by two candidates, of which E_1 -
        E_2 is Laplace noise. Composed adaptively it stays a bound.
    Source: McKenna, Sheldon 2020 (arXiv:2010.12603) for the mechanism; Ding et al. 2021
        (arXiv:2105.07260), Theorem 4 for exponential noise; the domination: the proof above.
    Error: none here; the numerical composition states its own.
    Vectors: none; brute force over small sets of candidates in the tests.
    """

    NAME = "Permute-and-flip, as Laplace noise"
    SOURCE = Source("McKenna, Sheldon 2020; Ding et al. 2021", "and the page's proof", "ms20")
    RELATIONS = ONE_RECORD
    OF = (PermuteAndFlip,)

    @classmethod
    def proved(cls, process: PermuteAndFlip) -> Guarantee:
        if process.epsilon == 0.0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        orders = (((LaplacePair((1.0 - 1e-15) / process.epsilon), 1),),)
        return LossGuarantee(orders, process.adjacency, Validity.BOUND, attained=orders)


@final
class TreeAggregationTheorem(Proved):
    """The noisy sums of a binary tree of batches.

    Statement: with L leaves a record is in at most 1 + floor(log2 L) released nodes, all above one
        leaf; the release of all of them is the Gaussian mechanism with the sensitivity sqrt of that
        number (twice it where a record is replaced), whatever of it is read off.
    Proof: of the nodes that hold a leaf there is one of each size 1, 2, 4, ...; a node of size 2^i
        is released once its 2^i leaves are there, so 2^i <= L. One record moves the vector of these
        sums by one norm each, at right angles; the first leaf is in all of them. Nodes may be asked
        for adaptively (Dong, Roth, Su 2019, Corollary 3.3 for Gaussian noise).
    Conditions: every record is in one leaf, fixed in advance; removing it leaves the others where
        they are (its place stays empty), and replacing it keeps the leaf.
    Validity: exact.
    Source: Dwork et al. 2010; Chan, Shi, Song 2011; Kairouz et al. 2021 (arXiv:2103.00039), Section
        3.
    Error: none.
    Vectors: none; counted by brute force in the tests.
    """

    NAME = "Tree aggregation"
    SOURCE = Source("Kairouz et al. 2021", "Section 3", "kmstx21")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    OF = (TreeAggregation,)

    @classmethod
    def proved(cls, process: TreeAggregation) -> Guarantee:
        if process.noise_multiplier == 0.0:
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        mu = process.adjacency.moved * math.sqrt(process.depth) / process.noise_multiplier
        return GaussianGuarantee(mu * (1.0 + 1e-15), process.adjacency, Validity.EXACT)


@final
class Declared(Proved):
    """Releases whose guarantee is declared by whoever made them.

    Statement: a release that is (epsilon, delta)-DP, Renyi DP, mu-GDP or zCDP for the declared
        neighbours is just that; (xi, rho)-zCDP means (order, xi + rho * order)-Renyi DP for every
        order above 1.
    Conditions: the declaration is true. Tightrope cannot check it, and reports say so.
    Validity: upper bound.
    Source: the declaration; Bun, Steinke 2016 (arXiv:1605.02065), Definition 1.1 and 8.1 for zCDP.
    Error: none.
    Vectors: tradeoff_eps_delta, thm3_eps.
    """

    NAME = "Declared guarantee"
    SOURCE = Source("the declaration", "taken at its word", "declared")
    RELATIONS = ONE_RECORD
    OF = (DeclaredApproxDP, DeclaredGaussianDP, DeclaredRenyi, DeclaredZeroConcentrated)
    ABOUT = "declared releases"

    @classmethod
    def proved(cls, process: Process) -> Guarantee:
        if isinstance(process, DeclaredApproxDP):
            return ApproxGuarantee(process.epsilon, process.delta, process.adjacency)
        if isinstance(process, DeclaredGaussianDP):
            return GaussianGuarantee(process.mu, process.adjacency)
        if isinstance(process, DeclaredRenyi):
            term: TableTerm | LinearTerm = TableTerm(process.orders, process.gammas)
        else:
            assert isinstance(process, DeclaredZeroConcentrated)
            term = LinearTerm(process.rho, process.xi)
        return RenyiGuarantee(RenyiCurve.of(term), process.adjacency)
