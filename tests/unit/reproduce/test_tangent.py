"""(10) and Lemma B.6 of Deep Learning with Gaussian Differential Privacy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from tightrope.process import NoisySGD, PoissonSampling
from tightrope_reproduce.formulas.tangent import limit, tangent_point
from tightrope_reproduce.gdp.analyses import Analyses

NU, EPSILON = 0.5, 1.0


def _run(steps: int) -> NoisySGD:
    return NoisySGD(PoissonSampling(NU / math.sqrt(steps)), 1.0, steps)


def test_of_one_step_it_is_the_type_i_error_of_the_likelihood_test() -> None:
    """1 - p + p e^(x - 1/2) > e^eps for x from N(0, 1)."""
    rate, epsilon = 0.3, 0.4
    x = math.log((math.exp(epsilon) - 1.0 + rate) / rate) + 0.5
    found = tangent_point(NoisySGD(PoissonSampling(rate), 1.0, 1), epsilon)
    assert found == pytest.approx(float(ndtr(-x)), rel=1e-3)


def test_it_tends_to_that_of_the_limit() -> None:
    mu = NU * math.sqrt(math.e - 1.0)
    gaps = [abs(tangent_point(_run(steps), EPSILON) - limit(mu, EPSILON)) for steps in (60, 4000)]
    assert gaps[1] < 0.3 * gaps[0] and gaps[1] < 0.001
    edges = np.linspace(-1.0, 1.0, 3) * 1e-4  # the slope of G_mu there is -e^eps
    curve = [float(ndtr(-_quantile(limit(mu, EPSILON) + e) - mu)) for e in edges]
    assert (curve[2] - curve[0]) / 2e-4 == pytest.approx(-math.exp(EPSILON), rel=1e-3)


def _quantile(a: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(a))


@pytest.mark.parametrize("steps", [10, 1000])
def test_the_moments_accountant_exceeds_the_truth_by_at_least_the_tangent(steps: int) -> None:
    run = _run(steps)
    analyses = Analyses(run)
    least = analyses.delta(EPSILON).upper + math.exp(EPSILON) * tangent_point(run, EPSILON)
    assert analyses.moments_delta(EPSILON) > least
