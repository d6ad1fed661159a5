"""Loss pairs against high precision, symmetries, closed forms of one step, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.accounting import account
from tightrope.errors import InvalidInput
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    AllocationPair,
    BoundedRangePair,
    DiscretePair,
    FixedSizeGaussianPair,
    GaussianMixturePair,
    GaussianPair,
    LaplaceMixturePair,
    LaplacePair,
    PublicMixturePair,
    SampledGaussianPair,
    approx_pair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    randomized_response_pair,
)
from tightrope.process import RandomizedResponse

PAIRS: list[AbstractLossPair] = [
    GaussianPair(0.7),
    GaussianPair(5.0),
    SampledGaussianPair(0.01, 1.0, "remove"),
    SampledGaussianPair(0.01, 1.0, "add"),
    SampledGaussianPair(1e-6, 2.0, "remove"),
    SampledGaussianPair(0.7, 0.1, "add"),
    SampledGaussianPair(1.0, 0.8, "remove"),
    FixedSizeGaussianPair(0.05, 1.5),
    LaplacePair(0.6),
    BoundedRangePair(1.3),
    approx_pair(0.8, 1e-3),
    randomized_response_pair(1.2, 5),
    discrete_gaussian_pair(1.7),
]


def _ratio(s: mp.mpf, rate: float, mu: float) -> mp.mpf:
    return 1 + mp.mpf(rate) * (mp.exp(mu * s - mp.mpf(mu) ** 2 / 2) - 1)


def _sampled_reference(pair: SampledGaussianPair, loss: float) -> tuple[mp.mpf, mp.mpf]:
    """P(L > loss), Q(L > loss) by bisection for s and the error function, in 50 digits."""
    rate, mu = mp.mpf(pair.rate), mp.mpf(pair.mu)
    level = mp.exp(loss if pair.direction == "remove" else -mp.mpf(loss))
    inner = (level - 1 + rate) / rate
    s = (mp.log(inner) + mu**2 / 2) / mu if inner > 0 else -mp.inf

    def above(point: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
        base = mp.erfc(point / mp.sqrt(2)) / 2
        return (1 - rate) * base + rate * mp.erfc((point - mu) / mp.sqrt(2)) / 2, base

    mix, base = above(s)
    return (mix, base) if pair.direction == "remove" else (1 - base, 1 - mix)


@pytest.mark.parametrize(
    ("pair", "loss"),
    [
        (SampledGaussianPair(0.01, 1.0, "remove"), -0.009),
        (SampledGaussianPair(0.01, 1.0, "remove"), 0.2),
        (SampledGaussianPair(0.01, 1.0, "remove"), 25.0),
        (SampledGaussianPair(1e-8, 1.0, "remove"), 1e-9),
        (SampledGaussianPair(1e-8, 1.0, "remove"), 5.0),
        (SampledGaussianPair(0.01, 1.0, "add"), 0.009),
        (SampledGaussianPair(0.01, 1.0, "add"), -3.0),
        (SampledGaussianPair(0.5, 3.0, "add"), 0.69),
    ],
)
def test_survival_and_cdf_are_precise_in_both_tails(pair: SampledGaussianPair, loss: float) -> None:
    with mp.workdps(60):
        survival = _sampled_reference(pair, loss)
        tolerance = float(pair.log_error(loss)) + 1e-15
        for got, true in zip(pair.log_survival(loss), survival, strict=True):
            assert abs(float(got) - float(mp.log(true))) <= tolerance
        for got, true in zip(pair.log_cdf(loss), survival, strict=True):
            assert abs(float(got) - float(mp.log(1 - true))) <= tolerance
        assert tolerance < 1e-9


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_survival_and_cdf_add_up_to_one(pair: AbstractLossPair) -> None:
    losses = np.linspace(-3.0, 3.0, 61)
    for above, below in zip(pair.log_survival(losses), pair.log_cdf(losses), strict=True):
        np.testing.assert_allclose(np.exp(above) + np.exp(below), 1.0, atol=1e-13)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_one_step_delta_is_the_hockey_stick_of_the_survivals(pair: AbstractLossPair) -> None:
    for epsilon in (-1.0, 0.0, 0.3, 1.1):
        p, q = (float(np.exp(x)) for x in pair.log_survival(epsilon))
        delta = p - math.exp(epsilon) * q
        found = pair.log_delta_single(epsilon)
        assert math.exp(found.lower) - 1e-13 <= delta <= math.exp(found.upper) + 1e-13
        assert math.isinf(found.lower) or found.width < 1e-9


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_reversing_swaps_the_two_laws(pair: AbstractLossPair) -> None:
    """delta_{P||Q}(-e) = 1 - e^-e + e^-e delta_{Q||P}(e)."""
    for epsilon in (0.05, 0.6):
        here = math.exp(pair.log_delta_single(-epsilon).upper)
        there = math.exp(pair.reversed().log_delta_single(epsilon).upper)
        assert here == pytest.approx(1 - math.exp(-epsilon) * (1 - there), rel=1e-10)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_pairs_are_hashable_values(pair: AbstractLossPair) -> None:
    assert pair.reversed().reversed() == pair or isinstance(pair, DiscretePair)
    assert hash(pair) == hash(pair)
    low, high = pair.support
    assert low < high
    assert all(low <= loss <= high for loss, _ in pair.atoms)


@pytest.mark.parametrize(
    ("rate", "sigma", "epsilon", "remove", "add"),
    [  # 34-digit values of the closed forms of Part D
        (0.01, 1.0, 0.1, 0.00007290037695761226548459855571698916, 0.0),
        (0.25, 0.4, 0.5, 0.1573544283580077738894898383414178, 0.0),
        (1.0, 0.8, 2.0, 0.06842226408114102784693444770572365, 0.06842226408114102784693444770572),
    ],
)
def test_golden_one_step_deltas(
    rate: float, sigma: float, epsilon: float, remove: float, add: float
) -> None:
    for direction, true in (("remove", remove), ("add", add)):
        pair = SampledGaussianPair(rate, 1 / sigma, direction)  # type: ignore[arg-type]
        found = pair.log_delta_single(epsilon)
        if true == 0.0:
            assert found.upper == -math.inf
        else:
            assert found.lower - 1e-14 <= math.log(true) <= found.upper + 1e-14
            assert found.width < 1e-12


@settings(max_examples=80, deadline=None)
@given(mu=st.floats(1e-5, 40.0), t=st.floats(-3.0, 30.0))
def test_gaussian_profile_contains_the_truth_everywhere(mu: float, t: float) -> None:
    epsilon = mu * t
    with mp.workdps(80):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        phi = lambda x: mp.erfc(-x / mp.sqrt(2)) / 2  # noqa: E731
        true = mp.log(phi(-e / m + m / 2) - mp.exp(e) * phi(-e / m - m / 2))
        found = log_gaussian_delta(epsilon, mu)
        assert found.lower <= true <= found.upper
        assert found.width < 1e-8


def test_fixed_size_pair_has_its_atom_and_symmetry() -> None:
    pair = FixedSizeGaussianPair(0.05, 1.5)
    ((loss, mass),) = pair.atoms
    assert loss == 0.0
    assert mass == pytest.approx(0.95 * math.erf(0.75 / math.sqrt(2)), rel=1e-14)
    above, below = pair.log_survival(0.0), pair.log_cdf(-1e-300)
    assert float(np.exp(above[0]) + np.exp(below[0])) == pytest.approx(1 - mass, rel=1e-12)


def test_masses_typed_by_people_are_sorted_and_checked() -> None:
    pair = DiscretePair((1.0, -1.0), (1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))))
    assert pair.losses == (-1.0, 1.0)
    assert pair == approx_pair(1.0, 0.0) == randomized_response_pair(1.0)


def test_masses_are_scaled_to_add_up_to_one() -> None:
    pair = DiscretePair((-0.1, 0.3), (0.4, 0.5999999999995), 1e-13)
    assert abs(math.fsum((*pair.masses, pair.infinite_mass)) - 1.0) <= 2.0**-52
    assert DiscretePair((0.0,), (0.0,), 1.0).masses == (0.0,)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GaussianPair(0.0), "mu"),
        (lambda: GaussianPair(float("nan")), "mu"),
        (lambda: GaussianPair(np.array([1.0, 2.0])), "one number"),  # type: ignore[arg-type]
        (lambda: SampledGaussianPair(0.0, 1.0), "rate"),
        (lambda: SampledGaussianPair(1.5, 1.0), "rate"),
        (lambda: SampledGaussianPair(0.1, 1.0, "both"), "'remove' or 'add'"),  # type: ignore[arg-type]
        (lambda: FixedSizeGaussianPair(0.1, -1.0), "mu"),
        (lambda: LaplacePair(-1.0), "scale"),
        (lambda: DiscretePair((0.0, 1.0), (0.5,)), "one length"),
        (lambda: DiscretePair((0.0,), (0.9,)), "sum to 1"),
        (lambda: DiscretePair((-1.0,), (1.0,)), "at most 1"),
        (lambda: approx_pair(-0.1, 0.0), "epsilon"),
        (lambda: randomized_response_pair(1.0, 1), "categories"),
        (lambda: discrete_gaussian_pair(0.0), "noise_multiplier"),
    ],
)
def test_refusals_name_the_argument(make: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("missing", [2.0**-53, 1e-15, 1e-12, 1e-6])
@pytest.mark.parametrize("mu", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("below", [1e-9, 1e-3, 0.3, 5.0])
def test_adding_at_rates_next_to_one(missing: float, mu: float, below: float) -> None:
    """Close to the largest loss -ln(1 - rate), where e^-eps - 1 + rate nearly vanishes."""
    pair = SampledGaussianPair(1.0 - missing, mu, "add")
    epsilon = pair.support[1] - below
    found = pair.log_delta_single(epsilon)
    with mp.workdps(60):
        rate, eps = mp.mpf(pair.rate), mp.mpf(epsilon)
        left = mp.exp(-eps) - 1 + rate  # delta = E[(1 - e^eps r(s))_+], s ~ N(0,1)
        point = mp.log(left / rate) / mu + mp.mpf(mu) / 2
        true = mp.ncdf(point) * mp.exp(eps) * left - rate * mp.exp(eps) * mp.ncdf(point - mu)
        assert found.lower <= mp.log(true) <= found.upper


def test_a_pair_knows_whether_one_release_has_a_closed_form() -> None:
    for kind in (*{type(pair) for pair in PAIRS}, AllocationPair, PublicMixturePair):
        given = kind.log_delta_single is not AbstractLossPair.log_delta_single
        assert kind.has_closed_form == given


def test_jumps_and_rare_losses_are_those_of_removed_records() -> None:
    """The lattice follows those of fixed-size batches too; the contour can leave out mixtures'."""
    removed, added = (SampledGaussianPair(0.01, 1.0, way) for way in ("remove", "add"))
    fixed, mixture = FixedSizeGaussianPair(0.05, 1.5), GaussianMixturePair(0.1, 1.0, 2, 1)
    assert removed.has_jumps and removed.has_rare_losses
    assert fixed.has_jumps and not fixed.has_rare_losses
    assert mixture.has_rare_losses and not mixture.has_jumps
    assert PublicMixturePair(0.3, added, removed).has_rare_losses
    for pair in (added, SampledGaussianPair(1.0, 0.8, "remove"), GaussianPair(0.7)):
        assert not pair.has_jumps and not pair.has_rare_losses


