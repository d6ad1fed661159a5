"""The lattice method brackets the truth: closed forms, enumeration, golden values, quadrature."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp

from tightrope.errors import NotCertified
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss import lattice
from tightrope.guarantee.loss.lattice.best import best_plan
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    approx_pair,
    randomized_response_pair,
)

# mpmath, 30 digits, contour integral: (rate, sigma, steps, epsilon, remove, add)
GOLDEN = [
    (0.01, 1.0, 1000, 2.0, 2.665571924761790252e-6, 1.067162021368677333e-9),
    (0.003, 0.6, 10000, 6.0, 2.270043334360666958e-5, 1.491459029989954300e-12),
    (0.001, 4.0, 100000, 0.5, 4.190224243671887514e-12, 3.388378601807867485e-12),
    (0.5, 1.0, 20, 12.0, 3.911577625160112933e-4, 5.138398205303583952e-22),
    (0.01, 1.0, 1000, 60.0, 1.132868942935516589e-208, 0.0),
    (0.05, 30.0, 10000000, 20.0, 0.09243979726444422563, 0.09239891013632337306),
]


@pytest.mark.parametrize("case", GOLDEN, ids=str)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_golden_sampled_gaussian(case: tuple[float, ...], direction: str) -> None:
    rate, sigma, steps, epsilon, remove, add = case
    pair = SampledGaussianPair(rate, 1 / sigma, direction)  # type: ignore[arg-type]
    found = lattice.log_delta(((pair, int(steps)),), epsilon, 1e-3)
    true = remove if direction == "remove" else add
    if true == 0.0:
        assert found.upper == -math.inf
        return
    assert found.lower <= math.log(true) <= found.upper
    assert found.width < 3e-3


@pytest.mark.parametrize(
    "pair",
    [
        SampledGaussianPair(1e-6, 1.0, "remove"),
        SampledGaussianPair(0.2, 2.0, "remove"),
        SampledGaussianPair(0.2, 2.0, "add"),
        FixedSizeGaussianPair(0.1, 1.0),
        LaplacePair(0.8),
        GaussianPair(0.3),
    ],
    ids=str,
)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.9])
def test_one_step_agrees_with_its_closed_form(pair: AbstractLossPair, epsilon: float) -> None:
    found, true = lattice.log_delta(((pair, 1),), epsilon), pair.log_delta_single(epsilon)
    assert found.lower <= true.upper
    assert true.lower <= found.upper
    assert found.width < 1e-4 or true.upper == -math.inf


def _binomial_delta(epsilon0: float, delta0: float, count: int, epsilon: float) -> float:
    """ln delta of `count` four-point pairs by enumeration of the number of high answers."""
    k = np.arange(count + 1)
    high = -math.log1p(math.exp(-epsilon0)) + math.log1p(-delta0)
    ways = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
    log_mass = ways + k * high + (count - k) * (high - epsilon0)
    loss = (2 * k - count) * epsilon0
    above = loss > epsilon
    gain = np.log(-np.expm1(epsilon - loss[above]))
    finite = float(logsumexp(log_mass[above] + gain)) if above.any() else -math.inf
    infinite = math.log(-math.expm1(count * math.log1p(-delta0))) if delta0 > 0 else -math.inf
    return float(np.logaddexp(finite, infinite))


@settings(max_examples=25, deadline=None)
@given(
    epsilon0=st.floats(0.01, 2.0),
    delta0=st.sampled_from([0.0, 1e-9, 1e-3]),
    count=st.integers(2, 60),
    share=st.floats(0.02, 0.98),
)
def test_answers_with_atoms_agree_with_enumeration(
    epsilon0: float, delta0: float, count: int, share: float
) -> None:
    epsilon = share * count * epsilon0
    found = lattice.log_delta(((approx_pair(epsilon0, delta0), count),), epsilon)
    true = _binomial_delta(epsilon0, delta0, count, epsilon)
    assert found.lower <= true + 1e-12
    assert true - 1e-12 <= found.upper
    assert found.width < 1e-6


def test_different_atoms_agree_with_enumeration() -> None:
    """Incommensurable losses: split above, moved down below."""
    first, second = randomized_response_pair(0.3), randomized_response_pair(math.sqrt(0.2))
    total = 0.0
    for i in range(7):
        for j in range(5):
            ways = math.comb(6, i) * math.comb(4, j)
            p = ways * np.prod([m**n for m, n in zip(first.masses, (6 - i, i), strict=True)])
            p *= np.prod([m**n for m, n in zip(second.masses, (4 - j, j), strict=True)])
            loss = 0.3 * (2 * i - 6) + math.sqrt(0.2) * (2 * j - 4)
            total += p * max(0.0, -math.expm1(1.1 - loss))
    found = lattice.log_delta(((first, 6), (second, 4)), 1.1, 1e-3)
    assert found.lower <= math.log(total) <= found.upper
    assert found.width < 3e-3


def _two_steps(pair: SampledGaussianPair, epsilon: float) -> float:
    """ln delta of two steps: the one-step profile averaged over the other loss, in 40 digits."""
    with mp.workdps(40):
        q, mu, eps = mp.mpf(pair.rate), mp.mpf(pair.mu), mp.mpf(epsilon)

        def one(level: mp.mpf) -> mp.mpf:  # delta at e^eps = level, "remove"
            inner = (level - 1 + q) / q
            if inner <= 0:
                return 1 - level
            s = (mp.log(inner) + mu**2 / 2) / mu
            tail = mp.erfc(s / mp.sqrt(2)) / 2
            return q * mp.erfc((s - mu) / mp.sqrt(2)) / 2 - (level - 1 + q) * tail

        def integrand(s: mp.mpf) -> mp.mpf:
            r = 1 + q * (mp.exp(mu * s - mu**2 / 2) - 1)
            return mp.npdf(s) * r * one(mp.exp(eps) / r)

        inner = (mp.exp(eps) - 1 + q) / q
        turn = (mp.log(inner) + mu**2 / 2) / mu
        nodes = [-14, *[turn + d for d in (-8, -4, -2, -1, -0.3, 0, 0.3, 1, 2, 4, 8)]]
        return float(mp.log(mp.quad(integrand, sorted({*nodes, -4, 0, 4}))))


@pytest.mark.parametrize(
    ("rate", "mu", "epsilon"),
    [
        (1e-8, 1.0, 0.1),  # one jump only; delta about e^-147
        (1e-8, 1.0, 3e-8),
        (1e-5, 2.0, 1.0),
        (1e-3, 3.3, 0.5),
        (1e-3, 0.3, 0.05),
        (0.1, 1.0, 3.0),
    ],
)
def test_two_steps_in_the_hard_regime_agree_with_quadrature(
    rate: float, mu: float, epsilon: float
) -> None:
    pair = SampledGaussianPair(rate, mu)
    found = lattice.log_delta(((pair, 2),), epsilon)
    true = _two_steps(pair, epsilon)
    assert found.lower - 1e-10 <= true <= found.upper + 1e-10
    assert found.width < 1e-4


def test_jumps_and_plain_lattice_agree_near_the_phase_transition() -> None:
    components = ((SampledGaussianPair(1e-4, 1.25), 10000),)
    law, fine = lattice.law_at(components, 0.06, 1e-4)
    assert law.plan.split.jumps > 0
    assert fine.width <= 1e-4
    assert fine.meets(lattice.log_delta(components, 0.06, 0.3))
    assert fine.lower <= math.log(1.355e-5) + 5e-4
    assert math.log(1.355e-5) - 5e-4 <= fine.upper


def test_a_law_is_valid_away_from_the_epsilon_it_was_planned_for() -> None:
    components = ((SampledGaussianPair(0.02, 1.0), 200),)
    law, _ = lattice.law_at(components, 1.0, 1e-3)
    for epsilon in (0.0, 0.4, 2.0, 4.0):
        assert law.log_delta(epsilon).meets(lattice.log_delta(components, epsilon))


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "true"),
    [
        (256 / 60000, 1.3, 3516, 1e-5, 0.8645401912260320370),
        (0.0125, 0.6, 1600, 1e-6, 12.74943642384082026848),
        (0.001, 4.0, 100000, 1e-10, 0.4588876236798686893),
    ],
)
def test_golden_epsilons(rate: float, sigma: float, steps: int, delta: float, true: float) -> None:
    found = lattice.epsilon(((SampledGaussianPair(rate, 1 / sigma), steps),), delta)
    assert found.lower <= true <= found.upper
    assert found.relative_width < 1e-4


@pytest.mark.parametrize("delta", [1e-5, 1e-60, 1e-120])
def test_epsilon_in_the_hard_regime_is_verified_from_both_sides(delta: float) -> None:
    components = ((SampledGaussianPair(1e-6, 1.0), 100),)
    found = lattice.epsilon(components, delta)
    assert found.relative_width < 2e-4
    if found.upper > 0:
        assert lattice.log_delta(components, found.lower * (1 - 1e-3)).lower > math.log(delta)
        assert lattice.log_delta(components, found.upper * (1 + 1e-3)).upper < math.log(delta)


def test_too_many_kinds_of_steps_are_refused_with_the_way_out() -> None:
    many = tuple((GaussianPair(0.1 + 0.001 * i), 1) for i in range(301))
    with pytest.raises(NotCertified, match="inversion integral"):
        lattice.log_delta(many, 1.0)


@pytest.mark.parametrize(
    ("pair", "count", "epsilon"),
    [
        (randomized_response_pair(20.0, 3), 2, 39.0),  # the tilted law is one point
        (approx_pair(50.0, 0.0), 3, 120.0),
        (LaplacePair(1e-3), 2, 1500.0),
        (SampledGaussianPair(2.6e-8, 4.4, "add"), 2, 4e-8),
        (SampledGaussianPair(1 - 1e-9, 1.0), 5, 3.0),
        (SampledGaussianPair(1.0, 1.0, "add"), 5, 3.0),
        (GaussianPair(1e-4), 1, 1e-4),
        (SampledGaussianPair(0.4, 4.5), 3, 0.0),
    ],
    ids=str,
)
def test_extreme_settings_are_answered_narrowly(
    pair: AbstractLossPair, count: int, epsilon: float
) -> None:
    assert lattice.log_delta(((pair, count),), epsilon).width <= 1e-4


def test_a_gaussian_part_has_no_largest_loss() -> None:
    """The lattice ends its tails somewhere; what lies beyond is not impossible."""
    found = lattice.log_delta(((LaplacePair(2.0), 3), (GaussianPair(0.1), 1)), 30.0)
    alone = log_gaussian_delta(30.0, 0.1)  # the Laplace releases can only add to it
    assert alone.lower > -math.inf
    assert found.upper >= alone.lower


@pytest.mark.parametrize(
    ("rate", "mu", "steps", "delta"),
    [
        (1.235e-8, 0.1126, 8, 3e-140),  # a plan whose rounding came out too large
        (4.758e-7, 0.1073, 6, 2.7e-155),
        (0.0565, 0.07756, 6, 7.6e-276),
        (2.323e-5, 1.381, 35127, 3.6e-189),  # two to four large jumps, ten followed
    ],
)
def test_small_deltas_in_the_hard_regime_have_narrow_epsilons(
    rate: float, mu: float, steps: int, delta: float
) -> None:
    """Each took a second plan; the ends hold against laws planned for themselves."""
    components = ((SampledGaussianPair(rate, mu), steps),)
    found = lattice.epsilon(components, delta)
    assert 0.0 < found.relative_width <= 1e-4
    assert lattice.log_delta(components, found.lower, 0.1).upper >= math.log(delta)
    assert lattice.log_delta(components, found.upper, 0.1).lower <= math.log(delta)


def test_two_steps_followed_as_many_jumps_agree_with_quadrature() -> None:
    pair, epsilon = SampledGaussianPair(1e-5, 2.0), 1.0
    true = _two_steps(pair, epsilon)
    for many in (False, True):
        plan = best_plan(((pair, 2),), epsilon, true, 1e-3, many=many)
        found = lattice.build(plan).log_delta(epsilon)
        assert found.lower <= true <= found.upper
        other = best_plan(((pair, 2),), epsilon, true, 1e-3, failed=(plan.split.cut,), many=many)
        assert other.split.cut != plan.split.cut
        found = lattice.build(other).log_delta(epsilon)
        assert found.lower <= true <= found.upper


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-12, 1e-8])
@pytest.mark.parametrize("delta", [1e-320, 1e-250, 1e-60])
def test_tiny_losses_are_not_lost_in_rounding(rate: float, delta: float) -> None:
    """One step with much noise: losses of 1e-14, far below an ulp of ln(mass)."""
    components = ((SampledGaussianPair(rate, 1e-3), 1),)
    found = lattice.epsilon(components, delta)
    for end, safe in ((found.upper, False), (found.lower, True)):
        true = components[0][0].log_delta_single(end)
        assert (true.upper >= math.log(delta)) if safe else (true.lower <= math.log(delta))
