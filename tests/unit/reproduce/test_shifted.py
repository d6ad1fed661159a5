"""Shifted divergences: by minimisation, by couplings, and the lemmas that are said of them."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.special import ndtr

from tightrope_reproduce.formulas.shifted import divergence, farthest, magnitude, nearest, shifted

POINTS = 5
RNG = np.random.default_rng(8)
LAWS = [(RNG.dirichlet(np.ones(POINTS)), RNG.dirichlet(np.ones(POINTS))) for _ in range(12)]
ORDERS = [1.5, 2.0, 8.0]


def _couplings(p: np.ndarray, other: np.ndarray, s: int) -> bool:
    """Whether some joint law of p and the other one moves nothing further than s (Lemma 7)."""
    n = len(p)
    rows = [np.arange(n * n) // n == i for i in range(n)]
    columns = [np.arange(n * n) % n == i for i in range(n)]
    bounds = [(0, None if abs(i - j) <= s else 0) for i, j in product(range(n), repeat=2)]
    ends = np.concatenate([p, other])
    return bool(linprog(np.zeros(n * n), A_eq=[*rows, *columns], b_eq=ends, bounds=bounds).success)


@pytest.mark.parametrize("laws", LAWS, ids=lambda _: "")
def test_the_distance_is_the_least_that_a_coupling_needs(laws) -> None:
    found = farthest(*laws)
    assert _couplings(*laws, found)
    assert found == 0 or not _couplings(*laws, found - 1)


def test_the_distance_of_laws_that_are_equal_or_moved() -> None:
    p = LAWS[0][0]
    assert farthest(p, p) == 0
    assert farthest(np.append(p, [0.0, 0.0]), np.append([0.0, 0.0], p)) == 2


@pytest.mark.parametrize("z", [0, 1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_the_nearest_law_is_the_best_of_all_that_lie_within_z(z: int, order: float) -> None:
    """Definition 8, by a minimisation over the cumulated law."""
    for p, q in LAWS:
        whole = np.cumsum(p)
        moved = np.concatenate([np.zeros(z), whole, np.ones(z)])
        ends = list(zip(moved[: POINTS - 1], moved[2 * z : 2 * z + POINTS - 1], strict=True))

        def cost(inner: np.ndarray, q: np.ndarray = q) -> float:
            masses = np.diff(np.concatenate([[0.0], inner, [1.0]]))
            return math.log((q * np.abs(masses / q) ** order).sum()) / (order - 1.0)

        steps = {"type": "ineq", "fun": lambda c: np.diff(np.concatenate([[0.0], c, [1.0]]))}
        start = whole[:-1]
        best = minimize(
            cost, start, bounds=ends, constraints=steps, method="SLSQP", options={"ftol": 1e-14}
        )
        assert shifted(p, q, z, order) == pytest.approx(best.fun, rel=1e-5, abs=1e-7)
        found = nearest(p, q, z)
        assert found is not None and farthest(p, found) <= z and found.sum() == pytest.approx(1.0)


def _gaussian(mean: float, cells: int = 1000, width: float = 0.01) -> np.ndarray:
    edges = (np.arange(cells + 1) - cells / 2) * width
    masses = np.diff(ndtr(edges - mean))
    return np.asarray(masses / masses.sum())


@pytest.mark.parametrize("order", [2.0, 4.0])
def test_gaussians_come_nearer_by_the_shift(order: float) -> None:
    """D_a^(z)(N(m, 1) || N(0, 1)) = a (m - z)^2/2."""
    for z in (0, 15, 60):
        found = shifted(_gaussian(0.4), _gaussian(0.0), z, order)
        assert found == pytest.approx(0.5 * order * max(0.4 - 0.01 * z, 0.0) ** 2, abs=3e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_more_shift_is_less_divergence_and_a_move_is_one_shift(order: float) -> None:
    """Proposition 9."""
    for p, q in LAWS:
        found = [shifted(p, q, z, order) for z in range(POINTS)]
        assert found[0] == pytest.approx(divergence(p, q, order))
        assert all(a >= b - 1e-12 for a, b in pairwise(found))
        assert found[-1] == pytest.approx(0.0, abs=1e-12)
        wide, other = np.append(p, [0.0, 0.0]), np.append(q, [0.1, 0.1]) / 1.2
        for move in (1, 2):
            assert (
                shifted(wide, other, move, order)
                <= divergence(np.roll(wide, move), other, order) + 1e-12
            )


@pytest.mark.parametrize("order", ORDERS)
def test_noise_pays_for_what_the_shift_is_reduced_by(order: float) -> None:
    """Lemma 20 with two-sided geometric noise, and that its R_a is that of the definition."""
    at = np.arange(-24, 25)
    noise = 0.5 ** np.abs(at)
    noise = noise / noise.sum()
    moved = [0.5 ** np.abs(at - move) for move in (1, 2)]
    direct = [
        math.log((m**order * 0.5 ** (np.abs(at) * (1.0 - order))).sum() / (0.5 ** np.abs(at)).sum())
        / (order - 1.0)
        for m in moved
    ]
    for a, truth in zip((1, 2), direct, strict=True):
        assert magnitude(noise, a, order) == pytest.approx(truth, rel=1e-6)
    for p, q in LAWS:
        after = np.convolve(p, noise), np.convolve(q, noise)
        for z, a in product(range(3), repeat=2):
            allowed = shifted(p, q, z + a, order) + magnitude(noise, a, order)
            assert shifted(*after, z, order) <= allowed + 1e-9


MAPS = {
    "projection": lambda x: np.clip(x, 1, 3),
    "mirror": lambda x: np.abs(x - 2),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["projection", "mirror", "identity"])
@pytest.mark.parametrize("apart", [0, 1])
def test_contractions_leave_no_more_than_they_found(order: float, name: str, apart: int) -> None:
    """Lemma 21: two contractions that differ by `apart` at most."""
    places = np.arange(POINTS)
    first, second = MAPS[name](places) + apart, MAPS[name](places)
    for p, q in LAWS:
        image = np.bincount(first, p, POINTS + 2), np.bincount(second, q, POINTS + 2)
        for z in range(3):
            assert shifted(*image, z + apart, order) <= shifted(p, q, z, order) + 1e-9


def test_where_the_other_law_has_no_mass_nothing_can_be_put() -> None:
    p, q = np.array([0.5, 0.0, 0.5]), np.array([0.0, 1.0, 0.0])
    assert shifted(p, q, 0, 2.0) == math.inf
    assert shifted(p, q, 1, 2.0) == pytest.approx(0.0)
    assert shifted(np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0]), 1, 2.0) == math.inf
