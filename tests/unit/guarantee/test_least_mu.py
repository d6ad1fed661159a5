"""A Gaussian guarantee whose attained mu is not its upper end keeps both, whatever is done."""

from __future__ import annotations

import pytest

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Adjacency, LaplaceMechanism
from tightrope.theorems.releases import SingleReleasesExact

PART = GaussianGuarantee(1.0, Adjacency.ADD_OR_REMOVE, Validity.EXACT, least_mu=0.9)
LOW, HIGH = (GaussianGuarantee(mu, validity=Validity.EXACT) for mu in (0.9, 1.0))
OTHER = SingleReleasesExact.guarantee(LaplaceMechanism(3.0))


def test_answers_lie_between_both() -> None:
    for made in (lambda g: g, lambda g: g.group(3), lambda g: compose([g, HIGH], [4, 1])):
        part, low, high = made(PART), made(LOW), made(HIGH)
        assert part.two_sided
        for delta in (1e-9, 1e-3):
            found = part.epsilon(delta)
            assert found.lower == pytest.approx(low.epsilon(delta).lower, rel=1e-12)
            assert found.upper == high.epsilon(delta).upper
        assert part.gaussian_mu().upper == high.mu


def test_composed_with_other_noise_the_lower_end_is_of_what_is_attained() -> None:
    found, low, high = (compose([part, OTHER], [2, 1]) for part in (PART, LOW, HIGH))
    assert found.two_sided
    assert found.validity is Validity.BOUND
    assert found.epsilon(1e-5).upper == pytest.approx(high.epsilon(1e-5).upper, rel=1e-9)
    assert found.epsilon(1e-5).lower <= low.epsilon(1e-5).upper
    assert found.epsilon(1e-5).lower == pytest.approx(low.epsilon(1e-5).lower, rel=1e-6)


def test_it_cannot_lie_above() -> None:
    with pytest.raises(InvalidInput, match="least_mu"):
        GaussianGuarantee(1.0, least_mu=1.1)
