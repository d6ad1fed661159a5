"""The sampling theorems against numbers computed in 50 digits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.pairs import AllocationPair, SampledGaussianPair
from tightrope.guarantee.loss.renyi import renyi
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    NoisySGD,
    PoissonSampling,
)
from tightrope.theorems.bins import BallsInBinsRdpFs25, bins_divergences
from tightrope.theorems.limits import clt_mu
from tightrope.theorems.poisson_renyi import (
    ClosedFormTerm,
    LeadingTerm,
    PoissonGaussianRdpAbadi16,
    PoissonGaussianRdpClosedMtz19,
    PoissonGaussianRdpMtz19,
)

BOTH_WAYS: tuple[Any, ...] = ("remove", "add")
CASES = json.loads((Path(__file__).parents[2] / "golden" / "sampling.json").read_text())


def cases(name: str):
    chosen = [c for c in CASES if c["name"] == name]
    read = lambda d: {k: v if isinstance(v, bool) else float(v) for k, v in d.items()}  # noqa: E731
    return [(read(c["inputs"]), read(c["outputs"]), float(c["rtol"])) for c in chosen]


@pytest.mark.parametrize(("given", "told", "rtol"), cases("clt_mu"))
def test_clt(given, told, rtol) -> None:
    run = NoisySGD(PoissonSampling(given["q"]), given["sigma"], given["T"])
    assert clt_mu(run) == pytest.approx(told["poisson"], rel=1e-12)
    # golden for C_q(G_{1/sigma}); replacing moves the sum by two clip norms
    other = NoisySGD(
        FixedSizeSampling(given["q"]), 2 * given["sigma"], given["T"], Adjacency.REPLACE_ONE
    )
    assert clt_mu(other) == pytest.approx(told["symmetrised"], rel=1e-10)


@pytest.mark.parametrize(("given", "told", "rtol"), cases("rdp_mtz_closed_form"))
def test_closed_form_and_its_conditions(given, told, rtol) -> None:
    run = NoisySGD(PoissonSampling(given["q"]), given["sigma"], 1)
    term = ClosedFormTerm(given["q"], given["sigma"])
    holds = PoissonGaussianRdpClosedMtz19.applies(run) is None and bool(
        term.covers(np.array([given["alpha"]]))[0]
    )
    assert holds == told["conditions_hold"]
    if holds:
        assert term.upper(np.array([given["alpha"]]))[0] == pytest.approx(told["bound"], rel=rtol)


@pytest.mark.parametrize("noise", [4.0, 6.0, 20.0])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.01, 0.2])
def test_the_closed_form_is_above_the_exact_divergence_wherever_it_answers(
    rate: float, noise: float
) -> None:
    orders = np.geomspace(1.01, 3000.0, 40)
    found = ClosedFormTerm(rate, noise).upper(orders)
    answered = np.isfinite(found)
    exact = [renyi(SampledGaussianPair(rate, 1.0 / noise, way), orders)[0] for way in BOTH_WAYS]
    assert answered.any() and not answered.all()
    assert (np.max(exact, axis=0)[answered] <= found[answered]).all()


def test_the_closed_form_needs_much_noise() -> None:
    """With noise 0.5 both conditions on the order hold at 1.1, and 2 q^2 order / s^2 is too small:
    the condition on the noise is all that keeps the theorem from it."""
    term, order = ClosedFormTerm(1e-3, 0.5), np.array([1.1])
    assert term.covers(order)[0]
    assert term.upper(order)[0] < renyi(SampledGaussianPair(1e-3, 2.0, "remove"), order)[0][0]
    for noise in (0.5, 3.99):
        refusal = PoissonGaussianRdpClosedMtz19.applies(NoisySGD(PoissonSampling(1e-3), noise, 1))
        assert refusal is not None and "noise_multiplier >= 4" in str(refusal)
    assert (
        PoissonGaussianRdpClosedMtz19.applies(NoisySGD(PoissonSampling(0.21), 5.0, 1)) is not None
    )
    assert PoissonGaussianRdpClosedMtz19.applies(NoisySGD(PoissonSampling(0.2), 4.0, 1)) is None


@pytest.mark.parametrize(
    ("rate", "noise", "order", "covered"),
    [  # s^2 L/2 - 2 ln s and (s^2 L^2/2 - ln 5 - 2 ln s)/(L + ln(q order) + 1/(2 s^2)), by hand
        (0.2, 20.0, 9.0, True),  # 91.1 and 36.8
        (0.2, 20.0, 20.0, False),  # 40.7 and 2.04
        (1e-6, 4.0, 70.0, True),  # 73.9 and 15,972
        (1e-6, 4.0, 75.0, False),  # 73.3 and 16,076
    ],
)
def test_the_closed_form_answers_at_the_orders_of_both_its_conditions(
    rate: float, noise: float, order: float, covered: bool
) -> None:
    assert ClosedFormTerm(rate, noise).covers(np.array([order]))[0] == covered


def test_the_leading_term_is_refused_at_much_noise_and_at_little() -> None:
    """Lemma 3 needs noise >= 1 and rate * noise < 1/16."""
    for rate, noise in ((1e-3, 0.99), (0.02, 3.2), (0.2, 1.0)):
        refusal = PoissonGaussianRdpAbadi16.applies(NoisySGD(PoissonSampling(rate), noise, 1))
        assert refusal is not None and "noise_multiplier >= 1" in str(refusal)
    assert PoissonGaussianRdpAbadi16.applies(NoisySGD(PoissonSampling(0.02), 3.1, 1)) is None


@pytest.mark.parametrize(("given", "told", "rtol"), cases("rdp_abadi_lemma3"))
def test_leading_term_is_offered_only_where_it_holds(given, told, rtol) -> None:
    run = NoisySGD(PoissonSampling(given["q"]), given["sigma"], 1)
    term = LeadingTerm(given["q"], given["sigma"])
    whole = given["alpha"] == int(given["alpha"])
    holds = (
        PoissonGaussianRdpAbadi16.applies(run) is None
        and whole
        and given["alpha"] <= term.largest_order
    )
    assert holds == told["valid"]


@pytest.mark.parametrize("order", [2.0, 5.5])
@pytest.mark.parametrize("steps", [1, 40])
def test_renyi_divergences_of_sampled_steps_add_up(order: float, steps: int) -> None:
    """One step by quadrature of E_Q (1 - q + q e^(x/s^2 - 1/(2 s^2)))^a."""
    rate, noise = 0.1, 1.3
    x = np.linspace(-12.0 * noise, order + 12.0 * noise, 200_001)
    law = np.exp(-0.5 * (x / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
    ratio = 1 - rate + rate * np.exp((x - 0.5) / noise**2)
    moments = [np.sum(law * ratio**power) * (x[1] - x[0]) for power in (order, 1 - order)]
    truth = steps * math.log(max(moments)) / (order - 1)
    found = PoissonGaussianRdpMtz19.guarantee(NoisySGD(PoissonSampling(rate), noise, steps))
    assert found.renyi(order).upper == pytest.approx(truth, rel=1e-8)


@pytest.mark.parametrize(("given", "told", "rtol"), cases("random_allocation_rdp_remove"))
def test_balls_in_bins_divergence(given, told, rtol) -> None:
    order = int(given["alpha"])
    removed, _ = bins_divergences(int(given["t"]), 1.0 / given["sigma"], np.array([order]))
    assert told["rdp"] * (1 - 1e-15) <= removed[0] <= told["rdp"] * (1 + rtol)


@pytest.mark.parametrize(("given", "told", "rtol"), cases("random_allocation_transform")[:1])
def test_balls_in_bins_lie_below_the_bound_of_feldman_and_shenfeld(given, told, rtol) -> None:
    """arXiv:2502.08202, Theorem 4.1: factor times the Poisson profile at another epsilon."""
    batches = int(given["t"])
    for direction in ("remove", "add"):
        inner, factor = told[f"eps_poisson_{direction}"], told[f"factor_{direction}"]
        poisson = ((SampledGaussianPair(1.0 / batches, 1.0, direction), batches),)
        exact = profile.delta(((AllocationPair(batches, 1.0, direction), 1),), given["eps"])
        assert 0.0 < exact.upper <= factor * profile.delta(poisson, inner).upper


def test_balls_in_bins_is_not_dominated_by_poisson() -> None:
    """t = 2, noise 1, eps = 0.5: exactly 0.1492, Poisson 0.1479."""
    bins = account(NoisySGD(BallsInBinsSampling(2), 1.0, 2)).delta(0.5).upper
    poisson = account(NoisySGD(PoissonSampling(0.5), 1.0, 2)).delta(0.5).upper
    assert bins >= 0.1491 > poisson


def test_renyi_and_profile_of_balls_in_bins_agree() -> None:
    run = NoisySGD(BallsInBinsSampling(20), 1.0, 20)
    bound = BallsInBinsRdpFs25.guarantee(run)
    assert isinstance(bound, RenyiGuarantee)
    assert math.isfinite(bound.epsilon(1e-5).upper)
    assert account(run).epsilon(1e-5).upper <= bound.epsilon(1e-5).upper


def test_epochs_of_balls_in_bins_are_more_private_than_poisson_here() -> None:
    """The MNIST setting: 2.549 by Renyi divergences, 2.34052 exactly, below Poisson's 2.38383."""
    run = NoisySGD(BallsInBinsSampling(234), 1.1, 60 * 234)
    exact = account(run).epsilon(1e-5)
    assert exact.upper == pytest.approx(2.34052076, abs=1e-8)
    assert exact.relative_width < 1e-6
    poisson = account(NoisySGD(PoissonSampling(1 / 234), 1.1, 60 * 234)).epsilon(1e-5).lower
    assert poisson == pytest.approx(2.3838, abs=2e-4)


@pytest.mark.parametrize("noise", [0.03, 0.28, 1e6])
@pytest.mark.parametrize("epochs", [1, 12])
def test_balls_in_bins_are_never_worse_than_one_step_an_epoch(noise, epochs) -> None:
    bins = account(NoisySGD(BallsInBinsSampling(50), noise, 50 * epochs)).epsilon(1e-6)
    once = account(NoisySGD(CyclicSampling(50), noise, 50 * epochs)).epsilon(1e-6)
    assert bins.upper <= once.upper * (1 + 1e-9)


def test_a_replaced_record_in_balls_in_bins_is_a_group_of_two() -> None:
    run = NoisySGD(BallsInBinsSampling(100), 1.0, 100)
    alone = account(run)
    both = account(replace(run, adjacency=Adjacency.REPLACE_ONE))
    assert alone.delta(2.0).upper < both.delta(2.0).upper < alone.delta(0.5).upper
    assert both.delta(2.0).upper == pytest.approx(
        min(f.outcome.as_replace_one().delta(2.0).upper for f in alone.certified), rel=1e-9
    )
