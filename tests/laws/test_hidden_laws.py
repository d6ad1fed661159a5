"""Laws of the last-iterate theorems: never below the truth, never worse for more noise.

On losses (h_t/2) w^2 + <x_t, w> the last iterate is exactly Gaussian, so the truth is known: the
means of the two runs differ by M, M <- (1 - eta h_t) M + eta (2 L if the record is used), and the
variance follows V <- (1 - eta h_t)^2 V + (eta noise)^2; the true mu is |M| / sqrt(V).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.process.convex import (
    ContractiveIteration,
    ConvexLoss,
    CyclicSGD,
    NoisyGradientDescent,
)
from tightrope.theorems.last_iterate.bounded import HiddenHockeyStick, HiddenProjected
from tightrope.theorems.last_iterate.descent import (
    HiddenComposition,
    HiddenCyclic,
    HiddenFullBatch,
    HiddenHull,
)

UNIT = st.floats(0.0, 1.0)
SIZE = st.floats(0.05, 20.0)
COUNT = st.integers(1, 12)
LAW = settings(deadline=None, max_examples=60)  # a shared machine has slow moments


def true_mu(factors, uses, push, noise):
    mean = variance = 0.0
    for factor, use in zip(factors, uses, strict=True):
        mean = factor * mean + push * use
        variance = factor**2 * variance + noise**2
    return abs(mean) / math.sqrt(variance)


def cyclic(lipschitz, eta_beta, eta_m, noise, batches, epochs, index, **more):
    loss = ConvexLoss(lipschitz, eta_beta / 0.1, min(eta_m, eta_beta) / 0.1)
    return CyclicSGD(
        loss=loss,
        step_size=0.1,
        noise_std=noise,
        batch_size=2,
        batches_per_epoch=batches,
        epochs=epochs,
        index=index,
        **more,
    )


@LAW
@given(SIZE, st.floats(0.01, 1.99), UNIT, SIZE, COUNT, COUNT, st.data())
def test_cyclic_bound_is_never_below_the_truth(lip, eta_beta, share, noise, batches, epochs, data):
    index = data.draw(st.integers(1, batches))
    run = cyclic(lip, eta_beta, share * eta_beta, noise, batches, epochs, index)
    curvature = st.floats(min(share, 1.0) * eta_beta, eta_beta)
    hs = data.draw(st.lists(curvature, min_size=batches, max_size=batches))
    factors = [1.0 - h for h in hs] * epochs
    uses = [float(t % batches == index - 1) for t in range(batches * epochs)]
    truth = true_mu(factors, uses, 0.1 * lip, 0.1 * noise)  # 2 L / batch with batch = 2
    assert HiddenCyclic.guarantee(run).mu >= truth * (1 - 1e-12)


@LAW
@given(SIZE, st.floats(0.0, 1.0), SIZE, st.integers(1, 200))
def test_full_batch_bound_is_the_truth(lip, eta_m, noise, steps):
    loss = ConvexLoss(lip, max(eta_m, 0.5) / 0.1, eta_m / 0.1)
    run = NoisyGradientDescent(loss=loss, step_size=0.1, noise_std=noise, records=4, steps=steps)
    truth = true_mu(
        [1.0 - 0.1 * loss.strong_convexity] * steps, [1.0] * steps, 0.05 * lip, 0.1 * noise
    )
    if 0.1 * (loss.strong_convexity + loss.smoothness) <= 2.0:
        assert HiddenFullBatch.guarantee(run).mu == pytest.approx(truth, rel=1e-9)


@LAW
@given(SIZE, SIZE, st.integers(1, 40), st.data())
def test_one_pass_is_attained_behind_a_constant_map(lip, noise, batches, data):
    """eta h = 1 just before the record erases all earlier noise; linear losses after it."""
    index = data.draw(st.integers(1, batches))
    run = cyclic(lip, 1.0, 0.0, noise, batches, 1, index)
    factors = [0.0 if t <= index - 1 else 1.0 for t in range(batches)]
    uses = [float(t == index - 1) for t in range(batches)]
    truth = true_mu(factors, uses, 0.1 * lip, 0.1 * noise)
    assert HiddenCyclic.guarantee(run).mu == pytest.approx(truth, rel=1e-12)


@st.composite
def iterations(draw, largest=1.3):
    steps = draw(st.integers(1, 10))
    column = {"min_size": steps, "max_size": steps}
    pushes = draw(st.lists(st.one_of(st.just(0.0), st.floats(0.01, 5.0)), **column))
    factors = draw(st.lists(st.floats(0.0, largest), **column))
    scales = draw(st.lists(st.floats(0.1, 5.0), **column))
    return ContractiveIteration(tuple(pushes), tuple(factors), tuple(scales))


@LAW
@given(iterations())
def test_hull_is_never_below_the_truth_nor_above_composition(run):
    mean = variance = 0.0
    for s, c, noise in zip(run.sensitivities, run.contractions, run.noise_scales, strict=True):
        mean, variance = c * mean + s, c**2 * variance + noise**2
    mu = HiddenHull.guarantee(run).mu
    assert mu >= mean / math.sqrt(variance) * (1 - 1e-12)
    assert mu <= HiddenComposition.guarantee(run).mu * (1 + 1e-12) + 1e-130  # floor of the hull


@LAW
@given(iterations(), st.integers(0, 9), st.floats(1.0, 3.0))
def test_hull_is_monotone(run, step, more):
    """More noise, or less sensitivity, at one step never costs privacy."""
    step %= len(run.noise_scales)
    scales, pushes = list(run.noise_scales), list(run.sensitivities)
    scales[step] *= more
    pushes[step] /= more
    better = ContractiveIteration(tuple(pushes), run.contractions, tuple(scales))
    limit = HiddenHull.guarantee(run).mu * (1 + 1e-12) + 1e-130  # floor of the hull
    assert HiddenHull.guarantee(better).mu <= limit


@LAW
@given(iterations(largest=1.0))
def test_a_common_step_never_costs_privacy(run):
    longer = ContractiveIteration(
        (*run.sensitivities, 0.0), (*run.contractions, 1.0), (*run.noise_scales, 1.0)
    )
    limit = HiddenHull.guarantee(run).mu * (1 + 1e-12) + 1e-130  # floor of the hull
    assert HiddenHull.guarantee(longer).mu <= limit


@LAW
@given(iterations(), st.floats(0.5, 2.0))
def test_units_do_not_matter(run, unit):
    scaled = ContractiveIteration(
        tuple(unit * s for s in run.sensitivities),
        run.contractions,
        tuple(unit * s for s in run.noise_scales),
    )
    assert HiddenHull.guarantee(scaled).mu == pytest.approx(HiddenHull.guarantee(run).mu, rel=1e-12)


@LAW
@given(SIZE, st.floats(0.01, 2.0), UNIT, SIZE, COUNT, COUNT)
def test_later_batches_are_less_protected_and_the_last_is_the_datasets(
    lip, eta_beta, share, noise, batches, epochs
):
    run = cyclic(lip, eta_beta, share * eta_beta, noise, batches, epochs, None)
    curve = HiddenCyclic.mu_curve(run)
    assert np.all(np.diff(curve) >= -1e-12 * curve[1:])
    assert HiddenCyclic.guarantee(run).mu == curve[-1]
    assert curve[-1] <= HiddenComposition.guarantee(run).mu * (1 + 1e-12)


@LAW
@given(SIZE, st.floats(0.01, 2.0), UNIT, SIZE, COUNT, COUNT, st.floats(0.01, 5.0), st.data())
def test_the_last_batch_is_the_worst_with_projection_too(
    lip, eta_beta, share, noise, batches, epochs, diameter, data
):
    index = data.draw(st.integers(1, batches))
    run = cyclic(lip, eta_beta, share * eta_beta, noise, batches, epochs, index, diameter=diameter)
    last = cyclic(lip, eta_beta, share * eta_beta, noise, batches, epochs, None, diameter=diameter)
    early = min(HiddenProjected.guarantee(run).mu, HiddenCyclic.guarantee(run).mu)
    late = min(HiddenProjected.guarantee(last).mu, HiddenCyclic.guarantee(last).mu)
    assert early <= late * (1 + 1e-11)


@LAW
@given(SIZE, SIZE, st.integers(2, 12), st.floats(0.1, 5.0), st.floats(0.0, 4.0), st.data())
def test_hockey_stick_is_never_worse_than_the_hull(lip, noise, batches, diameter, epsilon, data):
    index = data.draw(st.integers(1, batches))
    run = cyclic(lip, 1.0, 0.0, noise, batches, 2, index, diameter=diameter)
    contracted = HiddenHockeyStick.guarantee(run).delta(epsilon).upper
    assert contracted <= HiddenCyclic.guarantee(run).delta(epsilon).upper * (1 + 1e-9)
