"""One refusal for each condition, and what the theorems say about what they cover."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.numerics import hull
from tightrope.process import Adjacency, Released
from tightrope.process.convex import (
    ClippedLoss,
    ContractiveIteration,
    ConvexLoss,
    CyclicSGD,
    IterationNoise,
    LocalGradient,
    NoisyGradientDescent,
    SkipSGD,
    SmoothLoss,
    StopSGD,
    SubsampledSGD,
)
from tightrope.process.training import (
    langevin_std,
    noise_std_from_langevin,
    noise_std_from_multiplier,
    noise_std_from_relative,
)
from tightrope.theorems.last_iterate.bounded import (
    HiddenHockeyStick,
    HiddenLastStep,
    HiddenNonconvex,
    HiddenProjected,
    HiddenShiftRenyi,
    laplace_divergence,
)
from tightrope.theorems.last_iterate.descent import (
    HiddenComposition,
    HiddenCyclic,
    HiddenFullBatch,
    HiddenHull,
    HiddenLocal,
)
from tightrope.theorems.last_iterate.langevin import HiddenLangevinSampled
from tightrope.theorems.last_iterate.sampled import (
    HiddenSampled,
    HiddenSampledComposition,
    HiddenSkip,
    HiddenStop,
    HiddenStopRenyi,
    best_window,
    renyi_of_mixture,
)
from tightrope_reproduce.formulas.langevin import HiddenLangevin
from tightrope_reproduce.formulas.last_iterates import renyi_by_lemma_25

CONVEX = ConvexLoss(1.0, 4.0, 0.5)
COMMON = {"loss": CONVEX, "step_size": 0.1, "noise_std": 2.0}
DESCENT = NoisyGradientDescent(**COMMON, records=100, steps=50)
CYCLIC = CyclicSGD(**COMMON, batch_size=10, batches_per_epoch=10, epochs=3)
SKIP = SkipSGD(**COMMON, records=100)
STOP = StopSGD(**COMMON, records=100)
SAMPLED = SubsampledSGD(**COMMON, records=100, batch_size=10, steps=50)
ITERATION = ContractiveIteration((0.0, 1.0), (1.0, 0.9), (1.0, 1.0))
START = replace(DESCENT, start_std=2.0 * math.sqrt(0.1 / 0.5))

COVERED = [
    (HiddenFullBatch, DESCENT),
    (HiddenCyclic, CYCLIC),
    (HiddenProjected, replace(DESCENT, diameter=1.0)),
    (HiddenProjected, replace(CYCLIC, diameter=1.0)),
    (HiddenHockeyStick, replace(CYCLIC, diameter=1.0)),
    (HiddenSkip, SKIP),
    (HiddenStop, STOP),
    (HiddenStopRenyi, STOP),
    (HiddenSampled, SAMPLED),
    (HiddenLangevin, START),
    (HiddenLangevinSampled, SAMPLED),
]


@pytest.mark.parametrize(("theorem", "run"), COVERED, ids=lambda x: getattr(x, "NAME", ""))
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"adjacency": Adjacency.ADD_OR_REMOVE}, "replace-one"),
        ({"released": Released.EVERY_ITERATE}, "secret"),
        ({"loss": SmoothLoss(1.0, 4.0)}, "convex"),
        ({"loss": ConvexLoss(1.0, math.inf)}, "smooth"),
        ({"loss": ClippedLoss(1.0)}, "clipped"),
        ({"step_size": 0.6}, "2 / smoothness"),
    ],
    ids=["adjacency", "released", "convex", "smooth", "clipped", "step size"],
)
def test_every_condition_is_checked(theorem, run, change, word):
    assert theorem.applies(run) is None
    spoiled = replace(run, **change)
    if theorem is HiddenHockeyStick and word in ("convex", "clipped"):
        assert theorem.applies(spoiled) is None  # any loss with bounded gradients
        return
    reason = theorem.applies(spoiled)
    assert reason is not None
    assert word in reason
    with pytest.raises(DoesNotApply, match="needs"):
        theorem.guarantee(spoiled)


@pytest.mark.parametrize("theorem", [HiddenProjected, HiddenHockeyStick, HiddenNonconvex])
def test_a_bounded_set_is_needed(theorem):
    assert "diameter" in theorem.applies(CYCLIC)


def test_more_refusals():
    assert "strong convexity" in HiddenLangevin.applies(replace(START, loss=ConvexLoss(1.0, 4.0)))
    assert "1 / smoothness" in HiddenLangevin.applies(replace(START, step_size=0.3))
    assert "start" in HiddenLangevin.applies(DESCENT)
    assert "strong convexity" in HiddenLangevinSampled.applies(
        replace(SAMPLED, loss=ConvexLoss(1.0, 4.0))
    )
    assert "2 / (strong" in HiddenLangevinSampled.applies(replace(SAMPLED, step_size=0.48))
    bounded = replace(DESCENT, diameter=1.0)
    assert "SmoothLoss" in HiddenNonconvex.applies(bounded)
    assert "whole gradient" in HiddenLastStep.applies(bounded)
    assert "Gaussian" in HiddenHull.applies(replace(ITERATION, noise=IterationNoise.LAPLACE))
    assert "Gaussian" in HiddenComposition.applies(replace(ITERATION, noise=IterationNoise.LAPLACE))
    assert "start" in HiddenComposition.applies(replace(ITERATION, start_distance=1.0))
    assert "noise" in HiddenShiftRenyi.applies(replace(ITERATION, noise_scales=(1.0, 0.0)))
    assert "one of" in HiddenComposition.applies(SAMPLED)
    assert "replace-one" in HiddenSampledComposition.applies(
        replace(SAMPLED, adjacency=Adjacency.ADD_OR_REMOVE)
    )
    assert "replace-one" in HiddenComposition.applies(
        replace(CYCLIC, adjacency=Adjacency.ADD_OR_REMOVE)
    )
    assert "replace-one" in HiddenLocal.applies(LocalGradient(CONVEX, 1.0, Adjacency.ADD_OR_REMOVE))


def test_composition_covers_what_the_others_refuse():
    clipped = replace(CYCLIC, loss=ClippedLoss(1.0), released=Released.EVERY_ITERATE)
    step = 2.0 / (10 * 2.0)
    assert HiddenComposition.guarantee(clipped).mu == pytest.approx(step * math.sqrt(3))
    assert HiddenComposition.guarantee(DESCENT).mu == pytest.approx(2 / 200 * math.sqrt(50))
    assert HiddenComposition.guarantee(SKIP).mu == pytest.approx(1.0)
    assert HiddenComposition.guarantee(ITERATION).mu == pytest.approx(1.0)
    assert HiddenLocal.guarantee(LocalGradient(CONVEX, 4.0)).mu == pytest.approx(0.5)


def test_random_batches_with_every_record_are_full_batches():
    whole = replace(SAMPLED, batch_size=100)
    step = 2.0 / (100 * 2.0)
    assert HiddenSampledComposition.guarantee(whole).mu == pytest.approx(step * math.sqrt(50))
    assert HiddenSampled.guarantee(whole).mu == HiddenFullBatch.guarantee(DESCENT).mu


def test_long_training_on_random_batches_stops_costing():
    """With strong convexity the window, not the number of steps, decides."""
    run = SubsampledSGD(
        loss=ConvexLoss(1.0, 0.26, 0.01),
        step_size=4.0,
        noise_std=0.05,
        records=32_561,
        batch_size=256,
        steps=10**5,
    )
    window, share = best_window(run)
    assert window < 1000
    assert 0.0 < share < 1.0
    short = HiddenSampled.guarantee(replace(run, steps=10**4)).epsilon(1e-6).upper
    long = HiddenSampled.guarantee(run).epsilon(1e-6).upper
    assert long == pytest.approx(short, rel=1e-2)
    assert long < 0.1 * HiddenSampledComposition.guarantee(run).epsilon(1e-6).upper


def test_gaussian_noise_in_the_general_renyi_theorem_is_the_hull():
    run = ContractiveIteration((0.5, 0.2, 0.0, 0.7), (0.95, 0.9, 1.0, 0.85), (1.0, 0.8, 0.6, 0.5))
    mu = HiddenHull.guarantee(run).mu
    assert HiddenShiftRenyi.guarantee(run).renyi(3.0).upper == pytest.approx(1.5 * mu**2, rel=1e-11)
    bounded = replace(run, diameter=0.01)
    mu = HiddenHull.guarantee(bounded).mu
    found = HiddenShiftRenyi.guarantee(bounded).renyi(3.0).upper
    assert found == pytest.approx(1.5 * mu**2, rel=1e-9)


def test_laplace_noise_is_amplified_by_iteration():
    once = ContractiveIteration((1.0,), (1.0,), (1.0,), noise=IterationNoise.LAPLACE)
    many = ContractiveIteration(
        (1.0, *[0.0] * 9), (1.0,) * 10, (1.0,) * 10, noise=IterationNoise.LAPLACE
    )
    alone = laplace_divergence(2.0, np.array([1.0, 0.1]))
    assert HiddenShiftRenyi.guarantee(once).renyi(2.0).upper == pytest.approx(alone[0], rel=1e-11)
    spread = HiddenShiftRenyi.guarantee(many).renyi(2.0).upper
    assert spread == pytest.approx(10 * alone[1], rel=1e-11)


SIZES = (1e-39, 1e-20, 1.0, 1e20, 1e39)


@pytest.mark.parametrize("unit", SIZES)
@pytest.mark.parametrize("noise", IterationNoise)
def test_an_iteration_costs_the_same_in_every_unit(unit, noise):
    """Squares of small noise were 0, and so was the epsilon."""
    run = ContractiveIteration((1.0, 0.0), (1.0, 0.5), (0.5, 0.5), 0.0, 1.0, noise)
    scales = (0.5 * unit, 0.5 * unit)
    same = replace(run, sensitivities=(unit, 0.0), noise_scales=scales, diameter=unit)
    expected = account(run).epsilon(1e-5).upper
    assert expected > 0.9
    assert account(same).epsilon(1e-5).upper == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("noise_std", SIZES)
def test_sizes_that_are_allowed_have_an_answer(size, noise_std):
    loss = ConvexLoss(size, 1.0)
    for run in (
        replace(DESCENT, loss=loss, noise_std=noise_std, diameter=size),
        replace(CYCLIC, loss=loss, noise_std=noise_std, diameter=size),
        replace(SAMPLED, loss=loss, noise_std=noise_std, diameter=size),
        ContractiveIteration((0.0, size), (1e39, 0.5), (size, noise_std), diameter=size),
    ):
        found = account(run).epsilon(1e-5)
        if size > 1e10 * noise_std:
            assert found.upper > 1e10


def test_shifts_absorb_every_push_whatever_is_wanted():
    wanted = np.array([math.nan, 0.0, 7.0, math.inf, 0.0])
    pushes, factors = np.array([1.0, 0.0, 2.0, 0.5, 0.1]), np.array([1.0, 0.5, 1.0, 2.0, 1.0])
    shifts, z = hull._absorbing(wanted, pushes, factors, 3.0), 3.0
    for push, factor, shift in zip(pushes, factors, shifts, strict=True):
        z = factor * z + push - shift
        assert z >= 0.0 <= shift
    assert z == 0.0 and shifts[2] == 4.0


def test_mixtures_of_runs():
    squares, weights = np.array([0.3, 0.1]), np.array([0.25, 0.5])
    better = renyi_of_mixture(np.array([3.0]), squares, weights)[0]
    divergences = np.append(1.5 * squares, 0.0)
    lemma = renyi_by_lemma_25(3.0, divergences, np.append(weights, 0.25))
    assert better <= lemma
    with pytest.raises(InvalidInput, match="Lemma 25"):
        renyi_by_lemma_25(30.0, divergences, np.append(weights, 0.25))
    large = renyi_of_mixture(np.array([1e3]), squares, weights)[0]
    assert large == pytest.approx(150.0 + math.log(0.25) / 999.0)


def test_noise_conventions():
    assert noise_std_from_multiplier(1.5, 2.0, 10) == pytest.approx(0.3)
    assert noise_std_from_relative(4.0, 2.0, 8) == 1.0  # the survey's 2 sigma L / B, L = 1
    assert noise_std_from_langevin(langevin_std(0.7, 0.05), 0.05) == pytest.approx(0.7)
    # equation (6) of the survey: s^2 = eta S^2 sigma^2 / (2 n^2)
    eta, sensitivity, sigma, n = 0.05, 2.0, 3.0, 40
    direct = noise_std_from_relative(sigma, sensitivity, n)
    assert langevin_std(direct, eta) ** 2 == pytest.approx(eta * (sensitivity * sigma / n) ** 2 / 2)


def test_langevin_bound_in_the_diffusions_own_convention():
    """a S^2/(lambda s^2 n^2) (1 - e^{-lambda eta K/2}) with s the diffusion's std."""
    s = langevin_std(START.noise_std, START.step_size)
    decay = -math.expm1(-0.5 * 0.1 * 50 / 2)
    printed = 2.0 * 2.0**2 / (0.5 * s**2 * 100**2) * decay
    assert HiddenLangevin.guarantee(START).renyi(2.0).upper == pytest.approx(printed, rel=1e-12)
    assert HiddenFullBatch.guarantee(START).renyi(2.0).upper < printed


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: ConvexLoss(1.0, 0.1, 0.5), "strong_convexity"),
        (lambda: ConvexLoss(0.0, 1.0), "lipschitz"),
        (lambda: replace(CYCLIC, index=11), "index 11"),
        (lambda: replace(CYCLIC, index=0), "index"),
        (lambda: replace(SAMPLED, batch_size=101), "cannot be drawn"),
        (lambda: replace(CYCLIC, noise_std=0.0), "noise_std"),
        (lambda: replace(CYCLIC, loss=1.0), "constants"),
        (lambda: replace(CYCLIC, diameter=math.nan), "diameter"),
        (lambda: ContractiveIteration((1.0,), (1.0, 1.0), (1.0,)), "one length"),
        (lambda: ContractiveIteration((), (), ()), "empty"),
        (lambda: ContractiveIteration(1.0, 1.0, 1.0), "for each step"),
        (lambda: ContractiveIteration((-1.0,), (1.0,), (1.0,)), "sensitivities"),
        (
            lambda: ContractiveIteration((1.0, 1e-80), (1.0, 1.0), (1.0, 1.0)),
            "1e-40",
        ),
    ],
)
def test_bad_descriptions_are_refused(build, text):
    with pytest.raises(InvalidInput, match=text):
        build()
