"""Small losses: huge tilts, few steps, tiny deltas; above all "add" near the top of its range."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import exp, fsum, log, log1p, mp, mpc, mpf, pi, sqrt
from tests.unit.guarantee.complex_cumulant import cumulant

from tightrope.guarantee import check
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss import contour, lattice
from tightrope.guarantee.loss.pairs import SampledGaussianPair
from tightrope.guarantee.loss.pairs.sampled import SampledCumulant
from tightrope.guarantee.loss.pairs.sampled_cut import PartCumulant


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
