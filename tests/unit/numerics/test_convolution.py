"""Lattice measures: FFT powers against direct ones, bounds in the convex order, tail tables."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.errors import NotCertified
from tightrope.numerics.lattice import (
    LatticeMeasure,
    _convolved,
    convolve,
    fast_size,
    fitted,
    gathered,
    lowered,
    normalised,
)
from tightrope.numerics.lattice_sums import coarsened, compound, mixed
from tightrope.numerics.lattice_tail import TailLadder, shared_mass, tail_table


def _bump(size: int, step: float, rate: float, seed: int = 0) -> LatticeMeasure:
    """A smooth positive measure with a little roughness."""
    rng = np.random.default_rng(seed)
    i = np.arange(size)
    masses = np.exp(-0.5 * ((i - 0.5 * size) / (0.07 * size)) ** 2) * (1 + 0.01 * rng.random(size))
    return normalised(-0.3, step, masses, 0.2, rate, 0.0, 0.0)


def _call(x: np.ndarray, masses: np.ndarray, points: np.ndarray) -> np.ndarray:
    """sum of mass * (1 - e^{a - x})_+ by the definition."""
    gain = -np.expm1(np.minimum(points[:, None] - x[None, :], 0.0))
    return gain @ masses


def _masses(measure: LatticeMeasure) -> tuple[np.ndarray, np.ndarray]:
    x = measure.first + measure.step * np.arange(len(measure.weights))
    return x, measure.weights * np.exp(measure.log_scale - measure.rate * x)


def test_powers_agree_with_repeated_direct_convolution() -> None:
    one, two = _bump(40, 0.01, 2.0, 1), _bump(25, 0.01, 2.0, 2)
    result = convolve([(one, 3), (two, 2)], 512, (40.0, 40.0))
    direct = np.ones(1)
    for weights in (one.weights, one.weights, one.weights, two.weights, two.weights):
        direct = np.convolve(direct, weights)
    assert result.first == pytest.approx(3 * one.first + 2 * two.first)
    np.testing.assert_allclose(result.weights, direct, atol=result.uniform_error)
    assert result.uniform_error < 1e-12
    assert result.log_scale == pytest.approx(3 * one.log_scale + 2 * two.log_scale, abs=1e-14)


def test_a_window_that_is_too_small_says_so_in_its_error() -> None:
    measure = _bump(64, 0.05, 0.0)
    assert convolve([(measure, 8)], 64, (5.0, 5.0)).error > 1e-3
    assert convolve([(measure, 8)], 1024, (5.0, 5.0)).error < 1e-9


@pytest.mark.parametrize("tilt", [1e2, 1e8, 1e16, 1e24])
@pytest.mark.parametrize("decay", [0.1, 2.0, 100.0])
def test_the_error_covers_what_the_window_misses_however_steep_the_tilts(
    tilt: float, decay: float
) -> None:
    """A law at the end of its support; exponents of steep tilts are large, their difference not."""
    weights = np.exp(-decay * np.arange(199.0, -1.0, -1.0))
    measure = normalised(-1.0, 1e-3, weights, 0.0, 1e3, 0.0, 0.0)
    result = convolve([(measure, 3)], 64, (tilt, tilt))
    exact = np.convolve(np.convolve(measure.weights, measure.weights), measure.weights)
    start = round((result.first - 3 * measure.first) / 1e-3)
    inside = np.zeros(len(exact))
    inside[start : start + 64] = result.weights
    assert np.abs(inside - exact).sum() <= result.error + 64 * result.uniform_error + 1e-12
    if decay == 100.0 and tilt > 1e3:
        assert result.closed
        assert result.weights[-1] == pytest.approx(1.0, abs=1e-12)
        assert result.error < 1e-9


def test_errors_of_the_factors_compound() -> None:
    measure = normalised(0.0, 0.1, np.array([1.0, 2.0, 1.0]), 0.0, 1.0, 4e-9, 0.0)
    result = convolve([(measure, 100)], 1024, (3.0, 3.0))
    assert 1e-7 <= result.error <= 1.1e-7


@pytest.mark.parametrize("rate", [0.0, 3.0, 400.0])
def test_tail_table_is_the_sum_it_stands_for(rate: float) -> None:
    measure = _bump(300, 0.02, rate)
    points = np.linspace(-1.0, 6.0, 29)
    got, _ = tail_table(measure).log_call(points)
    x = [mp.mpf(measure.first + measure.step * i) for i in range(300)]
    for point, value in zip(points, got, strict=True):
        exact = mp.fsum(
            mp.mpf(w) * mp.exp(measure.log_scale - rate * p) * (1 - mp.exp(point - p))
            for p, w in zip(x, measure.weights, strict=True)
            if p > point
        )
        if exact == 0:
            assert value == -np.inf
        else:
            assert value == pytest.approx(float(mp.log(exact)), rel=1e-12, abs=1e-11)


def test_tail_error_covers_a_planted_error() -> None:
    measure = _bump(200, 0.02, 5.0)
    noise = 1e-9 * np.random.default_rng(3).uniform(-1, 1, 200)
    noisy = LatticeMeasure(
        measure.first, 0.02, measure.weights + noise, measure.log_scale, 5.0, 0.0, 1e-9
    )
    points = np.linspace(-0.5, 2.0, 11)
    true, _ = tail_table(measure).log_call(points)
    value, error = tail_table(noisy).log_call(points)
    assert np.all(np.abs(np.exp(value) - np.exp(true)) <= np.exp(error))


@pytest.mark.parametrize("rate", [0.0, 5.0, 300.0])
def test_tail_error_covers_a_planted_error_of_known_length(rate: float) -> None:
    """The worst error of a given Euclidean length lies along f itself: there the bound is tight."""
    step, point = 0.002, 0.1
    measure = _bump(2000, step, rate)
    x = np.maximum(measure.first + step * np.arange(2000) - point, 0.0)
    worst = np.exp(-rate * x) * -np.expm1(-x)
    length = 1e-9
    noisy = replace(
        measure,
        weights=measure.weights + length * worst / np.linalg.norm(worst),
        uniform_error=1.0,
        square_error=length,
    )
    true, _ = tail_table(measure).log_call(np.array([point]))
    value, error = tail_table(noisy).log_call(np.array([point]))
    planted = math.exp(value[0]) - math.exp(true[0])
    assert 0.0 < planted <= math.exp(error[0]) <= 3.0 * planted


@pytest.mark.parametrize("count", [1, 40, 10**7])
def test_square_error_is_a_bound_on_the_rounding_of_powers(count: int) -> None:
    """Against the binomial law in forty digits."""
    share = 0.4 if count < 100 else 3e-6
    measure = LatticeMeasure(0.0, 1.0, np.array([1.0 - share, share]), 0.0, 0.0)
    result = convolve([(measure, count)], 128, (1.0, 1.0))
    start = round(result.first)
    places = start + np.arange(len(result.weights))
    with mp.workdps(40):
        miss, hit = (mp.mpf(float(weight)) for weight in measure.weights)
        exact = [
            float(mp.binomial(count, k) * hit**k * miss ** (count - k)) for k in places.tolist()
        ]
    off = np.abs(result.weights - exact)
    assert result.error < 1e-14
    assert 0.0 < np.linalg.norm(off) <= result.square_error
    assert result.square_error < 5.0 * result.uniform_error  # 128 weights: a root of it is 11


def test_tail_error_next_to_the_last_point_covers_a_moved_lattice() -> None:
    """There the value is the distance to the last point, and moving it is not a relative error."""
    moved = 1e-13
    here = LatticeMeasure(0.0, 0.01, np.array([0.2, 0.8]), 0.0, 1e3, slip=moved)
    there = LatticeMeasure(moved, 0.01, here.weights, 0.0, 1e3)
    points = 0.01 - np.array([1e-2, 1e-4, 1e-8, 1e-12, 1e-13, 0.0])
    value, error = tail_table(here).log_call(points)
    true, _ = tail_table(there).log_call(points)
    assert np.all(np.abs(np.exp(value) - np.exp(true)) <= np.exp(error) + 1e-17)
    assert np.all(np.exp(error) <= 1.1 * moved * np.exp(-1e3 * points))


@pytest.mark.parametrize("side", ["upper", "lower"])
@pytest.mark.parametrize("rate", [0.0, 2.0, 8.0])
def test_coarsening_bounds_the_call_function_on_its_side(side: str, rate: float) -> None:
    measure = _bump(400, 0.002, rate)
    points = np.linspace(-0.5, 0.6, 301)
    true = _call(*_masses(measure), points)
    errors = []
    for factor in (4, 8):
        coarse = coarsened(measure, factor, side)  # type: ignore[arg-type]
        above = _call(*_masses(coarse), points) - true
        above = above if side == "upper" else -above
        stated = coarse.error * math.exp(coarse.log_scale - rate * coarse.first)
        assert np.all(above >= -1e-12 * true.max() - stated)
        assert coarse.error < 1e-10
        errors.append(above.max())
    assert 2.5 < errors[1] / errors[0] < 6.0  # second order in the step


@settings(max_examples=60, deadline=None)
@given(
    mu=st.floats(0.05, 4.0),
    start=st.floats(-5.0, 4.0),
    width=st.floats(0.05, 3.0),
    cells=st.integers(3, 60),
)
def test_shared_mass_keeps_mass_and_mean(mu: float, start: float, width: float, cells: int) -> None:
    edges = np.linspace(start, start + width, cells + 1)
    left, right = shared_mass(edges, mu, np.zeros(cells))
    mass = mp.quad(mp.npdf, [start, start + width])
    mean = mp.quad(lambda s: mp.npdf(s) * mp.exp(mu * s), [start, start + width])
    assert float(left.sum() + right.sum()) == pytest.approx(float(mass), rel=1e-12)
    r = np.exp(mu * edges)
    assert float(left @ r[:-1] + right @ r[1:]) == pytest.approx(float(mean), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(steepness=st.floats(-3.0, 3.0), cells=st.integers(4, 40), seed=st.integers(0, 10**6))
def test_lowered_masses_stay_below_for_any_shares(steepness: float, cells: int, seed: int) -> None:
    """Two atoms in each cell, anywhere: the lower measure has the smaller call function."""
    step, rng = 0.1, np.random.default_rng(seed)
    base = np.exp(steepness * np.arange(cells))
    at = np.sort(rng.uniform(0.05, 0.95, (cells, 2)), axis=1) * step
    share = np.expm1(at) / math.expm1(step)
    left, right = base * (1 - share).sum(axis=1), base * share.sum(axis=1)
    free = left * right / (left + right)
    low, clipped = lowered(left, right, free, step, 0.0, 0.0)
    r = np.exp(step * np.arange(-1, cells + 1))
    atoms = np.exp(step * np.arange(cells)[:, None] + at).ravel()
    masses = np.repeat(base, 2)
    for strike in np.linspace(r[0], r[-1], 97):
        true = float(np.maximum(atoms - strike, 0.0) @ masses)
        bound = float(np.maximum(r - strike, 0.0) @ low)
        assert bound <= true * (1 + 1e-12) + clipped * r[-1] + 1e-12 * base.max()
    assert np.all(low >= 0.0)


@pytest.mark.parametrize("mu", [0.05, 3.0])
@pytest.mark.parametrize("extra", [0.0, 0.5, math.inf])
def test_a_first_cell_that_begins_further_left_keeps_its_mean_too(mu: float, extra: float) -> None:
    edges = np.array([-1.0, -0.4, 0.3])
    left, right = shared_mass(np.append(edges[0] - extra, edges[1:]), mu, np.zeros(2), edges[0])
    mean = mp.quad(lambda s: mp.npdf(s) * mp.exp(mu * s), [-1.0, -0.4])
    ends = math.exp(mu * (edges[0] - extra)), math.exp(mu * edges[1])
    assert left[0] * ends[0] + right[0] * ends[1] == pytest.approx(float(mean), rel=1e-12)


def test_gathered_moves_each_share_to_its_end() -> None:
    masses = gathered(np.array([1.0, 2.0]), np.array([3.0, 4.0]), math.log(2.0))
    np.testing.assert_allclose(masses, [1.0, 8.0, 8.0])


@pytest.mark.parametrize("seed", range(40))
def test_powers_read_off_a_table_are_within_their_error(seed: int) -> None:
    """Random laws, tilts, windows and points next to the last one, against fifty digits."""
    rng = np.random.default_rng(seed)
    step, size, count = 10 ** rng.uniform(-6, 0), int(rng.integers(2, 12)), int(rng.integers(1, 9))
    rate = rng.choice([0.0, 0.01, 0.3, 1.0]) * 10 ** rng.uniform(-2, 2) / step
    masses = np.exp(rng.normal(size=size) * rng.choice([1, 5, 20]))
    one = normalised(rng.normal(), step, masses, 10 * rng.normal(), rate, 0.0, 0.0)
    tilts = tuple(10 ** rng.uniform(-1, 3, 2) / (step * size))
    result = convolve([(one, count)], 1 << int(rng.integers(4, 8)), tilts)  # type: ignore[arg-type]
    length = count * (size - 1) * step
    points = count * one.first + length * (1.0 - np.append(10 ** rng.uniform(-14, 0, 4), 0.3))
    values, errors = tail_table(result).log_call(points)
    with mp.workdps(50):
        law = [mp.mpf(1)]
        for _ in range(count):
            law = [
                mp.fsum(law[i - j] * one.weights[j] for j in range(size) if 0 <= i - j < len(law))
                for i in range(len(law) + size - 1)
            ]
        x = [count * mp.mpf(one.first) + i * mp.mpf(step) for i in range(len(law))]
        for point, value, error in zip(points, values, errors, strict=True):
            exact = mp.fsum(
                w * mp.exp(count * mp.mpf(one.log_scale) - rate * p) * (1 - mp.exp(point - p))
                for p, w in zip(x, law, strict=True)
                if p > point
            )
            assert abs(mp.exp(value) - exact) <= mp.exp(error) + 1e-12 * mp.exp(value)


@pytest.mark.parametrize("count", [40, 1000, 10**9])
@pytest.mark.parametrize("expected", [0.2, 4.0])
def test_compound_sums_agree_with_the_sum_over_their_number(count: int, expected: float) -> None:
    log_mass = math.log(expected / count / 8.0)
    jump = normalised(0.3, 0.1, np.array([5.0, 2.0, 1.0]), log_mass, 1.5, 0.0, 0.0)
    result = compound(jump, count, 1024)
    exact, power = np.zeros(1024), np.ones(1)
    with mp.workdps(40):
        one = mp.exp(mp.mpf(jump.log_scale))
        for k in range(41):
            share = float(mp.binomial(count, k) * one**k / (1 + one) ** count)
            exact[3 * k : 3 * k + len(power)] += share * power
            power = np.convolve(power, jump.weights)
    off = np.abs(result.weights - exact)
    assert off.sum() <= result.error + 1024 * result.uniform_error
    assert np.linalg.norm(off) <= result.error + result.square_error
    assert result.error < 1e-11
    assert result.uniform_error < 1e-13


def test_compound_sums_of_terms_that_are_not_rare_state_no_accuracy() -> None:
    jump = normalised(0.3, 0.1, np.array([5.0, 2.0, 1.0]), 0.0, 1.5, 0.0, 0.0)
    assert compound(jump, 3, 1024).uniform_error > 1.0


def test_a_window_grows_until_it_holds_what_it_should() -> None:
    measure = _bump(64, 0.05, 0.0)
    small = fitted([(measure, 300)], 0.1, (60.0, 60.0), 1.0, 1 << 14)
    grown = fitted([(measure, 300)], 6.0, (8.0, 8.0), 1e-12, 1 << 14)
    assert len(small.weights) == 4096
    assert grown.error < 1e-9
    assert [fast_size(n) for n in (16, 17, 24, 25, 33)] == [16, 24, 24, 32, 48]


def test_mixtures_are_sums_on_one_lattice() -> None:
    one, two = (
        _bump(40, 0.01, 2.0, 1),
        replace(_bump(25, 0.01, 2.0, 2), first=-0.25, log_scale=-3.0),
    )
    log_left_out = math.log(1e-9) + one.log_scale
    both = mixed([(one, 0.0), (two, math.log(7.0))], log_left_out)
    points = np.linspace(-0.4, 0.2, 25)
    true = _call(*_masses(one), points) + 7.0 * _call(*_masses(two), points)
    np.testing.assert_allclose(_call(*_masses(both), points), true, rtol=1e-11, atol=1e-15)
    assert 0.9e-9 < both.error < 1.1e-9
    assert mixed([(one, 0.0)], one.log_scale + 800.0).error == math.inf


def test_errors_too_large_for_a_double_leave_nothing() -> None:
    """A bound of e^700 in place of e^2000 once proved deltas of e^-80."""
    one = replace(_bump(40, 0.01, 2.0, 1), error=20.0)
    many = convolve([(one, 100)], 4096, (1.0, 1.0))
    assert many.error == math.inf
    _, log_error = tail_table(many).log_call(np.array([0.0, 1e3]))
    assert (log_error > 1e200).all()
    assert compound(one, 10_000, 4096).error == math.inf


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_a_coarse_lattice_contains_the_anchor(side: str) -> None:
    measure = _bump(400, 0.002, 2.0)
    for shift in range(4):
        coarse = coarsened(measure, 4, side, measure.first + shift * 0.002)  # type: ignore[arg-type]
        place = (coarse.first - measure.first - shift * 0.002) / 0.008
        assert place == pytest.approx(round(place), abs=1e-9)


def test_only_mass_between_two_points_is_shared() -> None:
    edges, mu = np.array([-1.0, -0.4, 0.3, 0.9]), 1.3
    left, right = shared_mass(edges, mu, np.zeros(3), -0.7, 0.5)
    r = np.exp(mu * edges)
    mean = mp.quad(lambda s: mp.npdf(s) * mp.exp(mu * s), [-0.7, 0.5])
    assert left.sum() + right.sum() == pytest.approx(
        float(mp.quad(mp.npdf, [-0.7, 0.5])), rel=1e-13
    )
    assert left @ r[:-1] + right @ r[1:] == pytest.approx(float(mean), rel=1e-13)


def test_a_ladder_answers_as_its_tables_do() -> None:
    masses = np.exp(-0.5 * ((np.arange(600) - 200) / 30.0) ** 2)
    x = 0.01 * np.arange(600) - 2.0
    ladder, tables = TailLadder(), []
    for rate in (0.0, 5.0, 12.0):
        measure = normalised(-2.0, 0.01, masses * np.exp(rate * x), 0.0, rate, 1e-12, 0.0)
        tables.append(tail_table(measure))
        ladder.add(tables[-1])
    points = np.linspace(-2.5, 3.9, 200)
    value, error = ladder.log_call(points)
    best = np.min([table.log_error(points) for table in tables], axis=0)
    np.testing.assert_allclose(value, tables[0].log_call(points)[0], rtol=1e-9)
    np.testing.assert_allclose(error, best, atol=0.1)
    assert sum(len(table.mass) for table in ladder.tables) < 620


def test_cells_far_too_wide_are_refused_before_they_are_laid_out() -> None:
    """Noise of 1e5 asked for 32 GiB."""
    with pytest.raises(NotCertified, match="panels"):
        shared_mass(np.array([-1e6, 0.0, 1e6]), 1e-5, np.zeros(2))


@pytest.mark.parametrize("mu", [1e-3, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("end", [-30.0, -9.0, -1.2, 0.4, 6.0])
@pytest.mark.parametrize("beyond", [0.0, 0.7])
def test_a_cell_without_beginning_is_shared_exactly(mu: float, end: float, beyond: float) -> None:
    """e^{mu (s - end)} of its mass goes to the right; `beyond`: the mass ends before the cell."""
    edges, high = np.array([-math.inf, end, end + 1e-3]), end - beyond
    left, right = shared_mass(edges, mu, np.array([0.25, 0.0]), high=high)
    with mp.workdps(40):
        mass = mp.exp(mp.mpf(0.25)) * mp.ncdf(high)
        shift = mp.exp(mp.mpf(mu) ** 2 / 2 - mp.mpf(mu) * mp.mpf(end))
        share = mp.exp(mp.mpf(0.25)) * shift * mp.ncdf(mp.mpf(high) - mu)
        size = 4e-16 * (20 + end * end + mu * mu)
        assert abs(right[0] - share) <= size * share
        assert abs(left[0] - (mass - share)) <= size * mass
    assert right[0] >= 0.0 and left[0] >= 0.0


def test_a_part_of_a_table_answers_where_the_points_of_its_lattice_are_one_double() -> None:
    first, step = -2e-3, 2.0**-65  # below the distance of doubles there
    table = tail_table(normalised(first, step, np.ones(23), 0.0, 1.0, 0.0, 0.0))
    points = np.array([first, first + 4e-19, -1e-3, 0.0])
    whole, part = table.log_call(points)[0], table.between(-math.inf, 0.0).log_call(points)[0]
    assert np.array_equal(whole, part)


# ---- terms of the lattice's error that stand alone: moments, sums of weights, what wraps around
def geometric(count: int, ratio: float, **changed: float) -> LatticeMeasure:
    weights = ratio ** np.arange(count, dtype=np.float64)
    return LatticeMeasure(0.0, 0.1, weights / weights.sum(), 0.0, 0.0, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [-3.0, -0.01, 0.5, 40.0, 2000.0])
@pytest.mark.parametrize(("count", "ratio"), [(60, 0.7), (256, 0.99), (300, 1.01), (700, 0.99)])
def test_moments_are_bounded_from_above(change: float, count: int, ratio: float) -> None:
    """Also where the sum is taken in rows of 256, with mass in what is left of the last one."""
    measure = geometric(count, ratio)
    logs = np.log(measure.weights) + change * 0.1 * np.arange(count)
    top = float(logs.max())
    truth = top + math.log(math.fsum(np.exp(logs - top)))
    assert truth <= measure.log_moment(change) <= truth + 1e-9 * (1 + abs(truth))


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_an_error_of_the_sum_of_weights_counts_at_the_worst_place(rate: float) -> None:
    """e of weight at the point where e^{-cx} (1 - e^-x) is largest."""
    e = 1e-4
    weights = np.full(200, 1.0 / 200)
    measure = LatticeMeasure(-5.0, 0.1, weights, 0.0, rate, e)
    for a in (-3.0, 0.0, 4.0):
        x = np.arange(0.0, 9.0, 1e-3)
        worst = float(np.max(np.exp(-rate * x) * -np.expm1(-x))) * math.exp(-rate * a)
        found = float(tail_table(measure).log_error(np.array([a]))[0])
        assert math.log(e * worst) <= found <= math.log(1.05 * e * worst)


def test_what_wraps_around_a_compound_sum_is_in_its_error() -> None:
    """A window that holds one term and not two."""
    weights = np.full(20, 0.05)
    measure = LatticeMeasure(1.0, 0.1, weights, math.log(1e-3), 0.0)
    count, size = 300, 48
    law = compound(measure, count, size)
    mass = 1e-3
    share = 1.0 - (1.0 + mass) ** -count  # some term
    two = 1.0 - (1.0 + mass) ** -count * (1.0 + count * mass)
    assert two < share
    sums, beyond = np.ones(1), 0.0
    for k in range(1, 12):
        sums = np.convolve(sums, weights)
        first = 10 * k
        outside = float(sums[max(size - first, 0) :].sum())
        beyond += math.comb(count, k) * mass**k * outside
    beyond /= (1.0 + mass) ** count
    assert beyond <= law.error


def test_mass_outside_of_a_window_counts_twice() -> None:
    """It is missing where it belongs and too much where it wraps to."""
    measure = geometric(40, 0.8)
    factors = [(measure, 12)]
    small, whole = (convolve(factors, size, (2.0, 2.0)) for size in (96, 512))
    start = round((small.first - whole.first) / 0.1)
    inside = whole.weights[start : start + 96]
    wrong = float(np.abs(small.weights - inside).sum()) + 1.0 - float(inside.sum())
    assert 1e-6 < wrong <= small.error
    outside = 1.0 - float(inside.sum())  # known exactly, and not only bounded
    assert wrong <= _convolved(factors, 96, (start, outside)).error <= 1.1 * wrong


@pytest.mark.parametrize("place", [13, 35, 57])
def test_a_coarser_lattice_enlarges_an_error_with_its_tilt(place: int) -> None:
    """Weight that is wrong at one point comes to the ends of its cell, the right one tilted."""
    e, weights = 1e-3, np.full(100, 0.01)
    plain, wrong = (
        LatticeMeasure(0.0, 0.01, weights + e * (np.arange(100) == at), 0.0, 30.0, error)
        for at, error in ((-1, e), (place, 0.0))
    )
    found, moved = (coarsened(m, 10, "upper") for m in (plain, wrong))
    here, there = (m.weights * math.exp(m.log_scale) for m in (found, moved))
    gap = float(np.abs(here - there).sum())
    assert e < gap <= found.error * math.exp(found.log_scale)
