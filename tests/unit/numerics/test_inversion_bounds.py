"""Each error term of the inversion integral, as the inequality it states, where it is tight."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mpmath import exp, fsum, mp, mpf
from scipy.special import ndtr

from tightrope.errors import NotCertified
from tightrope.numerics import inversion_law
from tightrope.numerics.inversion import (
    Line,
    kernel_ratio,
    kernel_slope,
    log_estimate,
    log_kernel,
    log_peak,
    saddle,
    saddle_of_level,
)
from tightrope.numerics.inversion_law import (
    AbstractFamily,
    Decay,
    SumLaw,
    TiltedNodes,
    Wanted,
    layers_of_steps,
    log1p_complex,
    log_error,
    no_decay,
    tilted_nodes,
)
from tightrope.numerics.rounding import UNIT

NEVER = np.array([math.inf])


# ------------------------------------------------------------------------------------------- decay
def later(sizes: np.ndarray) -> np.ndarray:
    """The largest from each one on."""
    return np.maximum.accumulate(sizes[::-1])[::-1]


def test_decay_of_one_uniform_law_is_the_largest_sine_still_to_come() -> None:
    """|sin x/x|, x = y/2: side lobes included, and tight up to the first zero."""
    y = np.linspace(0.01, 60.0, 6000)
    half = 0.5 * y
    truth = later(np.abs(np.sin(half) / half))
    bound = Decay.of([(np.array([1.0]), np.array([1.0]))], NEVER).bounds(y)[:, 0]
    assert np.all(bound >= truth * (1 - 1e-12))
    assert np.all(bound[half < 2.5] <= truth[half < 2.5] * (1 + 1e-10))
    lobe = (half > 2.8) & (half < 4.49)
    assert np.all(bound[lobe] <= 0.2173)
    assert np.all(bound[half > 4.7] <= 1.0001 / half[half > 4.7])


def test_what_no_layer_covers_counts_with_its_whole_mass() -> None:
    """An atom of mass 0.3 beside a uniform law."""
    bound = Decay.of([(np.array([2.0]), np.array([0.7]))], NEVER).bounds(np.array([1e4]))[0, 0]
    assert 0.3 <= bound <= 0.3 + 0.7 * 1.01e-4
    assert no_decay(2).bounds(np.array([1.0, 9.0])).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_variation_over_y_bounds_a_uniform_law_and_is_reached() -> None:
    """Density 1/4 on [0, 4]: variation 1/2, and |phi| = |sin 2y|/(2y)."""
    y = math.pi * np.array([0.25, 1.25, 5.25])
    bound = Decay.of([(np.zeros(1), np.zeros(1))], np.array([0.5])).bounds(y)[:, 0]
    np.testing.assert_allclose(bound, np.abs(np.sin(2 * y)) / (2 * y), rtol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_layers_lie_inside_the_density(shift: float) -> None:
    """Their mass is that of the lowered steps; two humps are lowered to one."""
    edges = np.linspace(-4.0, 4.0, 41)
    heights = np.exp(-0.5 * (0.5 * (edges[1:] + edges[:-1]) - shift) ** 2)
    heights[33] = 0.9  # a second hump, which no layer may hold
    peak = int(np.argmax(heights))
    lengths, masses = layers_of_steps(edges, heights, peak)
    left = np.minimum.accumulate(heights[: peak + 1][::-1])[::-1]
    lowered = np.concatenate([left, np.minimum.accumulate(heights[peak:])[1:]])
    assert masses.sum() == pytest.approx(float(lowered @ np.diff(edges)), rel=1e-12)
    assert np.all(lengths <= 8.0 + 1e-12) and np.all(masses >= 0.0)
    level = masses / np.maximum(lengths, 1e-300)
    assert level.sum() == pytest.approx(heights.max(), rel=1e-12)


def test_another_bound_is_taken_where_it_is_smaller() -> None:
    decay = Decay.of([(np.array([1.0]), np.array([1.0]))], NEVER, None, lambda y: np.array([0.05]))
    assert decay.bounds(np.array([7.0]))[0, 0] == 0.05
    assert decay.bounds(np.array([1e5]))[0, 0] < 0.05


# ------------------------------------------------------------------------------------------ kernel
@pytest.mark.parametrize("z", [0.02, 0.7, 3.0, 40.0])
def test_peak_of_the_payoff_is_its_supremum(z: float) -> None:
    x = np.linspace(0.0, 20.0 / z, 200_001)
    top = float(np.max(-np.expm1(-x) * np.exp(-z * x)))
    found = float(np.exp(log_peak(np.array(z))))
    assert top * (1 - 1e-12) <= found <= top * (1 + 1e-6)


def test_kernel_and_its_derivatives() -> None:
    c, h = 0.8, 1e-5
    first, second = kernel_slope(c)
    sizes = [log_kernel(c + k * h) for k in (-1, 0, 1)]
    assert math.exp(sizes[1]) == pytest.approx(1 / (c * (c + 1)), rel=1e-14)
    assert (sizes[2] - sizes[0]) / (2 * h) == pytest.approx(first, rel=1e-8)
    assert (sizes[2] - 2 * sizes[1] + sizes[0]) / h**2 == pytest.approx(second, rel=1e-4)
    z = c + 2.5j
    assert complex(kernel_ratio(c, np.array([2.5]))[0]) == pytest.approx(
        c * (c + 1) / (z * (z + 1)), rel=1e-14
    )


# ------------------------------------------------------------------------------------------- nodes
def two_points(**changed: Any) -> TiltedNodes:
    """+-1 with equal weights: the transform is cos y."""
    zero = np.zeros((1, 2))
    values: dict[str, Any] = {
        "points": np.array([[-1.0, 1.0]]),
        "exponents": np.log(np.array([[0.5, 0.5]])),
        "mass": (np.zeros(1), np.zeros(1)),
        "exponent_error": zero,
        "point_error": zero,
        "quadrature": np.zeros(1),
    } | changed
    return tilted_nodes(**values)


def test_errors_of_weights_and_points_are_covered_and_no_more() -> None:
    """Weights moved apart by e, points by e: both move the transform by y e at small y."""
    y, e = 1e-3, 1e-4
    for moved, said in (
        ({"exponents": np.log(np.array([[0.5 - 0.5 * e, 0.5 + 0.5 * e]]))}, "exponent_error"),
        ({"points": np.array([[-1.0 + e, 1.0 + e]])}, "point_error"),
    ):
        nodes = two_points(**{said: np.full((1, 2), e)})
        x, error = nodes.transform(y, 2)
        turned = np.exp(1j * y * (moved.get("points", np.array([[-1.0, 1.0]]))[0]))
        weights = np.exp(moved.get("exponents", np.log(np.array([[0.5, 0.5]])))[0])
        truth = complex(weights @ turned) - 1.0
        gap = abs(truth - complex(x[0, 1]))
        assert gap == pytest.approx(y * e, rel=1e-3)
        assert gap <= error[0, 1] <= 1.1 * y * e


def test_quadrature_errors_of_sum_and_mass_are_covered_four_times() -> None:
    """The sum too large and the mass too small by q, where the transform is -1: 4 q."""
    q = 1e-5
    nodes = two_points(
        exponents=np.log(np.full((1, 2), 0.5 * (1 + q))),
        mass=(np.array([math.log1p(-q)]), np.zeros(1)),
        quadrature=np.array([q]),
    )
    x, error = nodes.transform(math.pi, 2)
    gap = abs(complex(x[0, 1]) - (-2.0))
    assert gap == pytest.approx(4 * q, rel=1e-3)
    assert gap <= error[0, 1] <= 1.1 * gap
    assert abs(float(nodes.log_mass[0])) <= float(nodes.log_mass_error[0]) <= 1.1 * q


def test_points_left_out_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion_law, "_NEGLIGIBLE", 1e-3)
    small = 5e-4
    nodes = two_points(
        points=np.array([[0.0, 1.0]]), exponents=np.log(np.array([[1 - small, small]]))
    )
    assert nodes.weights.shape == (1, 1)
    _, error = nodes.transform(math.pi, 2)
    truth = small * abs(np.exp(1j * math.pi) - 1.0)
    assert truth <= error[0, 1] <= 1.1 * truth


def test_an_error_of_the_mass_turns_into_one_of_the_transform() -> None:
    e = 1e-6
    nodes = two_points(mass=(np.zeros(1), np.array([e])))
    x, error = nodes.transform(math.pi, 2)
    wrong = complex(x[0, 1]) * math.exp(e)  # all weights off by e^e
    assert abs(wrong - complex(x[0, 1])) <= error[0, 1] <= 1.1 * 2 * e
    assert float(nodes.log_mass_error[0]) >= e


@pytest.mark.parametrize(("count", "points"), [(3, 4), (40, 64), (900, 4), (900, 64)])
def test_rounding_of_the_transform_against_fifty_digits(count: int, points: int) -> None:
    """Exact points and weights: the bound is what rounding alone may do."""
    rng = np.random.default_rng(count)
    d, step = np.round(rng.normal(size=points) * 2**20) / 2**20, 2.0**-3
    weights = np.full(points, 1.0 / points)
    nodes = TiltedNodes(
        *(np.zeros(1) for _ in range(3)),
        d[None, :],
        weights[None, :],
        *(np.zeros((1, points)) for _ in range(2)),
        *(np.zeros(1) for _ in range(2)),
    )
    x, error = nodes.transform(step, count)
    with mp.workdps(50):
        for n in {1, count // 2, count - 1}:
            y = mpf(step) * n
            truth = fsum((exp(1j * y * mpf(float(v))) - 1) / points for v in d)
            gap = abs(mp.mpc(complex(x[0, n])) - truth)
            assert gap <= error[0, n]
            # no term is left out of the bound: products, phases and sums of every table
            curved = min(0.5 * (step * n) ** 2 * float(d @ d) / points, 4.0)
            assert error[0, n] >= 96 * UNIT * curved


# --------------------------------------------------------------------------------------------- law
class Stub(AbstractFamily):
    """+-1 with equal weights, whose transform is off by a stated error."""

    def __init__(self, count: int, error: float, log_mass_error: float = 0.0) -> None:
        self.counts = np.array([float(count)])
        self.error, self.log_mass_error = error, log_mass_error

    def values(self, tilts: np.ndarray) -> np.ndarray:
        return 0.0 * tilts

    def moments(self, tilt: float) -> tuple[float, float, float]:
        return 0.0, 0.0, float(self.counts[0])

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        return two_points(
            quadrature=np.array([self.error / 4.2]),
            mass=(np.zeros(1), np.array([self.log_mass_error])),
        )

    def decay(self, tilt: float) -> Decay:
        return Decay.of([(np.array([1.0]), np.array([0.5]))], NEVER)


@pytest.mark.parametrize(("count", "y"), [(1, 0.05), (7, 1.2), (300, 0.05), (40, 0.8)])
def test_an_error_of_one_step_grows_with_the_number_of_steps(count: int, y: float) -> None:
    e = 1e-6
    at = SumLaw((Stub(count, e),)).on_line(1.0).sample(Wanted(y, 2, 30.0))
    grown = (math.cos(y) + e) ** count - math.cos(y) ** count
    assert grown <= at.error[1] <= 1.2 * grown
    assert abs(at.amplitude[1]) == pytest.approx(math.cos(y) ** count, rel=1e-12)


def test_decay_of_a_sum_is_that_of_its_parts() -> None:
    """A normal part of variance 0.3, and 5 laws with a uniform part of mass 1/2 each."""
    law, y = SumLaw((Stub(5, 0.0),), variance=0.3), np.array([0.5, 4.0])
    one = Stub(1, 0.0).decay(1.0).bounds(y)[:, 0]
    np.testing.assert_allclose(
        law.on_line(1.0).log_decay(y), 5 * np.log(one) - 0.15 * y * y, rtol=1e-13
    )


def test_masses_of_a_sum_and_their_errors_add_up() -> None:
    law = SumLaw((Stub(5, 0.0, 1e-9), Stub(3, 0.0, 2e-9)), mean=0.2, variance=0.4)
    value, error = law.real(2.0, 30.0)
    assert value == pytest.approx(0.2 * 2 + 0.2 * 4, rel=1e-14)
    assert 5e-9 + 6e-9 <= error <= 1.01 * 11e-9
    at = law.on_line(2.0).sample(Wanted(0.1, 2, 30.0, (2.0,), 5.0))
    assert 11e-9 <= at.log_mass_error <= 1.01 * 11e-9
    assert at.real[0] == pytest.approx((value, error))
    assert at.mean == pytest.approx(0.2 + 0.4 * 2.0)


# -------------------------------------------------------------------------------------------- line
NORMAL = SumLaw((), mean=0.5, variance=1.0)  # the loss of one Gaussian release, mu = 1


def excess(x: float) -> float:
    return float(ndtr(0.5 - x) - math.exp(x) * ndtr(-0.5 - x))


def line_at(x: float, tolerance: float) -> Line:
    c = saddle(NORMAL, x)
    at, guess, _ = log_estimate(NORMAL, c)
    return Line(NORMAL, c, x, guess - c * (x - at), tolerance)


@pytest.mark.parametrize("x", [0.0, 2.0, 6.0])
@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-5])
def test_aliases_are_bounded(x: float, tolerance: float) -> None:
    """sum over k != 0 of g(x + kP) e^{ckP}, all of them >= 0."""
    line = line_at(x, tolerance)
    p = line.period
    truth = math.fsum(excess(x + k * p) * math.exp(line.c * k * p) for k in (-3, -2, -1, 1, 2, 3))
    bound = math.exp(line._log_aliases(x))
    assert truth <= bound <= 60.0 * truth


class Flat:
    """A law on its line whose transform does not decay."""

    def log_decay(self, y: np.ndarray) -> np.ndarray:
        return np.zeros_like(y)


def test_the_tail_of_the_sum_is_bounded() -> None:
    """(1/pi) sum dy |h(z_n)/h(c)| |M(z_n)/M(c)| over y_n > y, in full; nearly equal far out."""
    line = line_at(2.0, 1e-3)
    for last in (1, 2, 5, 60):
        y, at = last * line.step, np.arange(last + 1, 1_000_000) * line.step
        sizes = np.abs(kernel_ratio(line.c, at))
        truths = [float(np.sum(s)) for s in (sizes * np.exp(-0.5 * at * at), sizes)]
        for truth, law in zip(truths, (NORMAL.on_line(line.c), Flat()), strict=True):
            line._on_line = law  # type: ignore[assignment]
            bound = math.exp(float(line._log_tail(np.array([y]))[0]))
            assert truth * line.step / math.pi <= bound
    assert bound <= 1.1 * truth * line.step / math.pi


@pytest.mark.parametrize("x", [0.0, 2.0, 6.0])
@pytest.mark.parametrize("tolerance", [0.1, 1e-2, 1e-4, 1e-12])
def test_coarse_lines_enclose_the_truth(x: float, tolerance: float) -> None:
    """Where aliases and truncation are as large as they may be."""
    line = line_at(x, tolerance)
    found = line.certified(x)
    truth = math.log(excess(x))
    assert found.lower <= truth <= found.upper
    assert line._log_truncation <= math.log(
        tolerance
    ) + found.upper - line.log_mass + line.c * x - (log_kernel(line.c))


def test_every_error_term_moves_the_ends_it_should() -> None:
    """Truncation, quadrature and rounding move both ends, aliases the lower end only."""
    line = line_at(2.0, 1e-12)
    plain, share = line.certified(2.0), 1e-3
    size = math.exp(plain.upper - (line.log_mass - line.c * 2.0 + log_kernel(line.c)))
    for name, value in (
        ("_log_truncation", math.log(share * size)),
        ("size_error", share * size),
        ("phase_error", share * size),
        ("phase_slope", share * size / (2.0 + abs(line.mean))),
    ):
        before = getattr(line, name)
        setattr(line, name, value)
        wide = line.certified(2.0)
        setattr(line, name, before)
        assert wide.upper - plain.upper == pytest.approx(share, rel=1e-2)
        assert plain.lower - wide.lower == pytest.approx(share, rel=1e-2)
    log_alias = math.log(share) + plain.upper
    line._alias_sizes = [(line.c + 50.0 / line.period, log_alias + 2.0 * line.c + 50.0)]
    line._alias_sizes = [
        (tilt, log_alias + tilt * 2.0 + 50.0 + math.log(-math.expm1(-50.0)))
        for tilt, _ in line._alias_sizes
    ]
    wide = line.certified(2.0)
    assert plain.lower - wide.lower == pytest.approx(share, rel=1e-2)
    assert wide.upper == plain.upper
    line.log_mass_error = 1e-4
    assert line.certified(2.0).upper - plain.upper == pytest.approx(1e-4, rel=1e-3)


def test_errors_of_the_transform_reach_the_line() -> None:
    e, law = 1e-7, SumLaw((Stub(1, 1e-7),), mean=0.5, variance=1.0)
    line = Line(law, 1.0, 2.0, -4.0, 1e-6)
    weight = np.abs(kernel_ratio(line.c, line.y)) * line.step / math.pi
    least = e * float(weight[1:] @ np.exp(-0.5 * line.y[1:] ** 2))
    assert least <= line.size_error <= 4.0 * least


def test_rounding_of_phases_covers_an_ulp_of_each_operation() -> None:
    """y (mean - x): the mean, the difference, the product and the sum with the phase."""
    line = line_at(6.0, 1e-12)
    assert line.phase_slope >= 4.0 * UNIT * float(line.size @ line.y)
    assert line.phase_error >= 32.0 * UNIT * float(np.sum(line.size))
    with mp.workdps(50):
        for x in (5.9, 6.0, 6.1):
            angles = [
                mpf(a) + mpf(y) * (mpf(line.mean) - mpf(x))
                for a, y in zip(line.phase.tolist(), line.y.tolist(), strict=True)
            ]
            truth = fsum(
                mpf(s) * mp.cos(a) for s, a in zip(line.size.tolist(), angles, strict=True)
            )
            angle = line.phase + line.y * (line.mean - x)
            gap = abs(float(np.sum(line.size * np.cos(angle))) - truth)
            assert gap <= line.phase_error + line.phase_slope * (x + abs(line.mean))


def test_an_error_as_large_as_the_mass_leaves_its_logarithm_unknown() -> None:
    shares = np.array([0.0, 1e-9, 0.01, 0.011, 0.7, 1.0])
    found = log_error(shares)
    assert (found[:5] >= -np.log1p(-shares[:5])).all()
    assert found[5] > 1e50


# ---- the pieces of the inversion integral, each against slow and obvious code


@pytest.mark.parametrize("count", [1, 2, 130, 700, 3001])  # tables of one and of two levels
def test_transform_of_points_matches_the_plain_sum_within_its_error(count: int) -> None:
    rng = np.random.default_rng(3)
    x, log_p = rng.normal(size=(3, 300)), rng.normal(size=(3, 300))
    log_mass = np.log(np.sum(np.exp(log_p), axis=1))
    zero = np.zeros((3, 300))
    nodes = tilted_nodes(x, log_p, (log_mass, np.full(3, 1e-15)), zero, zero, np.zeros(3))
    got, error = nodes.transform(0.375, count)
    y = 0.375 * np.arange(count)
    for row in range(3):
        weights = np.exp(log_p[row] - log_mass[row])
        plain = np.exp(1j * np.outer(y, x[row] - nodes.centre[row])) @ weights - 1.0
        assert np.all(np.abs(got[row] - plain) <= error[row] + 1e-14 * (1.0 + y))
    assert np.all(got[:, 0] == 0.0)


def test_transform_loses_no_digit_at_small_frequencies() -> None:
    x = np.random.default_rng(4).normal(size=(1, 5000))
    zero, log_p = np.zeros_like(x), np.full_like(x, -math.log(5000.0))
    nodes = tilted_nodes(x, log_p, (np.zeros(1), np.zeros(1)), zero, zero, np.zeros(1))
    step = 2.0**-30
    got, error = nodes.transform(step, 900)
    for n in (1, 28, 29, 417, 899):
        plain = math.fsum(-2.0 * np.sin(0.5 * n * step * (x - nodes.centre))[0] ** 2 / 5000.0)
        assert abs(got[0, n].real - plain) <= min(error[0, n], 1e-12 * abs(plain))


def test_log1p_complex_is_accurate_near_zero_and_far_away() -> None:
    z = np.array([1e-12 + 1e-13j, -0.5 + 2j, -0.9999 + 0.01j, 5.0 - 3j])
    np.testing.assert_allclose(log1p_complex(z)[1:], np.log(1 + z)[1:], rtol=1e-13)
    assert log1p_complex(z)[0].real == pytest.approx(1e-12, rel=1e-9)


def test_saddle_searches_agree_with_each_other() -> None:
    c = saddle_of_level(NORMAL, -60.0)
    x, log_g, _ = log_estimate(NORMAL, c)
    assert log_g == pytest.approx(-60.0, abs=0.5)
    assert saddle(NORMAL, x) == pytest.approx(c, rel=0.02)


def test_quick_derivative_matches_a_difference() -> None:
    c = saddle(NORMAL, 2.0)
    line = Line(NORMAL, c, 2.0, log_estimate(NORMAL, c)[1])
    h = 1e-5
    slope = (line.quick(2.0 + h)[0] - line.quick(2.0 - h)[0]) / (2 * h)
    assert line.quick(2.0)[1] == pytest.approx(slope, rel=1e-6)


def test_a_law_without_decay_is_refused_with_a_reason() -> None:
    narrow = SumLaw((), mean=0.0, variance=1e-16)
    with pytest.raises(NotCertified, match="lattice"):
        Line(narrow, 1.0, 0.5, -1.0)
