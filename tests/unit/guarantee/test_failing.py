"""Renyi releases and (epsilon, delta) releases in one budget."""

from __future__ import annotations

import math

import pytest

from tightrope import (
    DeclaredApproxDP,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    NoisySGD,
    PoissonSampling,
    Sequence,
    account,
)
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.guarantee.kinds.stopped import FailingGuarantee

ZCDP = RenyiGuarantee(RenyiCurve.of(LinearTerm(0.05)))


def test_failures_are_kept_apart() -> None:
    composed = compose([ZCDP, ApproxGuarantee(0.3, 1e-6)], [1, 4])
    pure = compose([ZCDP, ApproxGuarantee(0.3)], [1, 4])
    assert isinstance(composed, FailingGuarantee)
    assert composed.failure == pytest.approx(4e-6, rel=1e-5)
    for epsilon in (0.0, 0.5, 2.0):
        inner = pure.delta(epsilon).upper
        assert composed.delta(epsilon).upper == pytest.approx(inner + 4e-6 * (1 - inner), rel=1e-5)
    assert composed.epsilon(1e-5).upper > pure.epsilon(1e-5).upper
    assert composed.epsilon(3e-6).upper == math.inf
    assert composed.epsilon(1.0).upper == 0.0
    assert composed.renyi(2.0).upper == math.inf


def test_order_and_nesting_do_not_matter() -> None:
    approx, other = ApproxGuarantee(0.3, 1e-6), ApproxGuarantee(0.1, 1e-7)
    flat = compose([ZCDP, approx, other]).epsilon(1e-5).upper
    assert ((ZCDP @ approx) @ other).epsilon(1e-5).upper == pytest.approx(flat, rel=1e-9)
    assert (other @ (approx @ ZCDP)).epsilon(1e-5).upper == pytest.approx(flat, rel=1e-9)


def test_never_below_the_composition_by_pairs() -> None:
    """Gaussian noise is zCDP: its exact composition with an (epsilon, delta) release is known."""
    approx = DeclaredApproxDP(0.2, 1e-6)
    exact = account(Sequence((GaussianMechanism(3.0), approx))).epsilon(1e-5)
    renyi = account(Sequence((DeclaredZeroConcentrated(1 / 18), approx))).epsilon(1e-5)
    assert exact.upper <= renyi.upper <= 1.3 * exact.upper


def test_every_kind_of_release_in_one_budget() -> None:
    run = NoisySGD(PoissonSampling(0.01), 1.0, 100)
    parts = (run, DeclaredZeroConcentrated(0.01), DeclaredApproxDP(0.1, 1e-7))
    discrete = DiscreteGaussianMechanism(3.0)
    fewer, all_of_them = (account(Sequence(p)) for p in (parts, (*parts, discrete)))
    assert fewer.epsilon(1e-5).upper < all_of_them.epsilon(1e-5).upper < 3.0
    # the discrete Gaussian is as good as 1/(2 sigma^2)-zCDP (Canonne, Kamath, Steinke 2020)
    same = account(Sequence((*parts, DeclaredZeroConcentrated(1 / 18))))
    assert all_of_them.epsilon(1e-5).upper <= same.epsilon(1e-5).upper * (1 + 1e-9)
