"""Theorem 7: moments in closed form, the limit where it is known, and its true error."""

from __future__ import annotations

import math

import mpmath as mp
import pytest

from tightrope.accounting import account
from tightrope.errors import DoesNotApply
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.loss.pairs import (
    DiscretePair,
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    approx_pair,
    randomized_response_pair,
)
from tightrope.process import (
    DeclaredApproxDP,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    LaplaceMechanism,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    Repeated,
    Sequence,
)
from tightrope.theorems.limits import AsymmetricCltBdls19, clt_mu, limit_mu, moments


@pytest.mark.parametrize("mu", [0.01, 0.7, 4.0])
def test_gaussian_moments(mu: float) -> None:
    found = moments(GaussianPair(mu))
    assert found.mean_p == pytest.approx(mu * mu / 2, rel=1e-9)
    assert found.mean_q == pytest.approx(-mu * mu / 2, rel=1e-9)
    assert found.variance_p == pytest.approx(mu * mu, rel=1e-9)
    assert limit_mu([(found, 9)]) == pytest.approx(3 * mu, rel=1e-9)


@pytest.mark.parametrize("scale", [0.2, 2.0, 50.0])
def test_laplace_mean_is_its_divergence(scale: float) -> None:
    found = moments(LaplacePair(scale))
    assert found.mean_p == pytest.approx(1 / scale - 1 + math.exp(-1 / scale), rel=1e-9)
    assert found.mean_q == -found.mean_p


def test_randomized_response_moments() -> None:
    found, truth = moments(randomized_response_pair(1.2)), 1 / (1 + math.exp(-1.2))
    assert found.mean_p == pytest.approx(1.2 * (2 * truth - 1))
    assert found.variance_q == pytest.approx(1.44 * 4 * truth * (1 - truth))


@pytest.mark.parametrize("rate", [1e-5, 0.01, 0.7])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_sampled_moments_against_quadrature(rate: float, direction: str) -> None:
    mu = 1.3
    found = moments(SampledGaussianPair(rate, mu, direction))  # type: ignore[arg-type]

    def loss(s: mp.mpf) -> mp.mpf:
        return mp.log1p(rate * mp.expm1(mu * s - mp.mpf(mu) ** 2 / 2))

    nodes = [-12, -4, 0, 4, 8, 16]
    plain = [mp.quad(lambda s, k=k: mp.npdf(s) * loss(s) ** k, nodes) for k in (1, 2)]
    mixed = [
        mp.quad(lambda s, k=k: mp.npdf(s) * mp.exp(loss(s)) * loss(s) ** k, nodes) for k in (1, 2)
    ]
    if direction == "add":  # P and Q change places, and the sign of the loss
        plain, mixed = [-mixed[0], mixed[1]], [-plain[0], plain[1]]
    assert found.mean_q == pytest.approx(float(plain[0]), rel=1e-7)
    assert found.mean_p == pytest.approx(float(mixed[0]), rel=1e-7)
    assert found.variance_q == pytest.approx(float(plain[1] - plain[0] ** 2), rel=1e-7)
    assert found.variance_p == pytest.approx(float(mixed[1] - mixed[0] ** 2), rel=1e-7)


def test_an_atom_at_0_carries_no_loss() -> None:
    """Symmetric pair: both laws mirror each other, and small rates make small losses."""
    found = moments(FixedSizeGaussianPair(0.1, 1.0))
    assert found.mean_q == pytest.approx(-found.mean_p, rel=1e-9)
    assert found.variance_p == pytest.approx(found.variance_q, rel=1e-9)
    assert found.variance_p == pytest.approx(2 * found.mean_p, rel=0.05)


def test_infinite_losses_have_no_moments() -> None:
    assert moments(approx_pair(0.1, 1e-6)).mean_p == math.inf
    assert moments(DiscretePair((0.0,), (0.5,), 0.5)).variance_p == math.inf


@pytest.mark.parametrize(
    ("process", "within"),
    [
        (Repeated(LaplaceMechanism(20.0), 1000), 0.02),
        (Repeated(DeclaredApproxDP(0.05), 400), 0.03),
        (
            Sequence(
                (
                    NoisySGD(PoissonSampling(0.01), 2.0, 2000),
                    Repeated(LaplaceMechanism(50.0), 300),
                    DiscreteGaussianMechanism(30.0),
                )
            ),
            0.04,
        ),
    ],
    ids=["laplace", "declared", "mixed"],
)
def test_many_small_releases_are_near_the_limit(process, within: float) -> None:
    """And the account says how near, on the certified number's own terms."""
    result = account(process)
    finding = next(f for f in result.findings if f.key == "clt-any")
    assert isinstance(finding.outcome, Estimate)
    truth = result.epsilon(1e-4)
    error = result.estimate_error(finding, 1e-4)
    assert error is not None or result._exact is None
    assert abs(finding.outcome.epsilon(1e-4) / truth.upper - 1) < within
    if error is not None:
        assert finding.outcome.epsilon(1e-4) - error.lower == pytest.approx(truth.upper)


def test_the_error_of_the_gaussian_limit_is_told() -> None:
    """sigma = 0.7, 45 epochs: 5.07 where the truth is 5.64."""
    result = account(NoisySGD(PoissonSampling(256 / 60000), 0.7, 10547))
    finding = next(f for f in result.findings if f.key == "clt")
    error = result.estimate_error(finding, 1e-5)
    assert error is not None
    assert error.upper == pytest.approx(5.066191 - 5.639683, abs=1e-5)
    assert result.estimate_error(result.certified[0], 1e-5) is None


def test_refusals() -> None:
    gaussian = NoisySGD(PoissonSampling(0.1), 1.0, 10)
    assert "Theorem 5" in (AsymmetricCltBdls19.applies(gaussian) or "")
    unknown = Sequence((gaussian, DeclaredZeroConcentrated(0.1)))
    assert "DeclaredZeroConcentrated" in (AsymmetricCltBdls19.applies(unknown) or "")
    endless = Sequence((gaussian, DeclaredApproxDP(0.1, 1e-6)))
    assert "positive delta" in (AsymmetricCltBdls19.applies(endless) or "")
    with pytest.raises(DoesNotApply):
        AsymmetricCltBdls19.guarantee(endless)


def test_scheduled_noise_adds_up_like_its_parts() -> None:
    schedule = NoiseSchedule(PoissonSampling(0.01), (1.0,) * 30 + (2.0,) * 70)
    parts = [clt_mu(NoisySGD(PoissonSampling(0.01), s, n)) for s, n in ((1, 30), (2, 70))]
    assert clt_mu(schedule) == pytest.approx(math.hypot(*parts), rel=1e-14)


@pytest.mark.filterwarnings("error")
def test_losses_whose_squares_overflow_have_no_limit() -> None:
    """A warning of NumPy reached the caller."""
    found = account(LaplaceMechanism(1e-300))
    assert not found.estimates and found.epsilon(1e-5).upper >= 1e300 * (1 - 1e-9)
