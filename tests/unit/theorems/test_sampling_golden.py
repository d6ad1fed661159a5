"""The sampling theorems against numbers computed in 50 digits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.pair import AllocationPair, SampledGaussianPair
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    NoisySGD,
    PoissonSampling,
)
from tightrope.theorems import balls_in_bins_rdp_fs25, sampled_gaussian_clt_bdls19
from tightrope.theorems.poisson_gaussian_rdp_abadi16 import LeadingTerm
from tightrope.theorems.poisson_gaussian_rdp_abadi16 import applies as abadi_applies
from tightrope.theorems.poisson_gaussian_rdp_closed_mtz19 import ClosedFormTerm
from tightrope.theorems.poisson_gaussian_rdp_closed_mtz19 import applies as mtz_applies

CASES = json.loads((Path(__file__).parents[2] / "golden" / "sampling.json").read_text())


def cases(name: str):
    chosen = [c for c in CASES if c["name"] == name]
    read = lambda d: {k: v if isinstance(v, bool) else float(v) for k, v in d.items()}  # noqa: E731
    return [(read(c["inputs"]), read(c["outputs"]), float(c["rtol"])) for c in chosen]


@pytest.mark.parametrize(("given", "told", "rtol"), cases("clt_mu"))
def test_clt(given, told, rtol) -> None:
    run = NoisySGD(PoissonSampling(given["q"]), given["sigma"], given["T"])
    assert sampled_gaussian_clt_bdls19.mu(run) == pytest.approx(told["poisson"], rel=1e-12)
    # golden for C_q(G_{1/sigma}); replacing moves the sum by two clip norms
    other = NoisySGD(
        FixedSizeSampling(given["q"]), 2 * given["sigma"], given["T"], Adjacency.REPLACE_ONE
    )
    assert sampled_gaussian_clt_bdls19.mu(other) == pytest.approx(told["symmetrised"], rel=1e-10)


@pytest.mark.parametrize(("given", "told", "rtol"), cases("rdp_mtz_closed_form"))
def test_closed_form_and_its_conditions(given, told, rtol) -> None:
    run = NoisySGD(PoissonSampling(given["q"]), given["sigma"], 1)
    term = ClosedFormTerm(given["q"], given["sigma"])
    holds = mtz_applies(run) is None and bool(term.covers(np.array([given["alpha"]]))[0])
    assert holds == told["conditions_hold"]
    if holds:
        assert term.upper(np.array([given["alpha"]]))[0] == pytest.approx(told["bound"], rel=rtol)


@pytest.mark.parametrize(("given", "told", "rtol"), cases("rdp_abadi_lemma3"))
def test_leading_term_is_offered_only_where_it_holds(given, told, rtol) -> None:
    run = NoisySGD(PoissonSampling(given["q"]), given["sigma"], 1)
    term = LeadingTerm(given["q"], given["sigma"])
    whole = given["alpha"] == int(given["alpha"])
    holds = abadi_applies(run) is None and whole and given["alpha"] <= term.largest_order
    assert holds == told["valid"]


@pytest.mark.parametrize(("given", "told", "rtol"), cases("random_allocation_rdp_remove"))
def test_balls_in_bins_divergence(given, told, rtol) -> None:
    order = int(given["alpha"])
    removed, _ = balls_in_bins_rdp_fs25.divergences(
        int(given["t"]), 1.0 / given["sigma"], np.array([order])
    )
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
    renyi = balls_in_bins_rdp_fs25.guarantee(run)
    assert isinstance(renyi, RenyiGuarantee)
    assert math.isfinite(renyi.epsilon(1e-5).upper)
    assert account(run).epsilon(1e-5).upper <= renyi.epsilon(1e-5).upper


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
