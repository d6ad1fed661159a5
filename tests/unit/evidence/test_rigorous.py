"""Ball arithmetic: pieces against mpmath, proofs against the accountant, refusals."""

from __future__ import annotations

import json
from typing import Any

import mpmath
import numpy as np
import pytest

flint = pytest.importorskip("flint", reason="python-flint is the extra [rigorous]")

from flint import acb, arb  # noqa: E402

from tightrope import (  # noqa: E402
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    account,
)
from tightrope.errors import InvalidInput, NotCertified  # noqa: E402
from tightrope.evidence.certificate import certify, chain_of  # noqa: E402
from tightrope.evidence.rigorous import prove_epsilon, reprove  # noqa: E402
from tightrope.evidence.rigorous_law import SampledStep  # noqa: E402
from tightrope.evidence.rigorous_profile import SIZES, Composition, Line  # noqa: E402
from tightrope.process import Adjacency, Sequence  # noqa: E402

SMALL = NoisySGD(PoissonSampling(0.5), noise_multiplier=5.0, steps=100)
MNIST = NoisySGD(PoissonSampling(256 / 60000), noise_multiplier=1.1, steps=14062)


def step(sign: int = 1, rate: float = 0.1, mu: float = 0.8) -> SampledStep:
    return SampledStep(arb(rate), arb(mu), sign)


def slow_transform(z: complex, sign: int, rate: float = 0.1, mu: float = 0.8) -> Any:
    power = 1 + mpmath.mpmathify(z) if sign > 0 else -mpmath.mpmathify(z)

    def integrand(s: Any) -> Any:
        return (1 + rate * mpmath.expm1(mu * s - mu * mu / 2)) ** power * mpmath.npdf(s)

    return mpmath.quad(integrand, np.arange(-14, 22, 2).tolist())


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("z", [0.0, 3.0, 5 + 40j])
def test_the_transform_contains_the_integral(z: complex, sign: int) -> None:
    with flint.ctx.workprec(96):
        ball = step(sign).transform(acb(z))
    expected = slow_transform(z, sign)
    assert float(ball.rad()) < 1e-20
    assert abs(complex(ball.real.mid(), ball.imag.mid()) - complex(expected)) < 1e-13


@pytest.mark.parametrize("sign", [1, -1])
def test_decay_bounds_hold(sign: int) -> None:
    out, v = step(sign).far(arb(3))
    mass = abs(slow_transform(3.0, sign))
    for y in (5.0, 60.0, 400.0):
        true = abs(slow_transform(3 + 1j * y, sign)) / mass
        assert float(true) <= float(out + v / y)
    assert float(out) < 0.3


@pytest.mark.parametrize("sign", [1, -1])
def test_the_spread_is_a_close_upper_bound(sign: int) -> None:
    law = Composition(((step(sign), 1),), arb(0))
    _, mean, variance = law.rough(3.0)
    bound = float(step(sign).spread(arb(3), mean, 0.1))
    assert variance**0.5 <= bound <= 1.01 * variance**0.5


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", SIZES[:2])
def test_the_line_bounds_delta_from_above(sign: int, size: tuple[float, float]) -> None:
    """Whatever its period and reach; compared with the accountant's proved interval."""
    from tightrope.guarantee.loss.contour import log_delta
    from tightrope.guarantee.loss.pair import SampledGaussianPair

    direction: Any = "remove" if sign > 0 else "add"
    exact = log_delta(((SampledGaussianPair(0.5, 0.2, direction), 100),), 3.0)
    law = Composition(((step(sign, 0.5, 0.2), 100),), arb(0))
    with flint.ctx.workprec(128):
        bound = float(Line(law, 3.0, size).delta_upper(arb(3)))
    assert bound >= np.exp(exact.lower) * (1 - 1e-12)
    assert bound <= np.exp(exact.upper) * (1 + 1e-8)


@pytest.mark.parametrize(
    "process",
    [
        GaussianMechanism(2.0),
        NoisySGD(FullBatch(), 8.0, 100, Adjacency.REPLACE_ONE),
        SMALL,
        Sequence((SMALL, GaussianMechanism(3.0))),
    ],
    ids=["gaussian", "full batch", "sampled", "both"],
)
def test_the_accountant_s_epsilon_is_proved_and_a_smaller_one_is_not(process: Any) -> None:
    epsilon = account(process).epsilon(1e-5).upper
    proof = prove_epsilon(process, epsilon, 1e-5)
    assert proof.slack is not None and proof.slack <= 1e-9
    if not isinstance(process, Sequence):
        assert not prove_epsilon(process, epsilon * (1 - 1e-5), 1e-5).holds


@pytest.mark.slow
def test_the_mnist_setting_is_proved() -> None:
    proof = prove_epsilon(MNIST, account(MNIST).epsilon(1e-5).upper, 1e-5)
    assert proof.slack is not None and proof.slack <= 1e-11


def test_a_certificate_is_proved_or_not() -> None:
    good = json.loads(json.dumps(certify(GaussianMechanism(2.0))))
    assert reprove(good).holds
    for row in good["claims"]["epsilon"]:
        row["upper"] *= 0.999
    forged = {**good, "chain": chain_of(good)}
    check = reprove(forged)
    assert not check.holds and "could not be proved" in check.said


@pytest.mark.parametrize("section", ["process", "setting", "claims"])
def test_a_broken_certificate_is_not_proved(section: str) -> None:
    certificate = certify(GaussianMechanism(2.0))
    assert not reprove({**certificate, section: None}).holds
    assert not reprove({k: v for k, v in certificate.items() if k != section}).holds


@pytest.mark.parametrize(
    "process",
    [
        LaplaceMechanism(1.0),
        GaussianMechanism(0.0),
        NoisySGD(FixedSizeSampling(0.1), 1.0, 10, Adjacency.REPLACE_ONE),
        NoisySGD(PoissonSampling(0.1), 1.0, 10, Adjacency.REPLACE_ONE),
    ],
    ids=repr,
)
def test_other_processes_are_refused_with_a_reason(process: Any) -> None:
    with pytest.raises(NotCertified, match="no proof in balls"):
        prove_epsilon(process, 1.0, 1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (-1.0, 0.1)])
def test_trivial_claims_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInput, match="Balls prove"):
        prove_epsilon(GaussianMechanism(1.0), epsilon, delta)


def test_no_steps_need_no_proof() -> None:
    assert prove_epsilon(NoisySGD(PoissonSampling(0.1), 1.0, 0), 0.1, 1e-5).slack == 0.0
