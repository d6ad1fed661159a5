"""Jumps and sharply cut losses: windows, panels, the split transform, the hard regime."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.special import gammainc, gammaincc, ndtr

from tightrope.errors import NotCertified
from tightrope.guarantee.loss import contour, contour_inverse, contour_ways
from tightrope.guarantee.loss.contour_line import certified_value
from tightrope.guarantee.loss.contour_split import Jumps
from tightrope.guarantee.loss.cumulant_part import PartCumulant
from tightrope.guarantee.loss.cumulant_sampled import SampledCumulant
from tightrope.guarantee.loss.cumulant_window import ORDER, Window, shares
from tightrope.guarantee.loss.gaussian import log_ratio, point_of_log_ratio
from tightrope.guarantee.loss.pair import GaussianPair, SampledGaussianPair
from tightrope.numerics.inversion_kernel import EXCESS
from tightrope.numerics.inversion_law import Wanted

RATE, MU = 1e-4, 1.3
PAIR = SampledGaussianPair(RATE, MU)
LOG_START, LOG_END = np.array([[math.log(2e-3)]]), np.array([[math.log(0.05)]])


def slow_mass(w: complex, low: float, high: float, window: Window | None = None) -> mpmath.mpc:
    """int phi r^w share on [low, high] by brute force."""

    def share(b: mpmath.mpf) -> mpmath.mpf:
        total = mpmath.mpf(1)
        if window is not None and window.log_start is not None:
            x = ORDER * b / mpmath.exp(window.log_start[0, 0])
            total *= mpmath.gammainc(ORDER, 0, x, regularized=True)
        if window is not None and window.log_end is not None:
            x = ORDER * b / mpmath.exp(window.log_end[0, 0])
            total *= mpmath.gammainc(ORDER, x, mpmath.inf, regularized=True)
        return total

    def integrand(s: mpmath.mpf) -> mpmath.mpc:
        b = RATE * mpmath.exp(MU * s - mpmath.mpf(MU) ** 2 / 2)
        return mpmath.npdf(s) * mpmath.exp(w * mpmath.log(1 - RATE + b)) * share(b)

    return mpmath.quad(integrand, list(np.linspace(low, high, 30)))


def test_shares_are_the_incomplete_gamma_functions() -> None:
    x = np.array([1e-3, 0.5, 5.0, 20.0, 35.9, 36.0, 36.1, 60.0, 150.0, 599.0])
    log_q, log_p = shares(x)
    np.testing.assert_allclose(np.exp(log_q), gammaincc(ORDER, x), rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_p), gammainc(ORDER, x), rtol=1e-12)


def test_modulus_of_a_window_in_the_plane_is_bounded() -> None:
    window = Window(LOG_START, LOG_END)
    log_b = np.linspace(math.log(2e-4), math.log(0.3), 120)[None, :]
    for theta in (0.05, 0.5, 1.0):
        bound = window.log_cells(log_b, np.array([[[theta]]]))[0, 0]
        for cell in range(0, 119, 9):
            for point in (log_b[0, cell], log_b[0, cell + 1]):
                b = mpmath.exp(point + 1j * theta)
                rising = mpmath.gammainc(
                    ORDER, 0, ORDER * b / mpmath.exp(LOG_START[0, 0]), regularized=True
                )
                x = ORDER * b / mpmath.exp(LOG_END[0, 0])
                falling = mpmath.exp(-x) * mpmath.fsum(
                    x**k / mpmath.factorial(k) for k in range(ORDER)
                )
                assert float(mpmath.log(abs(rising * falling))) <= bound[cell] + 1e-9


@pytest.mark.parametrize("tilt", [0.0, 40.0])
@pytest.mark.parametrize("frequency", [0.0, 900.0])
def test_jumps_and_cut_laws_enclose_a_slow_integral(tilt: float, frequency: float) -> None:
    end = 7.0
    laws = [
        (PartCumulant([PAIR], [1], np.array([end]), LOG_START), Window(LOG_START), end),
        (PartCumulant([PAIR], [1], np.array([end])), None, end),
        (SampledCumulant([PAIR], [1], Window(log_end=LOG_END)), Window(log_end=LOG_END), 9.0),
    ]
    for law, window, last in laws:
        nodes = law.nodes(tilt, frequency, 34.0)
        with mpmath.workdps(20):
            truth = slow_mass(1 + tilt + 1j * frequency, -9.0, last, window)
        x, error = nodes.transform(max(frequency, 1.0), 2 if frequency else 1)
        value = (1.0 + x[0, -1]) * np.exp(1j * frequency * nodes.centre[0] + nodes.log_mass[0])
        size = math.exp(nodes.log_mass[0])
        allowed = size * (error[0, -1] + nodes.log_mass_error[0] + 1e-13)
        assert abs(complex(truth) - value) <= allowed
        assert allowed < 1e-9 * size


def test_the_shifted_path_bounds_the_transform_of_jumps() -> None:
    law = PartCumulant([PAIR], [1], np.array([8.0]), LOG_START)
    bound = law.shifted(5.0)
    nodes = law.nodes(5.0, 12000.0, 34.0)
    x, _ = nodes.transform(200.0, 60)
    sizes = np.abs(1.0 + x[0])
    bounds = np.array([bound(200.0 * n)[0] for n in range(1, 60)])
    assert np.all(sizes[1:] <= bounds)
    assert np.all(np.diff(bounds) <= 0.0)
    assert bounds[-1] < 1e-2


def test_parts_of_a_law_add_up_to_the_whole() -> None:
    end = np.array([9.0])
    bulk = SampledCumulant([PAIR], [1], Window(log_end=LOG_START))
    jump = PartCumulant([PAIR], [1], end, LOG_START)
    cut = PartCumulant([PAIR], [1], end)
    for tilt in (0.0, 5.0, 60.0):
        together = np.logaddexp(bulk.real(tilt, 36.0)[0], jump.real(tilt, 36.0)[0])
        assert together[0] == pytest.approx(cut.real(tilt, 36.0)[0][0], abs=1e-12)


def test_the_rest_law_decays_as_it_says_and_knows_its_moments() -> None:
    law, _ = Jumps(((PAIR, 300),), math.log(1e-9), 1e-6).at(0.05)
    tilt, h = 40.0, 1e-3
    values = law.values(np.array([tilt - h, tilt, tilt + h]))
    k, mean, variance = law.moments(tilt)
    assert values[1] == pytest.approx(k, abs=1e-10)
    assert (values[2] - values[0]) / (2 * h) == pytest.approx(mean, rel=1e-5)
    assert (values[2] - 2 * values[1] + values[0]) / h**2 == pytest.approx(variance, rel=1e-3)
    line = law.on_line(tilt)
    at = line.sample(Wanted(20.0, 60, 40.0, (30.0,), 20.0))
    y = 20.0 * np.arange(1, 60)
    assert np.all(np.abs(at.amplitude[1:]) <= np.exp(line.log_decay(y)) * (1 + 1e-9))
    assert at.log_mass == pytest.approx(k, abs=1e-9)
    assert abs(at.real[0][0] - law.values(np.array([30.0]))[0]) <= at.real[0][1] + 1e-9
    assert abs(at.amplitude[0] - 1.0) < 1e-9
    assert np.max(at.error) < 1e-8


def one_step_delta(epsilon: np.ndarray, rate: float, mu: float) -> np.ndarray:
    """delta of one sampled release, theory D: q Phi(mu - s) - (e^eps - 1 + q) Phi(-s)."""
    kappa = np.expm1(epsilon) + rate
    safe = np.maximum(kappa, 1e-300)
    s = (np.log(safe / rate) + 0.5 * mu * mu) / mu
    inside = rate * ndtr(mu - s) - safe * ndtr(-s)
    return np.where(kappa > 0.0, inside, -np.expm1(epsilon))


@pytest.mark.parametrize("epsilon", [0.4, 3.0, 16.0])
def test_two_steps_against_one_integral_of_the_closed_form(epsilon: float) -> None:
    rate, mu = 0.05, 1 / 0.3
    # one step's delta bends sharply where e^eps/r = 1 - q: panels halve on the way there
    corner = float(point_of_log_ratio(epsilon - math.log1p(-rate), rate, mu))
    near = 2.0 ** -np.arange(60.0)
    edges = np.unique(np.concatenate([np.linspace(-10, 17, 109), corner - near, corner + near]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = 0.5 * np.diff(edges)[:, None]
    s = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes
    losses = log_ratio(s, rate, mu)
    density = np.exp(losses - 0.5 * s * s) / math.sqrt(2 * math.pi)
    truth = float(np.sum(half * weights * density * one_step_delta(epsilon - losses, rate, mu)))
    found = contour.log_delta(((SampledGaussianPair(rate, mu), 2),), epsilon)
    assert found.lower - 1e-10 <= math.log(truth) <= found.upper + 1e-10
    assert found.width <= 1e-6


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta", "truth"),
    [  # truths: intervals of the lattice, which shares no code with the contour
        (1e-5, 0.5, 10**4, 1e-8, (0.91014, 0.91017)),
        (1e-3, 0.6, 100, 1e-6, (1.38805, 1.38814)),
        (1e-6, 1.0, 1000, 1e-9, (1.87352e-4, 1.87354e-4)),
        (0.05, 0.3, 2, 1e-5, (16.8945, 16.8950)),
    ],
)
def test_hard_regime(
    rate: float, noise: float, steps: int, delta: float, truth: tuple[float, float]
) -> None:
    parts = ((SampledGaussianPair(rate, 1 / noise), steps),)
    found = contour.epsilon(parts, delta)
    assert truth[0] <= found.lower <= found.upper <= truth[1]
    assert found.relative_width <= 1e-6
    assert contour.log_delta(parts, found.upper).lower <= math.log(delta)
    assert contour.log_delta(parts, found.lower).upper >= math.log(delta)


@pytest.mark.parametrize("steps", [2, 5, 10])
def test_order_of_the_ways_does_not_matter(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    parts = ((SampledGaussianPair(0.01, 1.0), steps),)
    found, delta = contour.epsilon(parts, 1e-5), contour.log_delta(parts, 0.3)
    monkeypatch.setattr(contour_ways, "_FEW", 0)
    other = contour.epsilon(parts, 1e-5)
    assert max(found.lower, other.lower) <= min(found.upper, other.upper)
    assert max(found.relative_width, other.relative_width) <= 1e-6
    again = contour.log_delta(parts, 0.3)
    assert max(delta.lower, again.lower) <= min(delta.upper, again.upper)


@pytest.mark.parametrize(("rate", "mu", "steps"), [(1e-3, 0.2, 3), (0.01, 1.0, 10), (0.5, 9.0, 4)])
def test_search_for_one_step_starts_near(rate: float, mu: float, steps: int) -> None:
    parts, target = ((SampledGaussianPair(rate, mu), steps),), math.log(1e-5)
    start = contour_inverse._one_step_epsilon(parts, target)
    assert contour_ways.one_step(parts, 1.05 * start) < target
    assert contour_ways.one_step(parts, 0.95 * start) > target


@pytest.mark.parametrize("tilt", [1.0, 30.0])
@pytest.mark.parametrize("frequency", [0.0, 40.0, 900.0])
def test_foreseen_points_are_not_more_than_come(tilt: float, frequency: float) -> None:
    pairs = [SampledGaussianPair(0.01, 1.0), SampledGaussianPair(0.2, 0.3)]
    parts = PartCumulant(pairs, [2, 3], np.array([6.0, 6.0])), SampledCumulant(pairs, [2, 3])
    for part in parts:
        came = part.nodes(tilt, frequency, 30.0).size
        assert part.fewest_points(tilt, frequency) <= came
        if frequency == 900.0:
            assert part.fewest_points(tilt, frequency) > 0.02 * came


def test_jumps_beside_other_releases() -> None:
    parts = ((SampledGaussianPair(1e-5, 2.0), 1000), (SampledGaussianPair(2e-5, 1.8), 500))
    law, missing = Jumps(parts, math.log(1e-8), 1e-6).at(0.5)
    both = certified_value(law, EXCESS, 0.5, 1e-6, tolerance=1e-9)
    one = certified_value(
        Jumps(parts[:1], math.log(1e-8), 1e-6).at(0.5)[0], EXCESS, 0.5, 1e-6, tolerance=1e-9
    )
    assert both.lower > one.upper  # more releases lose more
    assert missing < both.lower - 10.0
    noisy = contour.log_delta((*parts, (GaussianPair(0.01), 1)), 0.5)
    assert noisy.lower > both.lower - 1e-3


def test_nothing_to_split_is_refused_with_a_next_step() -> None:
    with pytest.raises(NotCertified, match="lattice"):
        Jumps(((GaussianPair(1.0), 1),), -20.0, 1e-6).at(1.0)
    with pytest.raises(NotCertified, match="lattice"):
        Jumps(((GaussianPair(1.0), 1),), -20.0, 1e-6).none()


def test_jumps_of_very_many_kinds_are_refused() -> None:
    many = tuple((SampledGaussianPair(1e-6, 1.0 + 1e-3 * k), 1) for k in range(33))
    with pytest.raises(NotCertified, match="at most 32 kinds"):
        Jumps(many, -20.0, 1e-6).at(1e-3)


def test_what_is_left_out_is_bounded() -> None:
    parts = ((SampledGaussianPair(0.01, 1.0), 1000),)
    whole = contour.log_delta(parts, 2.0)
    for width in (1e-2, 1e-6):
        law, missing = Jumps(parts, whole.upper, width).none()
        cut = certified_value(law, EXCESS, 2.0, 1e-6)
        assert cut.lower <= whole.upper
        assert math.exp(whole.lower) <= math.exp(cut.upper) + math.exp(missing)
        assert missing < whole.upper + math.log(width)


def test_a_refusal_carries_what_was_proved() -> None:
    parts = ((SampledGaussianPair(1e-6, 1.0), 1000),)
    with pytest.raises(NotCertified) as refusal:
        certified_value(Jumps(parts, -20.7, 1e-6).none()[0], EXCESS, 1.87e-4, 1e-13)
    reached = refusal.value.reached
    assert reached is not None and reached[0] < reached[1] < reached[0] + 1e-3
