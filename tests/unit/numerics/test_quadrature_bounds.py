"""Quadrature bounds hold, and are not absurdly loose, on integrals known in closed form."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from tightrope.numerics.quadrature import (
    dyadic_floor,
    dyadic_floors,
    expm1_minus,
    gauss_legendre,
    log_ellipse_error,
    log_strip_errors,
    log_sum_exp,
    widest_steps,
)


@pytest.mark.parametrize("x", [0.3, 1.0, 7.123, 1e-9, 5e11])
def test_dyadic_floor_is_below_and_its_multiples_are_exact(x: float) -> None:
    low = dyadic_floor(x)
    assert low <= x < low * (1 + 2.0**-8)
    assert all(float(k * mpmath.mpf(low)) == k * low for k in (3, 1001, 99991))


def test_strip_error_bounds_the_trapezoidal_error_of_a_gaussian() -> None:
    depths = np.linspace(0.5, 12.0, 24)[None, :]
    # |e^{-(x+id)^2/2}| = e^{d^2/2} e^{-x^2/2}
    logs = 0.5 * depths**2 + 0.5 * math.log(2 * math.pi)
    for nats in (8.0, 16.0, 24.0):
        step, depth, log_integral = widest_steps(depths, logs, np.array([nats]))
        x = float(step[0]) * np.arange(-400, 401)
        error = abs(float(step[0]) * float(np.sum(np.exp(-0.5 * x * x))) - math.sqrt(2 * math.pi))
        bound = math.exp(float(log_strip_errors(depth, log_integral, step)[0]))
        assert error <= bound <= math.exp(-nats)
        assert error > bound * 1e-3 or error < 1e-14


def test_row_wise_dyadic_floor_agrees_with_the_scalar_one() -> None:
    x = np.array([0.3, 1.0, 7.123, 1e-9, 5e11])
    assert dyadic_floors(x).tolist() == [dyadic_floor(v) for v in x.tolist()]


def test_ellipse_error_bounds_gauss_legendre_of_a_runge_function() -> None:
    exact = 2.0 * math.atan(2.0) / 2.0  # int 1/(1 + 4 x^2) over [-1, 1]
    radius = 1.5  # the poles +-i/2 lie at radius 1.618
    height = 0.5 * (radius - 1 / radius)
    log_bound = -math.log(1 - 4 * height * height)
    for count in (6, 12, 20):
        x, w = gauss_legendre(count)
        error = abs(float(w @ (1 / (1 + 4 * x * x))) - exact)
        assert error <= math.exp(log_ellipse_error(count, radius, log_bound, 1.0))


def test_expm1_minus_keeps_relative_accuracy() -> None:
    x = np.concatenate([-np.geomspace(1e-12, 600.0, 200), np.geomspace(1e-12, 600.0, 200)])
    with mpmath.workdps(50):
        truth = [float(mpmath.exp(v) - 1 - mpmath.mpf(v)) for v in x.tolist()]
    np.testing.assert_allclose(expm1_minus(x), truth, rtol=4e-15)


def test_log_sum_exp_of_nothing_is_minus_infinity() -> None:
    assert log_sum_exp(np.array([-np.inf, -np.inf])) == -np.inf
    assert log_sum_exp(np.array([1000.0, 1000.0])) == pytest.approx(1000.0 + math.log(2.0))


@pytest.mark.parametrize("count", [2, 16, 33])
def test_gauss_legendre_is_right_to_one_unit(count: int) -> None:
    nodes, weights = gauss_legendre(count)
    with mpmath.workdps(40):
        for x, w in zip(nodes.tolist(), weights.tolist(), strict=True):
            root = mpmath.findroot(lambda t: mpmath.legendre(count, t), mpmath.mpf(x))
            slope = mpmath.diff(lambda t: mpmath.legendre(count, t), root)
            truth = 2 / ((1 - root**2) * slope**2)
            assert abs(x - root) <= 2.0**-53
            assert abs(w / truth - 1) <= 2.0**-52
