"""The convex minorant against slow, obvious code."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from tightrope.numerics import hull
from tightrope.numerics.hull import least_cost, least_cost_shifts, least_window_cost, minorant

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "hidden.json").read_text())


def columns(case):
    return [np.array(case["inputs"][key], float) for key in ("pushes", "factors", "scales")]


@pytest.mark.parametrize("case", [c for c in GOLDEN if c["name"] == "optimal_shift"])
def test_cost_is_the_golden_one(case):
    cost = least_cost(*columns(case), float(case["inputs"]["start"]))
    assert cost == pytest.approx(float(case["outputs"]["cost"]), rel=case["rtol"])


def distances(pushes, factors, shifts, start):
    z, seen = start, []
    for s, c, a in zip(pushes, factors, shifts, strict=True):
        z = c * z + s - a
        seen.append(z)
    return np.array(seen)


def random_problem(rng):
    steps = int(rng.integers(1, 9))
    pushes = rng.random(steps) * (rng.random(steps) < 0.6)
    return pushes, rng.uniform(0.2, 1.4, steps), rng.uniform(0.2, 2.0, steps), rng.random()


def by_slsqp(pushes, factors, scales, start):
    """The same minimum by a general-purpose solver."""

    def all_distances(shifts):
        return distances(pushes, factors, shifts, start)

    constraints = [{"type": "eq", "fun": lambda a: all_distances(a)[-1:]}]
    if len(pushes) > 1:
        constraints.append({"type": "ineq", "fun": lambda a: all_distances(a)[:-1]})
    first = pushes.copy()
    first[0] += factors[0] * start
    found = minimize(
        lambda a: np.sum((a / scales) ** 2),
        first,
        jac=lambda a: 2 * a / scales**2,
        bounds=[(0, None)] * len(pushes),
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    return found.fun


def test_minimum_agrees_with_slsqp():
    rng = np.random.default_rng(0)
    for _ in range(60):
        pushes, factors, scales, start = random_problem(rng)
        expected = by_slsqp(pushes, factors, scales, start)
        assert least_cost(pushes, factors, scales, start) == pytest.approx(expected, rel=1e-8)


def test_shifts_are_feasible_and_attain_the_cost():
    rng = np.random.default_rng(1)
    for _ in range(200):
        pushes, factors, scales, start = random_problem(rng)
        shifts = least_cost_shifts(pushes, factors, scales, start)
        z = distances(pushes, factors, shifts, start)
        assert z.min() > -1e-12
        assert abs(z[-1]) < 1e-12
        assert np.sum((shifts / scales) ** 2) == pytest.approx(
            least_cost(pushes, factors, scales, start), rel=1e-12
        )


def test_window_is_the_best_suffix():
    rng = np.random.default_rng(2)
    for _ in range(200):
        pushes, factors, scales, _ = random_problem(rng)
        diameter = rng.uniform(0.05, 3.0)
        costs = [
            least_cost(pushes[k:], factors[k:], scales[k:], diameter) for k in range(len(pushes))
        ]
        found = least_window_cost(pushes, factors, scales, diameter)
        assert found.cost == pytest.approx(min(costs), rel=1e-11)
        assert costs[len(pushes) - found.length] == pytest.approx(min(costs), rel=1e-11)


def test_window_of_sparse_and_of_equal_pushes():
    rng = np.random.default_rng(5)
    for factor in (1.0, 0.95, 1.02):
        for period in (1, 3, 7):
            pushes = np.zeros(60)
            pushes[int(rng.integers(period)) :: period] = 1.0
            factors, scales = np.full(60, factor), np.full(60, 2.0)
            for diameter in (0.1, 3.0, 40.0):
                costs = [
                    least_cost(pushes[k:], factors[k:], scales[k:], diameter) for k in range(60)
                ]
                found = least_window_cost(pushes, factors, scales, diameter)
                assert found.cost == pytest.approx(min(costs), rel=1e-10)


def test_passes_and_stack_agree(monkeypatch):
    rng = np.random.default_rng(3)
    problems = [
        (
            rng.random(500) * (rng.random(500) < 0.3),
            rng.uniform(0.5, 1.0, 500),
            rng.random(500) + 0.1,
        )
        for _ in range(10)
    ]
    vectorised = [least_cost(*problem) for problem in problems]
    monkeypatch.setattr(hull, "_PASSES", 0)
    assert vectorised == pytest.approx([least_cost(*problem) for problem in problems], rel=1e-12)


def test_long_contracting_sequences_neither_underflow_nor_overflow():
    steps = 20_000
    ones = np.ones(steps)
    assert least_cost(ones, 0.5 * ones, ones) == pytest.approx(3.0, rel=1e-12)
    # far below the smallest double in the coordinates of the textbook: only the first push counts
    once = np.append(1.0, np.zeros(steps - 1))
    fading = np.append(1.0, 0.0 * once[1:])
    assert least_cost(once, 0.5 * ones, fading) == 1.0
    assert least_cost(ones, 1.5 * ones, ones) == pytest.approx(steps, rel=1e-12)


def test_steps_without_noise():
    assert least_cost([1.0], [1.0], [0.0]) == math.inf
    assert least_cost([1.0, 0.0], [1.0, 1.0], [1.0, 0.0]) == 1.0
    assert least_cost([1.0, 0.0], [1.0, 0.5], [0.0, 2.0]) == pytest.approx(0.0625)
    assert least_cost([1.0, 1.0], [1.0, 1.0], [1.0, 0.0]) == math.inf


def test_a_constant_map_forgets_the_past():
    assert least_cost([5.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]) == pytest.approx(0.5)
    assert least_cost([5.0, 0.0], [1.0, 0.0], [1.0, 1.0]) == 0.0
    forgetful = least_window_cost([5.0, 1.0], [1.0, 0.0], [1.0, 1.0], 7.0)
    assert forgetful.cost == pytest.approx(1.0, rel=1e-11)


def test_nothing_to_absorb_costs_nothing():
    assert least_cost([0.0, 0.0], [1.0, 0.9], [1.0, 1.0]) == 0.0


def test_minorant_lies_below_its_points_and_gives_the_cost():
    rng = np.random.default_rng(4)
    for _ in range(50):
        problem = random_problem(rng)
        x, y, vertices = minorant(*problem)
        below = np.interp(x, x[vertices], y[vertices])
        assert np.all(below <= y * (1 + 1e-12))
        dx, dy = np.diff(x[vertices]), np.diff(y[vertices])
        assert np.sum(dy**2 / dx) == pytest.approx(least_cost(*problem), rel=1e-11)
