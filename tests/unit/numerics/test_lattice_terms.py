"""Terms of the lattice's error that stand alone: moments, sums of weights, what wraps around."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.numerics.lattice import LatticeMeasure, _convolved, coarsened, compound, convolve
from tightrope.numerics.lattice_tail import tail_table


def geometric(count: int, ratio: float, **changed: float) -> LatticeMeasure:
    weights = ratio ** np.arange(count, dtype=np.float64)
    return LatticeMeasure(0.0, 0.1, weights / weights.sum(), 0.0, 0.0, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [-3.0, -0.01, 0.5, 40.0, 2000.0])
@pytest.mark.parametrize(("count", "ratio"), [(60, 0.7), (256, 0.99), (300, 1.01), (700, 0.99)])
def test_moments_are_bounded_from_above(change: float, count: int, ratio: float) -> None:
    """Also where the sum is taken in rows of 256, with mass in what is left of the last one."""
    measure = geometric(count, ratio)
    logs = np.log(measure.weights) + change * 0.1 * np.arange(count)
    top = float(logs.max())
    truth = top + math.log(math.fsum(np.exp(logs - top)))
    assert truth <= measure.log_moment(change) <= truth + 1e-9 * (1 + abs(truth))


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_an_error_of_the_sum_of_weights_counts_at_the_worst_place(rate: float) -> None:
    """e of weight at the point where e^{-cx} (1 - e^-x) is largest."""
    e = 1e-4
    weights = np.full(200, 1.0 / 200)
    measure = LatticeMeasure(-5.0, 0.1, weights, 0.0, rate, e)
    for a in (-3.0, 0.0, 4.0):
        x = np.arange(0.0, 9.0, 1e-3)
        worst = float(np.max(np.exp(-rate * x) * -np.expm1(-x))) * math.exp(-rate * a)
        found = float(tail_table(measure).log_error(np.array([a]))[0])
        assert math.log(e * worst) <= found <= math.log(1.05 * e * worst)


def test_what_wraps_around_a_compound_sum_is_in_its_error() -> None:
    """A window that holds one term and not two."""
    weights = np.full(20, 0.05)
    measure = LatticeMeasure(1.0, 0.1, weights, math.log(1e-3), 0.0)
    count, size = 300, 48
    law = compound(measure, count, size)
    mass = 1e-3
    share = 1.0 - (1.0 + mass) ** -count  # some term
    two = 1.0 - (1.0 + mass) ** -count * (1.0 + count * mass)
    assert two < share
    sums, beyond = np.ones(1), 0.0
    for k in range(1, 12):
        sums = np.convolve(sums, weights)
        first = 10 * k
        outside = float(sums[max(size - first, 0) :].sum())
        beyond += math.comb(count, k) * mass**k * outside
    beyond /= (1.0 + mass) ** count
    assert beyond <= law.error


def test_mass_outside_of_a_window_counts_twice() -> None:
    """It is missing where it belongs and too much where it wraps to."""
    measure = geometric(40, 0.8)
    factors = [(measure, 12)]
    small, whole = (convolve(factors, size, (2.0, 2.0)) for size in (96, 512))
    start = round((small.first - whole.first) / 0.1)
    inside = whole.weights[start : start + 96]
    wrong = float(np.abs(small.weights - inside).sum()) + 1.0 - float(inside.sum())
    assert 1e-6 < wrong <= small.error
    outside = 1.0 - float(inside.sum())  # known exactly, and not only bounded
    assert wrong <= _convolved(factors, 96, (start, outside)).error <= 1.1 * wrong


@pytest.mark.parametrize("place", [13, 35, 57])
def test_a_coarser_lattice_enlarges_an_error_with_its_tilt(place: int) -> None:
    """Weight that is wrong at one point comes to the ends of its cell, the right one tilted."""
    e, weights = 1e-3, np.full(100, 0.01)
    plain, wrong = (
        LatticeMeasure(0.0, 0.01, weights + e * (np.arange(100) == at), 0.0, 30.0, error)
        for at, error in ((-1, e), (place, 0.0))
    )
    found, moved = (coarsened(m, 10, "upper") for m in (plain, wrong))
    here, there = (m.weights * math.exp(m.log_scale) for m in (found, moved))
    gap = float(np.abs(here - there).sum())
    assert e < gap <= found.error * math.exp(found.log_scale)
