"""Last-iterate theorems against mpmath."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from tightrope.numerics.hull import least_cost, least_cost_shifts, least_window_cost
from tightrope.process.convex import ClippedLoss, ConvexLoss, CyclicSGD, NoisyGradientDescent
from tightrope.theorems.last_iterate.bounded import (
    ContractionProfile,
    HiddenHockeyStick,
    gaussian_divergence,
    laplace_divergence,
    projected_squared_mu,
    range_ratio,
)
from tightrope.theorems.last_iterate.descent import cyclic_squared_mu, full_batch_squared_mu
from tightrope.theorems.last_iterate.langevin import RecursionTerm
from tightrope.theorems.last_iterate.sampled import StopProfile, StopTerm, renyi_of_mixture
from tightrope.theorems.last_iterate.steps import step_mu
from tightrope_reproduce.formulas.langevin import rho
from tightrope_reproduce.formulas.last_iterates import (
    corrected_stop_renyi,
    printed_shifts,
    printed_stop_renyi,
    renyi_by_lemma_25,
    rho_log_sobolev,
    skip_renyi,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "hidden.json").read_text())


def cases(*names):
    return pytest.mark.parametrize(
        "case", [c for c in GOLDEN if c["name"] in names], ids=lambda c: c["name"]
    )


def numbers(case):
    return {key: float(value) for key, value in case["inputs"].items()}


def expected(case, key):
    return pytest.approx(float(case["outputs"][key]), rel=case["rtol"])


@cases("pnsgd_index", "pnmsgd_multi_epoch", "fixed_batch_004", "noisycgd_strongly_convex_gdp")
def test_cyclic_closed_form_is_the_hull(case):
    v = numbers(case)
    batches, epochs, position = int(v["batches"]), int(v["epochs"]), int(v["position"])
    found = cyclic_squared_mu(v["factor"], batches, epochs, position)
    assert found == expected(case, "squared_mu")
    uses = np.zeros(batches * epochs)
    uses[position - 1 :: batches] = 1.0
    assert least_cost(uses, 0 * uses + v["factor"], 0 * uses + 1.0) == expected(case, "squared_mu")


@pytest.mark.parametrize(("batches", "epochs"), [(1, 1), (8, 1), (5, 5), (7, 3)])
def test_the_papers_shifts_are_the_hull(batches, epochs):
    for position in range(1, batches + 1):
        uses = np.zeros(batches * epochs)
        uses[position - 1 :: batches] = 1.0
        best = least_cost_shifts(uses, np.ones(len(uses)), np.ones(len(uses)))
        printed = printed_shifts(batches, epochs, position)
        assert best == pytest.approx(printed, abs=1e-13)


@cases("noisygd_strongly_convex_gdp")
def test_full_batch_closed_form(case):
    v = numbers(case)
    assert full_batch_squared_mu(v["factor"], int(v["epochs"])) == expected(case, "squared_mu")


@cases("noisygd_projected_gdp")
def test_projected_full_batch(case):
    v = numbers(case)
    run = NoisyGradientDescent(
        loss=ConvexLoss(v["g"] * 5, 1.0),
        step_size=v["eta"],
        noise_std=v["sigma"],
        records=10,
        steps=int(v["steps"]),
        diameter=v["diameter"],
    )
    assert projected_squared_mu(run) ** 0.5 == expected(case, "mu")
    pushes = np.full(run.steps, v["eta"] * v["g"])
    ones = np.ones(run.steps)
    cost = least_window_cost(pushes, ones, v["eta"] * v["sigma"] * ones, v["diameter"]).cost
    assert cost**0.5 == expected(case, "mu")


@cases("skip_pnsgd_index")
def test_skipped_pass_renyi(case):
    v = numbers(case)
    found = skip_renyi(v["order"], int(v["records"]), int(v["index"]), v["step"])
    assert found == expected(case, "mixture")
    assert found <= float(case["outputs"]["theorem24"]) * (1 + 1e-12)


@cases("stop_pnsgd")
def test_stopped_pass_renyi(case):
    v = numbers(case)
    records, order = int(v["records"]), v["order"]
    exact = StopTerm(v["step"], 1.0, records, exact_up_to=records)
    assert exact.upper(np.array([order]))[0] == pytest.approx(
        float(case["outputs"]["log_mean_exp"]), rel=3e-12
    )
    grouped = StopTerm(v["step"], 1.0, records).upper(np.array([order]))[0]
    assert exact.upper(np.array([order]))[0] <= grouped * (1 + 1e-13)
    assert grouped <= 1.002 * exact.upper(np.array([order]))[0]
    assert corrected_stop_renyi(order, records, v["step"]) == expected(case, "corrected")
    assert printed_stop_renyi(order, records, v["step"]) == expected(case, "printed")


@cases("stop_profile")
def test_stopped_pass_profile(case):
    v = numbers(case)
    profile = StopProfile(v["step"], 1.0, int(v["records"]))
    assert profile(v["epsilon"]) == expected(case, "delta")
    assert profile(v["epsilon"]) >= float(case["outputs"]["delta"]) * (1 - 1e-15)


@cases("thm_VII1")
def test_langevin(case):
    v = numbers(case)
    found = rho(1.0 / v["sigma"], v["eta_lambda"], int(v["steps"]))
    assert v["order"] * found == expected(case, "langevin")
    # the log-Sobolev form: S = n = 1, eta noise^2/2 = s^2, c = lambda/(2 s^2), here with eta = 1/2
    eta, deviation = 0.5, math.sqrt(0.25 * v["sigma"] ** 2)
    constant = v["eta_lambda"] / eta / (2.0 * deviation**2)
    general = rho_log_sobolev(1.0, 1, constant, deviation, eta, int(v["steps"]))
    assert v["order"] * general == expected(case, "langevin")
    exact = full_batch_squared_mu(1.0 - v["eta_lambda"], int(v["steps"]))
    assert v["order"] * exact / (2 * v["sigma"] ** 2) == expected(case, "exact")


@cases("thm_VII2")
def test_langevin_recursion(case):
    v = numbers(case)
    term = RecursionTerm(v["rate"], 1.0 / v["sigma"], 1.0 - v["eta_lambda"], int(v["steps"]))
    order = np.array([v["order"]])
    found = term.log_moments(order)[0] / (v["order"] - 1.0)
    assert found == expected(case, "renyi")
    assert found < term.upper(order)[0] < found * (1 + 1e-10)


@cases("hockey_stick_contraction_pnsgd")
@pytest.mark.parametrize("kind", ["convex", "clipped"])
def test_hockey_stick_contraction(case, kind):
    v = numbers(case)
    loss = ConvexLoss(v["lipschitz"], 1.0) if kind == "convex" else ClippedLoss(v["lipschitz"])
    later = int(v["later_steps"])
    run = CyclicSGD(
        loss=loss,
        step_size=v["eta"],
        noise_std=v["sigma"],
        batch_size=1,
        batches_per_epoch=later + 1,
        index=1,
        diameter=v["diameter"],
    )
    ratio = range_ratio(run)
    one_use = 2 * v["lipschitz"] / v["sigma"]
    single = ContractionProfile((one_use,), (later,), ratio)
    assert single(v["epsilon"]) == expected(case, kind)
    best = HiddenHockeyStick.guarantee(run).delta(v["epsilon"]).upper
    assert best <= single(v["epsilon"]) * (1 + 1e-11)


@pytest.mark.parametrize("order", [1.5, 3.0, 20.0])
@pytest.mark.parametrize("ratio", [0.3, 2.0])
def test_gaussian_shift_divergence(order, ratio):
    """The magnitude R_a(N(0, 1), ratio): no smaller shift has a larger divergence."""
    x = np.linspace(-12.0, 12.0 + order * ratio, 100_001)
    step = (x[1] - x[0]) / math.sqrt(2 * math.pi)
    shifts = ratio * np.array([1.0, 0.6, -1.0])
    moments = [-0.5 * order * (x - y) ** 2 - 0.5 * (1 - order) * x**2 for y in shifts[:2]]
    truth = [(logsumexp(m) + math.log(step)) / (order - 1) for m in moments]
    found = gaussian_divergence(order, shifts)
    assert found[:2] == pytest.approx(np.array(truth), rel=1e-9)
    assert found.max() == found[0] == found[2]


@pytest.mark.parametrize(
    ("order", "divergences", "weights", "bound"),
    [  # (1 + c) sum p_i D_i, c = (order - 1) max D_i
        (3.0, (0.1, 0.2), (0.5, 0.5), 1.4 * 0.15),
        (2.0, (0.0, 1.0), (0.9, 0.1), 2.0 * 0.1),
        (11.0, (0.05, 0.01, 0.1), (0.2, 0.3, 0.5), 2.0 * 0.063),
    ],
)
def test_weak_convexity_of_the_renyi_divergence(order, divergences, weights, bound):
    """Lemma 25, and what it bounds: ln(sum p_i e^((a-1) D_i))/(a-1), more than the mean of D_i."""
    found = renyi_by_lemma_25(order, divergences, weights)
    assert found == pytest.approx(bound)
    mean = np.exp((order - 1) * np.array(divergences)) @ weights
    exact = math.log(mean) / (order - 1)
    assert np.dot(divergences, weights) < exact <= found
    squared_mus = 2 * np.array(divergences) / order
    mixture = renyi_of_mixture(np.array([order]), squared_mus, np.array(weights))
    assert mixture[0] == pytest.approx(exact)


@pytest.mark.parametrize(("batch", "share"), [(1, 1.0), (4, 0.25)])
def test_a_record_moves_the_mean_gradient_of_its_batch_by_twice_its_bound(batch, share):
    """Propositions A.1 and A.2 of the survey: two opposite gradients attain it."""
    run = CyclicSGD(
        loss=ConvexLoss(0.7, 1.0),
        step_size=0.5,
        noise_std=3.0,
        batch_size=batch,
        batches_per_epoch=2,
    )
    gradients = np.zeros((batch, 2))
    other = gradients.copy()
    gradients[0], other[0] = (0.7, 0.0), (-0.7, 0.0)
    moved = np.linalg.norm(gradients.mean(axis=0) - other.mean(axis=0))
    assert moved == pytest.approx(2 * 0.7 * share)
    assert step_mu(run) == pytest.approx(moved / run.noise_std)


@cases("laplace_shift")
def test_laplace_shift_divergence(case):
    v = numbers(case)
    found = laplace_divergence(v["order"], np.array([v["ratio"]]))[0]
    assert found == expected(case, "renyi")
