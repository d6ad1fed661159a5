"""Moments of the mean of lognormals, against product quadrature and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.numerics.lognormal_mean import log_negative_moments, log_positive_moments


def by_product_rule(batches: int, mu: float, power: float, nodes: int = 60) -> float:
    """ln E[M^power] by Gauss-Hermite in every coordinate: slow, obvious, right to about 1e-10."""
    g, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = weight / math.sqrt(2 * math.pi)
    total, mass = np.zeros(()), np.ones(())
    for _ in range(batches):
        total = np.add.outer(total, np.exp(mu * g - mu * mu / 2))
        mass = np.multiply.outer(mass, weight)
    return float(np.log(np.sum(mass * (total / batches) ** power)))


@pytest.mark.parametrize("batches", [2, 3])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_negative_moments(batches, mu, power) -> None:
    truth = by_product_rule(batches, mu, -power)
    found = log_negative_moments(batches, mu, np.array([float(power)]))[0]
    assert truth * (1 - 1e-8) <= found <= truth * (1 + 1e-8)


@pytest.mark.parametrize("batches", [2, 3])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0])
def test_positive_moments(batches, mu) -> None:
    found = log_positive_moments(batches, mu, 5)
    for power in range(2, 6):
        assert found[power] == pytest.approx(by_product_rule(batches, mu, power), rel=1e-8)
    assert found[:2] == pytest.approx([0.0, 0.0], abs=1e-15)


@pytest.mark.parametrize("exponent", [2, 5, 63])
def test_both_ways_of_raising_a_series_agree(exponent) -> None:
    """A record alone in its batch: E[X^a] = e^(a (a-1) mu^2/2), and t = 1 is no special case."""
    alone = log_positive_moments(1, 0.7, exponent)[exponent]
    assert alone == pytest.approx(exponent * (exponent - 1) * 0.245, rel=1e-12)
    # Euler's recurrence (many batches) meets repeated squaring (few) at the number of orders
    many, few = (log_positive_moments(40, 0.7, largest)[30] for largest in (39, 45))
    assert many == pytest.approx(few, rel=1e-14)


@pytest.mark.parametrize("batches", [10**4, 10**7, 10**10])
@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_many_batches_keep_relative_accuracy(batches, mu) -> None:
    """ln E[M^-s] = s (s+1) Var(M)/2 (1 + O(1/t)), however small that is."""
    powers = np.array([1.0, 4.0])
    leading = powers * (powers + 1) / 2 * math.expm1(mu * mu) / batches
    found = log_negative_moments(batches, mu, powers)
    assert found == pytest.approx(leading, rel=max(60.0 / batches, 2e-5))
    assert (found >= leading * (1 - 60.0 / batches)).all()


def test_divergences_are_out_of_reach_rather_than_wrong() -> None:
    assert log_negative_moments(2, 15.0, np.array([200.0]))[0] == math.inf


@pytest.mark.parametrize(("batches", "mu"), [(100, 6.3), (80440, 9.95)])
def test_little_noise_overflows_nowhere(batches, mu) -> None:
    """Warnings are errors; a moment out of reach is infinite, and E 1/M >= 1 as E M = 1."""
    assert (log_negative_moments(batches, mu, np.array([1.0, 63.0])) > 0.0).all()
