"""The law of the mean of lognormals: every value within its stated error, every bound above."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import quad

from tightrope.guarantee.loss.pairs import AllocationPair
from tightrope.guarantee.loss.pairs.allocation import AllocationCumulant
from tightrope.numerics import lognormal_mean
from tightrope.numerics.lognormal_mean import (
    Transform,
    log_mean,
    log_negative_moments,
    log_positive_moments,
    log_power_mean,
    log_real_transform,
)

SETTINGS = [(2, 1.0), (30, 0.3), (100, 0.9), (8, 1.6)]


@pytest.mark.parametrize(("mu", "argument"), [(0.3, 1.2), (1.0, 1.9), (2.0, 0.0)])
def test_transform_against_twenty_digits(mu: float, argument: float) -> None:
    v = np.array([0.01, 5.0]) * np.exp(1j * argument)
    found, error = Transform(mu, 0.42, 44.0)(v)
    with mp.workdps(20):
        turn = mp.mpf("0.6")  # another path than the one taken

        def truth(at):
            def integrand(g):
                ratio = mp.exp(mu * g - mp.mpf(mu) ** 2 / 2 - 1j * turn)
                return (
                    mp.npdf(g)
                    * mp.exp((turn / mu) ** 2 / 2 + 1j * g * turn / mu)
                    * mp.expm1(-at * ratio)
                )

            return complex(mp.quad(integrand, mp.linspace(-11, 11, 12)))

        exact = np.array([truth(mp.mpc(at)) for at in v])
    assert np.all(np.abs(found - exact) <= error)
    assert np.all(error < 1e-11)
    # e^(theta^2/(2 mu^2)) F(Re(v e^(-i theta))) is above |F|, theta = 0.6
    real = (v * np.exp(-0.6j)).real
    bound = 0.5 * (0.6 / mu) ** 2 + log_real_transform(mu, real)
    assert np.all(np.log(np.abs(1.0 + exact)) <= bound)


@pytest.mark.parametrize(("count", "mu"), SETTINGS)
def test_power_means_lie_above_the_exact_ones(count: int, mu: float) -> None:
    exact = log_positive_moments(count, mu, 24)
    for power in (1, 2, 5, 11, 24):
        bound = log_power_mean(count, mu, power)
        assert exact[power] * (1 - 1e-12) <= bound <= exact[power] + 0.5 * math.log(power) + 4.0


@pytest.mark.parametrize(("count", "mu"), SETTINGS)
def test_mass_and_mean_are_one_within_the_errors(count: int, mu: float) -> None:
    law = log_mean(count, mu)
    for power in (0.0, 1.0):
        weight = law.step * np.exp(power * law.points)
        outside = sum(math.exp(end) for end in law.log_outside(power))
        assert abs(float(weight @ law.density) - 1.0) <= float(weight @ law.error) + outside + 1e-15
        assert float(weight @ law.error) < 1e-11


def test_density_of_two_is_a_convolution() -> None:
    law = log_mean(2, 1.0)
    for j in range(0, len(law.points), 9):
        x, k = float(law.points[j]), math.exp(float(law.points[j]))

        def integrand(u, k=k):  # the first of the two is a share 1/(1 + e^-u) of their sum 2 k
            logs = [math.log(2.0 * k) - math.log1p(math.exp(side * u)) for side in (-1.0, 1.0)]
            return math.prod(math.exp(-0.5 * (v + 0.5) ** 2) for v in logs) / (2.0 * math.pi)

        exact = quad(integrand, -40.0, 40.0, points=[0.0], limit=400, epsabs=1e-14, epsrel=1e-13)[0]
        assert abs(law.density[j] - exact) <= law.error[j] + 2e-13 * max(exact, 1e-3), x


@pytest.mark.parametrize(("path", "inner"), [(6.0, 44.0), (44.0, 9.0)])
def test_a_coarse_path_or_transform_is_in_the_error(
    path: float, inner: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few nats for the one of them, many for the other: what is off is seen, and bounded."""
    k = np.exp(np.linspace(-0.8, 1.2, 9)).astype(np.longdouble)
    fine, _ = lognormal_mean._densities(12, 0.9, k, 0.42, 0.4)
    monkeypatch.setattr(lognormal_mean, "_NATS", path)

    def transform(mu, beyond, nats, *number):
        return Transform(mu, beyond, inner if nats == path else nats, *number)

    monkeypatch.setattr(lognormal_mean, "Transform", transform)
    found, error = lognormal_mean._densities(12, 0.9, k, 0.42, 0.4)
    assert np.all(np.abs(found - fine) <= error)
    assert np.max(np.abs(found - fine)) > 1e-12


def test_between_the_powers_zero_and_one_the_mean_lies_below_one() -> None:
    """Densities known badly: ln E S^(1/2) < 0 must stay within its bounds."""
    family = AllocationCumulant(AllocationPair(30, 0.7, "remove"), 1)
    truth = float(family.real(-0.5, 40.0)[0][0])
    law = family.law
    family.law = type(law)(law.count, law.mu, law.step, law.first, law.density, 1e-4 * law.density)
    value, error = (float(part[0]) for part in family.real(-0.5, 40.0))
    assert truth < 0.0 and abs(value - truth) <= error < 1e-3


@pytest.mark.parametrize("way", ["remove", "add"])
def test_cumulants_lie_within_their_errors(way: str) -> None:
    """Whole powers have a series."""
    count, mu = 30, 0.7
    family = AllocationCumulant(AllocationPair(count, mu, way), 3)  # type: ignore[arg-type]
    if way == "remove":
        exact = log_positive_moments(count, mu, 6)
        for power in (2, 4, 6):
            value, error = (float(part[0]) for part in family.real(power - 1.0, 40.0))
            assert abs(value - exact[power]) <= error + 1e-12
            assert error < 1e-3
    nodes = family.nodes(2.0, 10.0, 40.0)
    doubled = type(family.law)(
        *(getattr(family.law, n) for n in ("count", "mu", "step", "first", "density")),
        2.0 * family.law.error,
    )
    family.law = doubled
    assert family.nodes(2.0, 10.0, 40.0).fixed_error[0] > 1.5 * nodes.fixed_error[0] > 0.0


def test_aliases_and_decay_follow_the_normal_part() -> None:
    family = AllocationCumulant(AllocationPair(30, 0.7, "remove"), 1)
    spread = 0.7 / math.sqrt(30)
    at, y = family.nodes(1.0, 5.0 / spread, 40.0), 5.0 / spread
    x, error = at.transform(y, 2)
    bound = family.decay(1.0).bound(y)[0]
    assert abs(1.0 + complex(x[0, 1])) <= bound + error[0, 1]
    assert bound == pytest.approx(math.exp(-12.5), rel=1e-9)
    assert family._aliases(0.9 * 2.0 * math.pi / family.law.step) > 1e-3
    assert family._aliases(7.0 * math.pi / family.law.step) == math.inf


# ---- moments of the mean of lognormals, against product quadrature and closed forms
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
