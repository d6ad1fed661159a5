"""Misprints that the inventory lists are wrong as printed, and right as corrected."""

from __future__ import annotations

import csv
import math
from importlib.resources import files

import numpy as np
import pytest

from tightrope.guarantee import gaussian as profile
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.theorems.limits import clt_mu
from tightrope_reproduce.inventory import entries, page

TEXT = files("tightrope_reproduce").joinpath("misprints.csv").read_text()
MISPRINTS = list(csv.DictReader(TEXT.splitlines()))


@pytest.mark.parametrize("misprint", MISPRINTS, ids=lambda m: m["place"])
def test_each_misprint_is_complete_and_on_the_page(misprint: dict[str, str]) -> None:
    assert len(misprint) == 5 and all(misprint.values())
    assert misprint["paper"] in {entry.paper for entry in entries()}
    assert misprint["place"] in page()


def test_the_drift_pushes_against_the_gradient() -> None:
    """d theta = -theta dt + sqrt(2) sigma dW: the stationary N(0, sigma^2) solves the right one."""
    sigma = 0.7
    x = np.linspace(-3.0, 3.0, 6001)
    law = np.exp(-0.5 * (x / sigma) ** 2)  # e^(-F/sigma^2), F = theta^2/2
    diffusion = sigma**2 * np.gradient(np.gradient(law, x), x)
    drift = np.gradient(x * law, x)
    inner = slice(10, -10)
    assert np.abs(drift + diffusion)[inner].max() < 1e-4
    assert np.abs(-drift + diffusion)[inner].max() > 1.0


def test_epsilon_stands_outside_the_root() -> None:
    """Section III-A of the survey: at epsilon 0.1 the printed noise gives 187 times the delta."""
    epsilon, delta = 0.1, 1e-5
    printed = math.sqrt(2.0 * math.log(1.25 / delta) / epsilon)
    right = math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    assert profile.delta(epsilon, 1.0 / right) <= delta
    assert profile.delta(epsilon, 1.0 / printed) > 100.0 * delta


def test_the_limit_has_no_second_number_of_steps() -> None:
    """Theorem 5 as Appendix B.2 repeats it would grow with T at the same nu."""
    for steps in (100, 10_000):
        run = NoisySGD(PoissonSampling(0.5 / math.sqrt(steps)), 1.0, steps)
        right = 0.5 * math.sqrt(math.e - 1.0)
        assert clt_mu(run) == pytest.approx(right)


def test_strong_convexity_looks_from_one_point_to_the_other() -> None:
    """(14) of the survey as printed fails for theta^2/2, which is 1-strongly convex."""

    def loss(x: float) -> float:
        return x * x / 2

    for x in (-1.0, 0.5, 2.0):
        for y in (-3.0, 0.0, 1.0):
            right = loss(x) + x * (y - x) + 0.5 * (y - x) ** 2
            assert loss(y) >= right - 1e-12
    assert loss(0.0) < loss(1.0) + 1.0 * (1.0 - 0.0) + 0.5 * abs(0.0 - 1.0)  # as printed
