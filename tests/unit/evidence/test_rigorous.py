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
from tightrope.evidence.ball_arithmetic import (  # noqa: E402
    Composition,
    Reach,
    RigorousLine,
    SampledStep,
    Tail,
)
from tightrope.evidence.certificate import certify, chain_of  # noqa: E402
from tightrope.evidence.rigorous import prove_epsilon, reprove  # noqa: E402
from tightrope.process import Adjacency, Sequence  # noqa: E402

SMALL = NoisySGD(PoissonSampling(0.5), noise_multiplier=5.0, steps=100)


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


@pytest.mark.parametrize("low", [0, -1, -3])
@pytest.mark.parametrize("sign", [1, -1])
def test_decay_bounds_hold(sign: int, low: int) -> None:
    out, v = step(sign).far(arb(3), low)
    mass = abs(slow_transform(3.0, sign))
    for y in (5.0, 60.0, 400.0):
        true = abs(slow_transform(3 + 1j * y, sign)) / mass
        assert float(true) <= float(out + v / y)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_wide_ball_contains_the_transform(sign: int) -> None:
    ball = step(sign).transform(acb(3, 200), 1e-3)
    sharp = step(sign).transform(acb(3, 200))
    assert ball.real.overlaps(sharp.real) and ball.imag.overlaps(sharp.imag)
    assert 1e-6 < float(ball.real.rad()) < 0.1


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_the_sum_leaves_out_is_bounded(sign: int, times: int) -> None:
    """Against the sum itself, term by term; and the decay is used."""
    kind, c, h = step(sign, 0.3, 1.2), arb(2), 0.5
    bound = float(Tail(((kind, times),), arb(0), c, arb(h)).beyond(arb(4)))
    mass = abs(complex(kind.transform(acb(c)).mid()))
    terms = [
        (abs(complex(kind.transform(acb(2, y)).mid())) / mass) ** times * h / y**2
        for y in np.arange(4, 40, h)
    ]
    without_decay = h / 16 + 1 / 4
    assert sum(terms) <= bound <= without_decay * (1.0 if times == 1 else 0.01)


def test_a_loss_that_never_exceeds_epsilon_needs_no_sum() -> None:
    law = Composition(((step(-1, 0.1), 10),), arb(0))
    assert law.never_above(arb(1.06)) and not law.never_above(arb(1.05))  # -10 ln 0.9 = 1.0536
    assert not Composition(((step(-1, 0.1), 10),), arb(1)).never_above(arb(1.06))
    assert not Composition(((step(1, 0.1), 10),), arb(0)).never_above(arb(100))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_spread_is_a_close_upper_bound(sign: int) -> None:
    law = Composition(((step(sign), 1),), arb(0))
    _, mean, variance = law.rough(3.0)
    bound = float(step(sign).spread(arb(3), mean, 0.1))
    assert variance**0.5 <= bound <= 1.01 * variance**0.5


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("shrunk", [(1.0, 1.0), (0.4, 1.0), (1.0, 0.4)])
def test_the_line_bounds_delta_from_above(sign: int, shrunk: tuple[float, float]) -> None:
    """Whatever its period and reach; compared with the accountant's proved interval."""
    from tightrope.guarantee.loss.contour import log_delta
    from tightrope.guarantee.loss.pairs import SampledGaussianPair

    direction: Any = "remove" if sign > 0 else "add"
    exact = log_delta(((SampledGaussianPair(0.5, 0.2, direction), 100),), 3.0)
    law = Composition(((step(sign, 0.5, 0.2), 100),), arb(0))
    with flint.ctx.workprec(128):
        good = Reach.of(law, 3.0, float(np.exp(exact.upper)), 1e-11)
        reach = Reach(good.c, shrunk[0] * good.period, shrunk[1] * good.frequency)
        bound = float(RigorousLine(law, reach).delta_upper(arb(3)))
    assert bound >= np.exp(exact.lower) * (1 - 1e-12)
    if shrunk == (1.0, 1.0):
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
@pytest.mark.parametrize(
    ("rate", "noise", "steps", "slack"),
    [
        (256 / 60000, 1.1, 14062, 1e-11),
        (0.001, 0.7, 10_000, 1e-10),  # decays slowly: rare large losses
        (0.001, 1.0, 10_000, 1e-10),
        (0.01, 0.6, 10_000, 1e-10),
        (0.05, 1.0, 200, 1e-9),
        (0.2, 1.0, 5, 1e-7),  # few steps
    ],
)
def test_typical_settings_are_proved(rate: float, noise: float, steps: int, slack: float) -> None:
    process = NoisySGD(PoissonSampling(rate), noise, steps)
    proof = prove_epsilon(process, account(process).epsilon(1e-5).upper, 1e-5)
    assert proof.slack is not None and proof.slack <= slack


def test_laws_that_decay_too_slowly_are_refused_with_advice() -> None:
    process = NoisySGD(PoissonSampling(1e-4), noise_multiplier=0.5, steps=10)
    with pytest.raises(NotCertified, match="To have it proved as well, claim a larger"):
        prove_epsilon(process, 0.5, 1e-6)


def test_a_certificate_is_proved_or_not() -> None:
    good = json.loads(json.dumps(certify(GaussianMechanism(2.0))))
    assert reprove(good).holds
    for row in good["claims"]["epsilon"]:
        row["upper"] *= 0.999
    forged = {**good, "chain": chain_of(good)}
    check = reprove(forged)
    assert not check.holds and "0.01" in check.said and "could be proved" in check.said


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
    with pytest.raises(InvalidInput, match="A rigorous proof needs"):
        prove_epsilon(GaussianMechanism(1.0), epsilon, delta)


def test_no_steps_need_no_proof() -> None:
    assert prove_epsilon(NoisySGD(PoissonSampling(0.1), 1.0, 0), 0.1, 1e-5).slack == 0.0
