"""Sharply cut losses and the hard regime, in which few large losses decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import exp, fsum, log, log1p, mp, mpc, mpf, pi, sqrt
from scipy.special import ndtr
from tests.unit.guarantee.complex_cumulant import cumulant

from tightrope.accounting import account
from tightrope.errors import NotCertified
from tightrope.guarantee import check
from tightrope.guarantee.loss import contour, lattice, profile
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.contour import certified_value, without_rare
from tightrope.guarantee.loss.pairs import GaussianPair, SampledGaussianPair
from tightrope.guarantee.loss.pairs.sampled import SampledCumulant
from tightrope.guarantee.loss.pairs.sampled_part import PartCumulant
from tightrope.guarantee.loss.pairs.sampling import log_ratio, point_of_log_ratio
from tightrope.process import DiscreteGaussianMechanism, Repeated

RATE, MU = 1e-4, 1.3
PAIR = SampledGaussianPair(RATE, MU)


def slow_mass(w: complex, low: float, high: float) -> mpmath.mpc:
    """int phi r^w on [low, high] by brute force."""

    def integrand(s: mpmath.mpf) -> mpmath.mpc:
        b = RATE * mpmath.exp(MU * s - mpmath.mpf(MU) ** 2 / 2)
        return mpmath.npdf(s) * mpmath.exp(w * mpmath.log(1 - RATE + b))

    return mpmath.quad(integrand, list(np.linspace(low, high, 30)))


@pytest.mark.parametrize("tilt", [0.0, 40.0])
@pytest.mark.parametrize("frequency", [0.0, 900.0])
def test_a_law_that_is_cut_encloses_a_slow_integral(tilt: float, frequency: float) -> None:
    nodes = PartCumulant([PAIR], [1], np.array([7.0])).nodes(tilt, frequency, 34.0)
    with mpmath.workdps(20):
        truth = slow_mass(1 + tilt + 1j * frequency, -9.0, 7.0)
    x, error = nodes.transform(max(frequency, 1.0), 2 if frequency else 1)
    value = (1.0 + x[0, -1]) * np.exp(1j * frequency * nodes.centre[0] + nodes.log_mass[0])
    size = math.exp(nodes.log_mass[0])
    allowed = size * (error[0, -1] + nodes.log_mass_error[0] + 1e-13)
    assert abs(complex(truth) - value) <= allowed
    assert allowed < 1e-9 * size


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
    found = profile.delta(((SampledGaussianPair(rate, mu), 2),), epsilon)
    assert found.lower * (1 - 1e-10) <= truth <= found.upper * (1 + 1e-10)
    assert found.relative_width <= 1e-4


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta", "truth"),
    [  # truths: intervals of other plans of the lattice
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
    found = profile.epsilon(parts, delta)
    assert truth[0] <= found.lower <= found.upper <= truth[1]
    assert found.relative_width <= 1e-6
    assert profile.delta(parts, found.upper).lower <= delta
    assert profile.delta(parts, found.lower).upper >= delta


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


def test_no_rare_losses_are_refused_with_a_next_step() -> None:
    with pytest.raises(NotCertified, match="lattice"):
        without_rare(((GaussianPair(1.0), 1),), -20.0, 1e-6)


def test_what_is_left_out_is_bounded() -> None:
    parts = ((SampledGaussianPair(0.01, 1.0), 1000),)
    whole = contour.log_delta(parts, 2.0)
    for width in (1e-2, 1e-6):
        law, missing = without_rare(parts, whole.upper, width)
        cut = certified_value(law, 2.0, 1e-6)[0]
        assert cut.lower <= whole.upper
        assert math.exp(whole.lower) <= math.exp(cut.upper) + math.exp(missing)
        assert missing < whole.upper + math.log(width)


def test_a_refusal_carries_what_was_proved() -> None:
    parts = ((SampledGaussianPair(1e-6, 1.0), 1000),)
    with pytest.raises(NotCertified) as refusal:
        certified_value(without_rare(parts, -20.7, 1e-6)[0], 1.87e-4, 1e-13)
    reached = refusal.value.reached
    assert reached is not None and reached[0] < reached[1] < reached[0] + 1e-3


# ---- small losses: huge tilts, few steps, tiny deltas; above all "add" near the top of its range
def exact_cumulant(pair: SampledGaussianPair, z: complex) -> mpc:
    """ln E_{N(0,1)} r^-z in forty digits, by the trapezoidal rule with a step of 1/100."""
    with mp.workdps(40):
        q, mu, step, terms = mpf(pair.rate), mpf(pair.mu), mpf(1) / 100, []
        power = mpc(z)
        for n in range(-100 * 30, 100 * 16):
            s = n * step
            ratio = log1p(q * (exp(mu * s - mu * mu / 2) - 1))
            terms.append(exp(-s * s / 2 - power * ratio))
        return log(fsum(terms) * step / sqrt(2 * pi))


@pytest.mark.parametrize(
    ("rate", "noise", "z"),
    [
        (3e-3, 0.36, 6.47e8 + 1.2e9j),
        (1.5e-7, 1.76, 2.17e9 + 1e9j),
        (3.3e-6, 23.9, 1.52e8 + 4e7j),
        (0.075, 4.92, 6180.0 + 2000.0j),
        (1.1e-6, 0.276, 84436.0 + 1e5j),
    ],
)
def test_cumulants_at_huge_tilts(rate: float, noise: float, z: complex) -> None:
    pair = SampledGaussianPair(rate, 1.0 / noise, "add")
    found = cumulant(pair, np.array([z.real, z]))
    for value, error, at in zip(found.value, found.error, (z.real, z), strict=True):
        truth = exact_cumulant(pair, at)
        assert abs(float(mp.re(truth)) - value.real) <= error + 1e-15 * abs(value)
        turned = (float(mp.im(truth)) - value.imag) / (2.0 * np.pi)
        assert abs(turned - round(turned)) * 2.0 * np.pi <= error + 1e-14 * abs(value)
        assert error <= 1e-9 * max(1.0, abs(value))


@pytest.mark.parametrize(("rate", "noise", "tilt"), [(3.3e-6, 23.9, 1.52e8), (0.03, 0.3, 2.4e9)])
def test_the_decay_bound_holds_beyond_each_frequency(
    rate: float, noise: float, tilt: float
) -> None:
    pair = SampledGaussianPair(rate, 1.0 / noise, "add")
    law = SampledCumulant([pair], [6])
    spread = float(np.sqrt(law.row_moments(tilt)[2][0]))
    decay, here = law.decay(tilt), exact_cumulant(pair, tilt)
    for turns in (0.5, 2.0, 6.0):
        y = turns / spread
        size = float(mp.re(exact_cumulant(pair, complex(tilt, y)) - here))
        assert np.exp(size) <= float(decay.bound(y)[0]) * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [
        (2.98e-3, 0.363, 31, 2.1e-120),
        (1.45e-7, 1.76, 29, 1.9e-227),
        (0.0755, 4.92, 10, 8.8e-265),
        (3.34e-6, 23.9, 6, 3e-215),
        (1.09e-6, 0.276, 11902, 1.3e-36),
    ],
)
def test_settings_near_the_top_of_the_range(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    held: Components = ((SampledGaussianPair(rate, 1.0 / noise, "add"), steps),)
    found = contour.epsilon(held, delta)
    assert found.relative_width <= 1e-8
    assert found.meets(lattice.epsilon(held, delta))
    check.confirm_epsilon((held,), delta, found, thorough=True)


@pytest.mark.parametrize(
    ("rate", "noise", "tilt", "end"),
    [(2.25e-8, 60.5, 2.57e10, 33.0), (0.01, 1.0, 5.0, 6.0), (0.2, 0.8, 3.0, 9.0)],
)
def test_the_decay_bound_of_a_law_that_is_cut_off(
    rate: float, noise: float, tilt: float, end: float
) -> None:
    """The path down to the end against the transform itself, and against all that follows."""
    pair = SampledGaussianPair(rate, 1.0 / noise, "remove")
    law = PartCumulant([pair], [5], np.array([end]))
    step = 0.25 / float(np.sqrt(law.row_moments(tilt)[2][0]))
    nodes = law.nodes(tilt, 100 * step, 40.0)
    x, error = nodes.transform(step, 100)
    sizes = np.abs(1.0 + x[0]) - error[0]
    bounds = law.decay(tilt).bounds(step * np.arange(1.0, 100.0))[:, 0]
    later = np.maximum.accumulate(sizes[:0:-1])[::-1]
    assert np.all(later <= bounds * (1.0 + 1e-9))
    assert bounds[-1] < 0.3


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"), [(2.25e-8, 60.5, 7, 2.6e-215), (3.1e-5, 99.5, 2, 2e-147)]
)
def test_few_steps_with_much_noise(rate: float, noise: float, steps: int, delta: float) -> None:
    held: Components = ((SampledGaussianPair(rate, 1.0 / noise, "remove"), steps),)
    found = contour.epsilon(held, delta)
    assert found.relative_width <= 1e-6
    assert found.meets(lattice.epsilon(held, delta))
    check.confirm_epsilon((held,), delta, found, thorough=True)


# ---- losses that were cut off: infinite in upper ends, nothing in lower ends
def discrete_gaussian_truth(sigma: float, count: int) -> Callable[[float], Any]:
    """delta(eps) of `count` releases of whole numbers moved by 1, by sums of 50 digits."""
    reach = 60 * int(sigma)
    one = [mp.exp(-mp.mpf(k * k) / (2 * sigma**2)) for k in range(-reach, reach + 1)]
    total = mp.fsum(one)
    law = one = [m / total for m in one]
    for _ in range(count - 1):
        law = [
            mp.fsum(law[i] * one[k - i] for i in range(max(0, k - 2 * reach), min(len(law), k + 1)))
            for k in range(len(law) + 2 * reach)
        ]
    middle = len(law) // 2
    losses = [mp.mpf(2 * (k - middle) + count) / (2 * sigma**2) for k in range(len(law))]

    def delta(epsilon: float) -> Any:
        return mp.fsum(
            m * -mp.expm1(mp.mpf(epsilon) - loss)
            for m, loss in zip(law, losses, strict=True)
            if loss > epsilon
        )

    return delta


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("delta", [1e-303, 1e-300, 5e-300, 2e-299, 1e-290])
def test_what_was_cut_off_is_not_known_to_be_infinite(count: int, delta: float) -> None:
    """The tail of the noise is counted as infinite in upper ends, and as nothing in lower ends."""
    with mp.workdps(50):
        true = discrete_gaussian_truth(2.0, count)
        run = account(Repeated(DiscreteGaussianMechanism(2.0), count))
        found = run.epsilon(delta)
        assert true(found.lower) >= delta
        assert found.upper == math.inf or true(found.upper) <= delta
        assert found.upper < math.inf or delta < 1e-299
        assert found.lower > 0.9 * run.epsilon(1e-290).lower
        for epsilon in (1.0, 15.0, 30.0, 60.0):
            answer = run.delta(epsilon)
            assert answer.lower <= true(epsilon) <= answer.upper
        assert run.tradeoff(0.0).upper == 1.0


@pytest.mark.parametrize("order", [1.5, 2.0, 7.0, 40.0])
def test_the_renyi_divergence_of_a_cut_law_is_finite(order: float) -> None:
    sigma = 2.0
    with mp.workdps(50):
        weights = [mp.exp(-mp.mpf(k * k) / (2 * sigma**2)) for k in range(-400, 401)]
        moved = [mp.exp(-mp.mpf((k - 1) ** 2) / (2 * sigma**2)) for k in range(-400, 401)]
        total = mp.fsum(weights)
        terms = (p**order * q ** (1 - order) for p, q in zip(moved, weights, strict=True))
        true = mp.log(mp.fsum(terms) / total) / (order - 1)
        found = account(DiscreteGaussianMechanism(sigma)).renyi(order)
        assert found.lower <= true <= found.upper
        assert found.width < 1e-6 * true