# ---- next to the largest loss
@pytest.mark.parametrize(
    ("pair", "truth"),
    [
        (
            LaplaceMixturePair(1.6194230576340053e-10, 0.052863352321357054, True, False),
            lambda: mp.log1p(
                mp.mpf(1.6194230576340053e-10) * mp.expm1(1 / mp.mpf(0.052863352321357054))
            ),
        ),
        (
            discrete_laplace_pair(9.0, 3, 1e-12),
            lambda: mp.log1p(mp.mpf(1e-12) * mp.expm1(mp.mpf(27))),
        ),
        (LaplacePair(3.0), lambda: 1 / mp.mpf(3)),
    ],
)
def test_the_largest_loss_is_enclosed(pair: AbstractLossPair, truth: Callable[[], mp.mpf]) -> None:
    with mp.workdps(40):
        for count in (1, 3):
            found = profile.epsilon(((pair, count),), 0.0)
            assert found.lower <= count * truth() <= found.upper
            assert found.relative_width < 1e-13


@pytest.mark.parametrize("flip", [0.9560342718892494, 0.9954002491061312, 0.3])
@pytest.mark.parametrize("gap", [1e-9, 1e-13, 3e-16])
def test_one_response_next_to_its_loss(flip: float, gap: float) -> None:
    """A loss is rounded, and what epsilon leaves of it was not."""
    epsilon = math.log1p(2.0 * (1.0 - flip) / flip) * (1.0 - gap)
    found = account(RandomizedResponse(flip)).delta(epsilon)
    with mp.workdps(40):
        p = mp.mpf(flip)
        assert found.lower <= max(1 - p / 2 - mp.exp(mp.mpf(epsilon)) * p / 2, 0) <= found.upper
