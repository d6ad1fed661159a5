"""kl, kappa_2, kappa_3 and Renyi moments of trade-off functions, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from tightrope.errors import InvalidInput
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.theorems.limits import clt_mu
from tightrope_reproduce.formulas.functionals import functionals, limit, log_moment
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff


def _gaussian(mu: float, rate: float = 1.0, cells: int = 40_000) -> DiscreteTradeoff:
    """p G_mu + (1 - p) Id by the masses of many cells of N(0, 1) and N(mu, 1)."""
    edges = np.linspace(-9.0, mu + 9.0, cells + 1)
    p, q = (np.diff(ndtr(edges - mean)) for mean in (0.0, mu))
    # beyond the middle from the other side, where no digits are lost
    for mass, mean in ((p, 0.0), (q, mu)):
        high = edges[:-1] > mean
        mass[high] = np.diff(-ndtr(mean - edges))[high]
    p, q = p / p.sum(), q / q.sum()
    return DiscreteTradeoff(p, rate * q + (1.0 - rate) * p)


def test_the_functionals_of_two_answers_are_their_sums() -> None:
    """p = (3/4, 1/4), q = (1/4, 3/4): every ln|f'| is ln 3 in size."""
    found = functionals(DiscreteTradeoff(np.array([0.75, 0.25]), np.array([0.25, 0.75])))
    log = math.log(3.0)
    assert found == pytest.approx((0.5 * log, 0.5 * log, log**2, log**2, log**3, log**3))


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_functionals_of_the_gaussian_mechanism(mu: float) -> None:
    """ln|f'| is N(-mu^2/2, mu^2) under P: kl = mu^2/2, kappa_2 = mu^2 + mu^4/4."""
    found = functionals(_gaussian(mu))
    x = np.linspace(-12.0, 12.0, 200_001)
    law = np.exp(-0.5 * x * x) * (x[1] - x[0]) / math.sqrt(2.0 * math.pi)
    third = float(law @ np.abs(mu * x - 0.5 * mu * mu) ** 3)
    exact = (0.5 * mu**2, 0.5 * mu**2, mu**2 + mu**4 / 4, mu**2 + mu**4 / 4, third, third)
    assert found == pytest.approx(exact, rel=1e-5)


def test_the_third_functional_of_sampled_steps_fades_and_the_limit_is_theorem_5s() -> None:
    """Theorem 7 for f_p with p = 0.5/sqrt(T): condition 4 falls like 1/sqrt(T)."""
    seen = []
    for steps in (100, 10_000):
        rate = 0.5 / math.sqrt(steps)
        mu, last = limit(_gaussian(1.0, rate), steps)
        clt = clt_mu(NoisySGD(PoissonSampling(rate), 1.0, steps))
        seen.append((abs(mu / clt - 1.0), last))
    assert seen[1][0] < 0.2 * seen[0][0] and seen[1][0] < 0.02
    assert 0.08 < seen[1][1] / seen[0][1] < 0.2


@pytest.mark.parametrize("power", [0.5, 1.0, 4.0])
def test_renyi_divergences_follow_from_the_slopes_with_the_exponent_of_lemma_b5(
    power: float,
) -> None:
    """lambda D_{lambda+1} = lambda (lambda + 1) mu^2/2 for G_mu, of either order of the laws."""
    curve = _gaussian(1.0)
    assert log_moment(curve, power) == pytest.approx(0.5 * power * (power + 1.0), rel=1e-4)
    printed = math.log(np.sum(curve.p * (curve.q / curve.p) ** power))  # (11)
    assert abs(printed - 0.5 * power * (power - 1.0)) < 1e-4  # at power 1 nothing is left
    assert printed < log_moment(curve, power)


def test_lemma_b5_holds_for_sampled_steps() -> None:
    """T alpha_GM(lambda) >= ln int |f_T'|^(lambda+1): the moment is the larger of two orders."""
    one = _gaussian(1.0, 0.1, cells=400)
    other = DiscreteTradeoff(one.q[::-1], one.p[::-1])
    both = DiscreteTradeoff(np.outer(one.p, one.p).ravel(), np.outer(one.q, one.q).ravel())
    for power in (1.0, 6.0):
        alpha = max(log_moment(one, power), log_moment(other, power))
        assert 2.0 * alpha >= log_moment(both, power) * (1 - 1e-12)
        assert log_moment(both, power) == pytest.approx(2.0 * log_moment(one, power), rel=1e-9)


def test_flat_pieces_are_refused() -> None:
    flat = DiscreteTradeoff(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5]))
    with pytest.raises(InvalidInput, match="infinite"):
        functionals(flat)
    with pytest.raises(InvalidInput, match="above 0"):
        log_moment(_gaussian(1.0, cells=10), 0.0)
