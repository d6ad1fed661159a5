"""Diffusions: the equations (7), (8) and that of Appendix D, as far as they are right."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope_reproduce.formulas.tracing import at_rest, density, drift_seen

THETA = np.linspace(-6.0, 6.0, 4001)
STEP = THETA[1] - THETA[0]
INNER = slice(20, -20)
STARTS, DRIFTS = np.array([-1.0, 0.4, 1.5]), np.array([0.8, -0.5, 2.0])
CHANCES, SIGMA, T = np.array([0.2, 0.5, 0.3]), 0.6, 0.7


def _slope(values: np.ndarray) -> np.ndarray:
    return np.gradient(values, STEP, axis=-1)


def _rate(t: float) -> np.ndarray:
    later, before = (density(THETA, t + h, STARTS, DRIFTS, SIGMA) for h in (1e-5, -1e-5))
    return (later - before) / 2e-5


def test_a_step_from_a_known_place_solves_its_equation() -> None:
    law = density(THETA, T, STARTS, DRIFTS, SIGMA)
    right = DRIFTS[:, None] * _slope(law) + SIGMA**2 * _slope(_slope(law))
    assert np.abs(_rate(T) - right)[:, INNER].max() < 1e-3
    assert law.sum(1) * STEP == pytest.approx(np.ones(3), rel=1e-6)


def test_over_all_starts_it_drifts_by_the_mean_of_those_that_are_likely() -> None:
    law = density(THETA, T, STARTS, DRIFTS, SIGMA)
    whole = CHANCES @ law
    right = _slope(whole * drift_seen(CHANCES, DRIFTS, law)) + SIGMA**2 * _slope(_slope(whole))
    assert np.abs(CHANCES @ _rate(T) - right)[INNER].max() < 1e-3
    blind = _slope(whole * (CHANCES @ DRIFTS)) + SIGMA**2 * _slope(_slope(whole))
    assert np.abs(CHANCES @ _rate(T) - blind)[INNER].max() > 0.05


@pytest.mark.parametrize("potential", [0.5 * THETA**2, 0.25 * THETA**4 - THETA**2 + 0.3 * THETA])
def test_the_law_at_rest_does_not_move(potential: np.ndarray) -> None:
    law = at_rest(THETA, potential, SIGMA)
    moved = _slope(law * _slope(potential)) + SIGMA**2 * _slope(_slope(law))
    assert np.abs(moved)[INNER].max() < 1e-3
    assert law.sum() * STEP == pytest.approx(1.0)
    # with the printed sign of the drift it would move
    assert np.abs(-_slope(law * _slope(potential)) + SIGMA**2 * _slope(_slope(law))).max() > 0.1
