"""What a guarantee means for one person."""

from __future__ import annotations

import math

import pytest

from tightrope.errors import InvalidInput
from tightrope.guarantee.approx import tradeoff_interval
from tightrope.guarantee.base import belief, hit_rate
from tightrope.numerics.interval import Interval


def test_true_positive_rate():
    rate = hit_rate(Interval(0.25, 0.5))
    assert rate.lower <= 0.5 and rate.upper >= 0.75
    assert rate.width == pytest.approx(0.25, rel=1e-12)


def test_posterior_is_bayes_rule():
    type_ii = Interval.exact(0.2)
    found = belief(0.1, 0.05, type_ii)
    assert found.upper == pytest.approx(0.1 * 0.8 / (0.1 * 0.8 + 0.9 * 0.05), rel=1e-13)
    assert belief(0.1, 0.0, type_ii).upper == 1.0
    assert belief(0.1, 0.0, Interval.exact(1.0)).upper == pytest.approx(0.1, rel=1e-14)
    assert belief(0.0, 0.05, type_ii).upper == 0.0
    assert belief(1.0, 0.05, type_ii).upper == 1.0


def test_posterior_under_pure_dp_never_exceeds_its_bound():
    for prior in (0.001, 0.5, 0.9):
        bound = prior / (prior + (1 - prior) * math.exp(-0.7)) * (1 + 1e-15)
        for fpr in (1e-6, 0.01, 0.3, 0.9):
            assert belief(prior, fpr, tradeoff_interval(fpr, 0.7, 0.0)).lower <= bound


@pytest.mark.parametrize(
    "call",
    [
        lambda: belief(1.5, 0.1, Interval.exact(0.5)),
        lambda: belief(0.5, -0.1, Interval.exact(0.5)),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidInput):
        call()
