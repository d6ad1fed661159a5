"""Losses of finitely many values, both ways round: sums of 60 digits are inside."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from tightrope.guarantee.loss.lattice import log_delta
from tightrope.guarantee.loss.pairs import (
    BoundedRangePair,
    DiscretePair,
    SampledGaussianPair,
    approx_pair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
    randomized_response_pair,
)
from tightrope.guarantee.loss.pairs.discrete import DiscreteCumulant
from tightrope.guarantee.loss.renyi import renyi, renyi_by_cells

NEARLY_ALL = 1.0 - 2.0**-53


@pytest.fixture(autouse=True)
def _exact():
    with mpmath.workdps(60):
        yield


def laplace(decay, k):
    return mpmath.tanh(mpmath.mpf(decay) / 2) * mpmath.exp(-mpmath.mpf(decay) * abs(k))


def gaussian(sigma, k):
    return mpmath.exp(-mpmath.mpf(k * k) / (2 * mpmath.mpf(sigma) ** 2))


def laws(noise, scale, shift, rate, plus, minus):
    """P and Q at whole numbers, by definition."""
    reach = 3 * shift + math.ceil(160 / scale if noise is laplace else 40 * scale)
    masses = {k: noise(scale, k) for k in range(-reach - shift, reach + shift + 1)}
    total, q = mpmath.fsum(masses.values()), mpmath.mpf(rate)

    def law(k, moved, there):
        found = (1 - q) * masses[k] + q * masses[k - moved] if there else masses[k]
        return found / total

    return [(law(k, shift, plus), law(k, -shift, minus)) for k in range(-reach, reach + 1)]


def true_log_delta(both, epsilon):
    e = mpmath.exp(mpmath.mpf(epsilon))
    return mpmath.log(mpmath.fsum(p - e * q for p, q in both if p > e * q))


def true_renyi(both, order):
    a = mpmath.mpf(order)
    return mpmath.log(mpmath.fsum(p**a * q ** (1 - a) for p, q in both)) / (a - 1)


def named(mechanism):
    return "-".join([mechanism[0].__name__, *map(str, mechanism[1:])])


MECHANISMS = [
    (laplace, 30.0, 1, 1.0 - 1e-12, True, True),
    (laplace, 1.0, 1, NEARLY_ALL, True, True),
    (laplace, 30.0, 3, 1e-3, True, True),
    (laplace, 0.5, 1, 1e-9, False, True),
    (laplace, 3.0, 2, 1.0, True, False),
    (gaussian, 0.1, 3, 0.5, True, False),
    (gaussian, 2.0, 1, 0.9, True, True),
    (gaussian, 1.0, 2, NEARLY_ALL, False, True),
    (gaussian, 5.0, 1, 1e-9, True, False),
]


def pair_of(noise, *parameters):
    make = discrete_laplace_pair if noise is laplace else discrete_gaussian_pair
    return make(*parameters)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=named)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.999999])
def test_delta_of_noise_on_whole_numbers(mechanism, turned, part):
    """Cancellation at rates near 1, and at shifts of many deviations, took 4 to 10 digits."""
    both, pair = laws(*mechanism), pair_of(*mechanism)
    if turned:
        both, pair = [(q, p) for p, q in both], pair.reversed()
    epsilon = part * max(loss for loss, mass in pair.atoms if mass > 1e-30)
    found = pair.log_delta_single(epsilon)
    assert found.lower <= true_log_delta(both, epsilon) <= found.upper
    assert found.upper - found.lower < (1e-9 if part < 0.9 else 1e-4)  # a gap of 1e-6 to the last


@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if m[0] is laplace], ids=named)
@pytest.mark.parametrize("order", [1.0 + 1e-9, 1.001, 2.0, 30.0])
def test_divergences_of_noise_on_whole_numbers(mechanism, order):
    """What rounding took of a sum of masses is no mass that is missing."""
    truth, pair = true_renyi(laws(*mechanism), order), pair_of(*mechanism)
    lower, upper = renyi(pair, order)
    cells = renyi_by_cells(pair, order)
    assert lower <= truth <= upper and cells.lower <= truth <= cells.upper
    assert upper - lower < 2e-4 * truth


@pytest.mark.parametrize("order", [1.0 + 1e-9, 1.001, 2.0, 1e3])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1, 3.0, 35.0, 45.0, 150.0])
@pytest.mark.parametrize("categories", [2, 1000])
def test_divergences_of_randomised_response(order, epsilon, categories):
    """The upper end was 0.22 % too low at epsilon 1e-5 and order 1.001."""
    a, u, k = mpmath.mpf(order), mpmath.mpf(epsilon), categories
    total = mpmath.exp(a * u) + mpmath.exp((1 - a) * u) + k - 2
    truth = mpmath.log(total / (mpmath.exp(u) + k - 1)) / (a - 1)
    lower, upper = renyi(randomized_response_pair(epsilon, categories), order)
    assert lower <= truth <= upper and upper - lower <= 2e-12 * truth


@pytest.mark.parametrize("sigma", [0.02, 0.05, 5.0])
def test_a_law_that_is_cut_has_an_infinite_loss_both_ways_round(sigma):
    """Turned round it had none, and at rate 1e-9 a divergence below 0; at 0.05 sums were nan."""
    pair = discrete_gaussian_pair(sigma, 1, 1e-9, True, False)
    assert pair.infinite_mass > 0.0 and pair.reversed().infinite_mass > 0.0
    for turned in (pair, pair.reversed()):  # a sample loses no more than all: order / (2 sigma^2)
        lower, upper = renyi(turned, 2.0)
        assert 0.0 < lower <= upper <= (1.0 + 1e-9) / sigma**2
    assert math.isfinite(pair.log_delta_single(0.1).upper)


@pytest.mark.parametrize("delta", [1e-18, 1e-13, 1e-3])
def test_turned_round_nothing_is_lost(delta):
    """Masses below 1e-12 that only Q has were dropped: deltas at epsilon < 0 were too small."""
    pair = approx_pair(1.0, delta)
    assert pair.reversed().infinite_mass == delta and pair.reversed().only_under_q == delta
    below = mpmath.mpf(-1.5)  # 1 - e^-1.5 + e^-1.5 delta, since no finite loss is below -1
    truth = mpmath.log(1 - mpmath.exp(below) + mpmath.exp(below) * mpmath.mpf(delta))
    found = log_delta(((pair, 1),), -1.5)
    assert found.lower <= truth <= found.upper


def test_what_is_missing_under_q_is_added():
    pair = DiscretePair((0.5,), (1.0,))
    assert pair.only_under_q == pytest.approx(-math.expm1(-0.5), rel=1e-15)
    assert randomized_response_pair(1000.0).only_under_q == 1.0  # e^-1000 is no number


@pytest.mark.parametrize("epsilon", [-1e-300, -1e-200, -1e-9])
def test_below_every_loss_delta_is_rounded_by_its_size(epsilon):
    """ln(1 - e^epsilon) of -690 is off by more than 8 units of 1."""
    truth = mpmath.log(-mpmath.expm1(mpmath.mpf(epsilon)))
    for pair in (BoundedRangePair(-epsilon), SampledGaussianPair(-0.5 * epsilon, 1.0)):
        found = pair.log_delta_single(epsilon)
        assert found.lower <= truth <= found.upper
        assert found.upper - found.lower <= 1e-10
    assert np.isfinite(found.lower)


@pytest.mark.parametrize("tilt", [-1.0, -0.3, 1e-3, 0.4])
@pytest.mark.parametrize("infinite", [0.0, 1e-6, 0.1])
def test_cumulant_of_one_loss(tilt, infinite):
    """ln M = ln(1 - i) + z l; Q has a mass of its own, and P another."""
    value, error = (
        float(v[0])
        for v in DiscreteCumulant(DiscretePair((0.2,), (1.0 - infinite,), infinite), 1).real(
            tilt, 30
        )
    )
    truth = mpmath.log1p(-mpmath.mpf(infinite)) + mpmath.mpf(tilt) * mpmath.mpf(0.2)
    assert abs(value - truth) <= error <= 1e-13


@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if m[0] is gaussian], ids=named)
def test_masses_are_right_to_their_errors(mechanism):
    """Sorted, for many numbers may have one loss."""
    _, sigma, shift, *_ = mechanism
    pair, both = pair_of(*mechanism), laws(*mechanism)
    beyond = (len(both) - 1) // 2 - math.ceil(38 * sigma) - shift  # not stored
    held = [law for law in both[beyond : len(both) - beyond] if mpmath.log(law[0]) > -708]
    for side, which in enumerate((pair, pair.reversed())):
        order = np.argsort(which.log_masses)
        truth = sorted(mpmath.log(law[side]) for law in held)
        found = zip(truth, which.log_masses[order], which.log_errors[order], strict=True)
        assert all(abs(t - log) <= error for t, log, error in found if log > -700)


@pytest.mark.parametrize("order", [1.001, 2.0, 30.0])
@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if m[0] is laplace], ids=named)
def test_cells_before_the_last_margin(mechanism, order):
    """e^{(a-1) D} - 1 lies between the two sums themselves."""
    pair, both = pair_of(*mechanism), laws(*mechanism)
    truth = mpmath.log(mpmath.expm1((mpmath.mpf(order) - 1) * true_renyi(both, order)))
    low, high = (
        mpmath.log(
            mpmath.fsum(mpmath.exp(mpmath.mpf(x)) for x in pair.divergence_terms(order, way))
        )
        for way in (-1.0, 1.0)
    )
    assert low <= truth <= high


def test_cumulant_of_a_rare_loss_is_known_as_well_as_its_mass():
    """Tilted by 2 nothing else counts, so a mass that is off moves the cumulant by as much."""
    pair = DiscretePair((0.0, 300.0), (1.0, 1e-200), loss_units=0.0)
    _, error = DiscreteCumulant(pair, 1).real(2.0, 30.0)
    assert float(error[0]) >= float(pair.log_errors[1])
