"""Groups of records, against the Gaussian mechanism, whose groups are known exactly."""

from __future__ import annotations

import math

import pytest

from tightrope.accounting import account
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.process import BallsInBinsSampling, DeclaredApproxDP, NoisySGD

BALLS = BallsInBinsSampling(10)


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0, 19.9])
@pytest.mark.parametrize("share", [0.5, 2.0, 30.0, 690.0])
def test_the_chain_is_never_below_the_truth(size, mu, share) -> None:
    """At 690 a record the factor is beyond e^700: it must not be cut off there."""
    chained = GroupGuarantee(GaussianGuarantee(mu), size).delta(size * share)
    assert chained.upper >= GaussianGuarantee(size * mu).delta(size * share).lower


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("mu", [0.2, 1.5])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_epsilon_is_the_inverse_of_delta(size, mu, delta) -> None:
    chained = GroupGuarantee(GaussianGuarantee(mu), size)
    epsilon = chained.epsilon(delta).upper
    assert chained.delta(epsilon).upper <= delta * (1 + 1e-9)
    assert chained.delta(epsilon * (1 - 1e-4)).upper > delta


def test_pure_privacy_adds_up() -> None:
    assert GroupGuarantee(ApproxGuarantee(0.3), 4).epsilon(0.0).upper == pytest.approx(1.2)
    assert GroupGuarantee(GaussianGuarantee(1.0), 4).epsilon(0.0).upper == math.inf


@pytest.mark.parametrize("single", [DeclaredApproxDP(0.5, 1e-7), NoisySGD(BALLS, 1.0, 20)], ids=str)
def test_chains_compose_link_by_link(single) -> None:
    """Replaced twice, or two of a group twice: the chain of what is composed for one record."""
    one = account(single).guarantee()
    for moved in (lambda g: g.as_replace_one(), lambda g: g.group(2)):
        twice, whole = moved(one) ** 2, moved(one**2)
        assert twice.epsilon(1e-5) == whole.epsilon(1e-5)
        assert twice.epsilon(1e-5).upper < math.inf
        assert twice.unit_of_privacy == whole.unit_of_privacy
