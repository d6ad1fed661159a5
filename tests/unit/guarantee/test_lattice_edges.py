"""The lattice next to the largest loss: Laplace, discrete and sampled releases against the truth.

There the tilted law is a point at the end of the support. Windows once missed it, because Chernoff
exponents of steep tilts are differences of large numbers whose rounding was not counted.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.errors import NotCertified
from tightrope.guarantee.loss import contour, lattice, profile
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice.best import guesses
from tightrope.guarantee.loss.lattice.law import one_side
from tightrope.guarantee.loss.lattice.plan import plain_plan
from tightrope.guarantee.loss.pairs import (
    BoundedRangePair,
    FixedSizeGaussianPair,
    GaussianMixturePair,
    LaplaceMixturePair,
    LaplacePair,
    PublicMixturePair,
    SampledGaussianPair,
    approx_pair,
)
from tightrope.numerics.interval import Interval
from tightrope.numerics.lattice import check_size, normalised
from tightrope.process import (
    Adjacency,
    DeclaredApproxDP,
    DeclaredRenyi,
    DiscreteGaussianMechanism,
    FixedSizeSampling,
    LaplaceMechanism,
    NoisySGD,
    Process,
    RandomizedResponse,
    Repeated,
    Sequence,
)
from tightrope_reproduce.formulas.optimal_composition import delta_optimal, epsilon_optimal


def laplace_log_delta(scale: float, count: int, epsilon: float) -> float:
    """top - L is 0 or exponential of rate 1/2, each with probability 1/2, below 2 top: Gammas."""
    with mp.workdps(30):
        gap = count / mp.mpf(scale) - mp.mpf(epsilon)
        assert 0 < gap < 2 / mp.mpf(scale)
        total = -mp.expm1(-gap)
        for m in range(1, count + 1):
            total += mp.binomial(count, m) * mp.quad(
                lambda g, m=m: (
                    (g / 2) ** (m - 1) / 2 * mp.exp(-g / 2) / mp.gamma(m) * -mp.expm1(g - gap)
                ),
                [0, gap],
            )
        return float(mp.log(total) - count * mp.log(2))


@pytest.mark.parametrize("scale", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("count", [2, 3, 10, 30])
@pytest.mark.parametrize("gap", [0.5, 1e-2, 1e-4, 1e-6, 1e-9])
def test_laplace_sums_below_their_largest_loss(scale: float, count: int, gap: float) -> None:
    epsilon = count / scale * (1 - gap / count)
    truth = laplace_log_delta(scale, count, epsilon)
    found = lattice.log_delta(((LaplacePair(scale), count),), epsilon)
    assert found.lower <= truth <= found.upper
    assert found.width < (1e-4 if gap > 1e-8 else 1e-3)


def two_by_enumeration(scale: float, epsilon: float) -> float:
    """delta of two releases from the law of one, cut into 4,000 cells at their middles."""
    top = 1.0 / scale
    edges = np.linspace(-top, top, 4001)
    over = 1.0 - np.exp(-(1.0 - scale * edges) / 2.0 / scale) / 2.0  # P(L > edge)
    masses = np.concatenate([[np.exp(-top) / 2.0], over[:-1] - over[1:], [0.5]])
    losses = np.concatenate([[-top], 0.5 * (edges[1:] + edges[:-1]), [top]])
    both, mass = np.add.outer(losses, losses), np.outer(masses, masses)
    return float(np.sum(mass * -np.expm1(np.minimum(epsilon - both, 0.0))))


@pytest.mark.parametrize("scale", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_two_laplace_releases_by_enumeration(scale: float, share: float) -> None:
    epsilon = share * 2.0 / scale
    truth = two_by_enumeration(scale, epsilon)
    found = profile.delta(((LaplacePair(scale), 2),), epsilon)
    assert found.lower * (1 - 1e-5) <= truth <= found.upper * (1 + 1e-5)
    assert found.upper <= found.lower * (1 + 2e-4)


@pytest.mark.parametrize("count", [2, 10, 100])
def test_laplace_releases_never_cost_more_than_pure_composition(count: int) -> None:
    result = account(Repeated(LaplaceMechanism(2.0), count))
    epsilons = [result.epsilon(delta).upper for delta in (0.0, 1e-9, 1e-5, 1e-2)]
    assert epsilons[0] <= 0.5 * count * (1 + 1e-12)
    assert all(a >= b * (1 - 1e-14) for a, b in pairwise(epsilons))


@pytest.mark.parametrize("level", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("count", [2, 3, 300])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.999999, 1 - 1e-9])
def test_repeated_declarations_compose_optimally(level: float, count: int, share: float) -> None:
    epsilon = share * level * count
    truth = delta_optimal(epsilon, level, 1e-7, count)
    found = profile.delta(((approx_pair(level, 1e-7), count),), epsilon)
    assert found.lower <= truth.upper * (1 + 1e-9)
    assert truth.lower * (1 - 1e-9) <= found.upper
    # an ulp of epsilon is this much of the distance to the largest loss
    assert found.upper <= truth.upper * (1 + 1e-6 + 1e-14 / (1 - share)) + 1e-15


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_repeated_declarations_are_accounted_exactly(delta: float) -> None:
    found = account(Repeated(DeclaredApproxDP(0.3), 20)).epsilon(delta)
    truth = epsilon_optimal(delta, 0.3, 0.0, 20)
    assert found.lower <= truth.upper * (1 + 1e-9)
    assert truth.lower * (1 - 1e-9) <= found.upper <= truth.upper * (1 + 1e-9)


def test_an_infinite_mass_above_delta_is_infinite() -> None:
    assert account(Repeated(DeclaredApproxDP(0.3, 1e-4), 20)).epsilon(1e-5).upper == math.inf


def test_laplace_with_a_declaration_is_between_laplace_alone_and_the_sum() -> None:
    mixed = account(Sequence((Repeated(LaplaceMechanism(2.0), 3), DeclaredApproxDP(0.1))))
    alone = account(Repeated(LaplaceMechanism(2.0), 3)).epsilon(1e-2)
    assert alone.lower <= mixed.epsilon(1e-2).upper <= 1.6
    assert mixed.guarantee(1e-2).epsilon(1e-2).relative_width < 1e-4


def sampled_log_delta(rate: float, mu: float, epsilon: float) -> float:
    """Two "add" steps: the closed form of one averaged over the loss of the other, 40 digits."""
    with mp.workdps(40):
        q, mu, eps = mp.mpf(rate), mp.mpf(mu), mp.mpf(epsilon)

        def one(level: mp.mpf) -> mp.mpf:
            inner = (mp.exp(-level) - 1 + q) / q
            if inner <= 0:
                return mp.mpf(0)
            s = (mp.log(inner) + mu**2 / 2) / mu
            return mp.ncdf(s) * (1 - mp.exp(level) * (1 - q)) - mp.exp(level) * q * mp.ncdf(s - mu)

        def integrand(s: mp.mpf) -> mp.mpf:
            return mp.npdf(s) * one(eps + mp.log1p(q * mp.expm1(mu * s - mu**2 / 2)))

        top = mp.exp(-mp.log1p(-q) - eps)  # the other loss cannot exceed -ln(1 - q)
        last = (mp.log((top - 1 + q) / q) + mu**2 / 2) / mu
        nodes = [last - 14 * (mp.mpf(k) / 40) ** 1.5 for k in range(40, -1, -1)]
        return float(mp.log(mp.quad(integrand, nodes, maxdegree=4)))


@pytest.mark.parametrize(
    ("rate", "mu", "epsilon"),
    [
        (1.0316455537910676e-07, 4.965403736299315, 2.0632912140041538e-07),  # once called delta 0
        (0.00039015981156315685, 4.7499538445607845, 0.0007804718874110968),
        (0.0013, 3.0, 0.0026016),
        (0.3, 1.0, 0.70),
    ],
)
def test_two_sampled_steps_below_their_largest_loss(rate: float, mu: float, epsilon: float) -> None:
    components = ((SampledGaussianPair(rate, mu, "add"), 2),)
    assert epsilon < -2.0 * math.log1p(-rate)
    truth = sampled_log_delta(rate, mu, epsilon)
    found = lattice.log_delta(components, epsilon)
    assert found.lower <= truth <= found.upper
    back = lattice.epsilon(components, math.exp(truth))
    assert back.lower * (1 - 1e-14) <= epsilon <= back.upper * (1 + 1e-14)
    assert back.relative_width <= 1e-4


def test_a_loss_is_not_called_unreachable_within_rounding_of_the_largest() -> None:
    """Positions of a coarse lattice are rounded on the scale of its whole range."""
    rate, mu = 3.1576443248174574e-06, 4.6302659387237455
    epsilon = math.nextafter(-2.0 * math.log1p(-rate), 0.0)
    found = lattice.log_delta(((SampledGaussianPair(rate, mu, "add"), 2),), epsilon)
    assert found.upper >= -84.0  # the truth is about -83.3 a few ulp below


def test_epsilon_next_to_the_largest_loss_of_one_release() -> None:
    """The closed form rounds to a positive delta at the largest loss itself."""
    pair = SampledGaussianPair(0.00017662169315740622, 2.7064984408075596, "add")
    found = profile.epsilon(((pair, 1),), 5.318487939396393e-297)
    assert found.upper == pytest.approx(pair.support[1], rel=1e-12)
    assert found.relative_width < 1e-12


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("width", [1e-2, 1e-3])
def test_steps_narrower_than_the_coarsest_lattice(direction: str, width: float) -> None:
    """Single steps beside blocks are one atom there, which must lie at its own mean."""
    pair = SampledGaussianPair(2.462e-7, 1 / 23.6255, direction)  # type: ignore[arg-type]
    many = ((pair, 274_586_582),)
    truth = contour.log_delta(many, 0.0)
    law = lattice.build(plain_plan(many, 0.0, guesses(many, 0.0)[0], width))
    assert law.below.log_lower(0.0) <= truth.lower
    assert truth.upper <= law.above.log_upper(0.0)
    assert law.above.log_upper(0.0) - law.below.log_lower(0.0) <= width


# ---- losses of very different sizes
def test_a_branch_without_mass_has_no_error() -> None:
    """A record that is drawn is seen, one that is not loses nothing: P(drawn) in two steps."""
    found = lattice.log_delta(((FixedSizeGaussianPair(0.1, 54.0), 2),), 0.1)
    assert found.lower <= math.log(0.19) <= found.upper
    assert found.width < 1e-4


# each once ended in NaN or in an array of a terabyte
WIDE_APART: list[tuple[Components, float]] = [
    (
        (
            (LaplaceMixturePair(2.16e-11, 5.795, True, False), 444_986),
            (LaplaceMixturePair(0.408, 0.1873, False, True), 32_498),
        ),
        14513.6,
    ),
    (
        (
            (LaplaceMixturePair(9.57e-12, 18.1, True, False), 117_715_794),
            (SampledGaussianPair(1.19e-6, 3.0), 227),
        ),
        2.7e-10,
    ),
    (
        (
            (FixedSizeGaussianPair(0.00317, 0.6624), 1941),
            (SampledGaussianPair(0.00236, 0.5807), 1307),
        ),
        0.7,
    ),
    (
        (
            (BoundedRangePair(0.0033), 231_372_458),
            (
                PublicMixturePair(
                    3.7e-11, SampledGaussianPair(8.7e-6, 14.1), SampledGaussianPair(3.8e-6, 14.1)
                ),
                18,
            ),
        ),
        6.0,
    ),
    (
        (
            (FixedSizeGaussianPair(0.0011844462236557153, 0.8377094080857944), 4),
            (approx_pair(0.6774305176179182, 0.0), 2),
            (GaussianMixturePair(0.00018282173240879993, 72.89855041575048, 2, 0), 8),
        ),
        7.757719660699041,
    ),
]


@pytest.mark.parametrize(("parts", "epsilon"), WIDE_APART)
def test_losses_of_very_different_sizes(parts: Components, epsilon: float) -> None:
    """Both methods give bounds, wide ones at worst, or refuse."""
    bounds = [Interval(-math.inf, 0.0)]
    for method in (lattice, contour):
        with suppress(NotCertified):
            bounds.append(method.log_delta(parts, epsilon))
    assert max(found.lower for found in bounds) <= min(found.upper for found in bounds)


def test_a_step_does_not_divide_what_is_far_below_it() -> None:
    parts, epsilon = WIDE_APART[0]
    assert lattice.log_delta(parts, epsilon).width < 0.1


def test_a_lattice_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(NotCertified, match="points"):
        check_size(1e12)
    with pytest.raises(NotCertified, match="points"):
        check_size(math.nan)


def test_a_lattice_that_nothing_is_left_on_is_refused() -> None:
    with pytest.raises(NotCertified, match="coarse"):
        normalised(0.0, 1.0, np.zeros(3), 0.0, 1.0, 0.0, 0.0)


def test_an_error_that_is_no_number_proves_nothing_from_below() -> None:
    side = one_side(plain_plan(((SampledGaussianPair(0.1, 1.0), 10),), 0.3, -5.0, 0.1), "lower")
    side._seen[0.3] = (-5.0, math.nan)
    assert side.log_lower(0.3) == -math.inf


# ---- losses whose exponentials no double holds, and releases that keep nothing
@pytest.mark.parametrize(
    ("process", "epsilon"),
    [
        (DiscreteGaussianMechanism(10.0, 1000), 4900.0),
        (Repeated(LaplaceMechanism(1e-3), 3), 2000.0),
        (Repeated(RandomizedResponse(1e-300), 3), 1000.0),
        (Repeated(DeclaredApproxDP(1000.0, 1e-9), 5), 4000.0),
        (Repeated(DeclaredApproxDP(1.0, 1.0), 2), 1.0),
        (Sequence((DiscreteGaussianMechanism(10.0, 1000), DeclaredRenyi((2.0,), (1.0,)))), 1.0),
    ],
)
def test_huge_losses_are_answered_without_a_warning(process: Process, epsilon: float) -> None:
    known = account(process)
    delta = known.delta(epsilon)
    assert 0.5 < delta.upper <= 1.0
    assert known.epsilon(1e-12).upper >= epsilon


def test_schedules_of_fixed_size_batches_are_checked_by_blocks() -> None:
    """A block of steps once ended at s = -inf, in NaN and a ValueError."""
    one, other = (
        NoisySGD(FixedSizeSampling(rate), noise, steps, adjacency=Adjacency.REPLACE_ONE)
        for rate, noise, steps in ((0.0165, 1.446, 318), (0.0224, 5.23, 1289))
    )
    assert account(Sequence((one, other)), check="full").epsilon(1e-5).upper < 5.0
