"""Balls in bins with very many batches, and orders that rest on the rarest losses.

A complex log1p that is off by a unit of 1 is off by t units in a power of t: lower ends came out
above the truth from 5,000 batches on. Exponents that were cut at e^700 made a Renyi divergence of
order 32 too small (136.85 where 189.92 is true).
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from tightrope import BallsInBinsSampling, NoisySGD, account
from tightrope.guarantee.loss.pairs import AllocationPair
from tightrope.guarantee.loss.renyi import renyi
from tightrope.numerics.inversion_law import log1p_complex
from tightrope.numerics.lognormal_mean import log_mean, log_positive_moments


def test_the_logarithm_is_right_to_units_of_its_argument():
    x = (np.longdouble(10.0) ** -np.arange(3, 18)) * np.exp(1j * np.arange(15))
    series = x - x**2 / 2 + x**3 / 3 - x**4 / 4 + x**5 / 5 - x**6 / 6
    unit = np.finfo(np.longdouble).eps
    assert np.all(np.abs(log1p_complex(x) - series) <= 8 * unit * np.abs(x) + np.abs(x) ** 7)


@pytest.mark.parametrize("batches", [5_000, 20_000])
def test_powers_of_many_batches_are_between_their_ends(batches):
    truth = log_positive_moments(batches, 1.0, 16)
    pair = AllocationPair(batches, 1.0, "remove")
    for order in range(4, 17):
        lower, upper = renyi(pair, float(order))
        assert lower <= truth[order] / (order - 1) * (1 + 1e-12)
        assert upper >= truth[order] / (order - 1) * (1 - 1e-12)


def test_no_density_is_proved_negative():
    law = log_mean(20_000, 1.0)
    assert np.all(law.density + law.error >= 0)


@pytest.mark.parametrize(
    ("batches", "noise", "order"),
    [(2, 0.5, 32), (2, 0.5, 40), (10, 0.5, 26), (100, 0.6, 31), (234, 0.7, 36), (234, 1.1, 56)],
)
def test_large_orders_are_never_below_the_truth(batches, noise, order):
    truth = log_positive_moments(batches, 1 / noise, order)[order] / (order - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = account(NoisySGD(BallsInBinsSampling(batches), noise, batches)).renyi(order)
    assert found.upper >= truth * (1 - 1e-9)
    assert found.lower <= truth * (1 + 1e-9) and math.isfinite(found.upper)
