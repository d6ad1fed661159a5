"""What a guarantee means for one person."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.errors import InvalidInput
from tightrope.guarantee import risk
from tightrope.guarantee.approx import tradeoff_interval
from tightrope.guarantee.gaussian import profile
from tightrope.numerics.interval import Interval


def test_true_positive_rate():
    rate = risk.true_positive_rate(Interval(0.25, 0.5))
    assert rate.lower <= 0.5 and rate.upper >= 0.75
    assert rate.width == pytest.approx(0.25, rel=1e-12)


def test_true_positive_rate_of_several_guarantees_is_the_strictest():
    family = [(0.5, 0.1), (1.0, 1e-3), (4.0, 1e-9)]
    for fpr in (0.001, 0.05, 0.5):
        both = risk.true_positive_rate_of_approx(fpr, family)
        each = [risk.true_positive_rate_of_approx(fpr, [pair]).upper for pair in family]
        assert both.upper == pytest.approx(min(each), rel=1e-14)
    # at a tiny false positive rate: TPR <= e^eps FPR + delta
    tiny = risk.true_positive_rate_of_approx(1e-3, [(1.0, 1e-5)])
    assert tiny.upper == pytest.approx(math.e * 1e-3 + 1e-5, rel=1e-9)


def test_advantage_is_the_largest_gap():
    mu = 0.8
    a = np.linspace(0, 1, 100_001)
    slow = np.max(1 - profile.tradeoff(a, mu) - a)
    found = risk.advantage(profile.delta_interval(0.0, mu))
    assert found.lower == pytest.approx(slow, abs=1e-9) and found.upper >= slow - 1e-15


def test_posterior_is_bayes_rule():
    type_ii = Interval.exact(0.2)
    found = risk.posterior(0.1, 0.05, type_ii)
    assert found.upper == pytest.approx(0.1 * 0.8 / (0.1 * 0.8 + 0.9 * 0.05), rel=1e-13)
    assert risk.posterior(0.1, 0.0, type_ii).upper == 1.0
    assert risk.posterior(0.1, 0.0, Interval.exact(1.0)).upper == pytest.approx(0.1, rel=1e-14)
    assert risk.posterior(0.0, 0.05, type_ii).upper == 0.0
    assert risk.posterior(1.0, 0.05, type_ii).upper == 1.0


def test_posterior_under_pure_dp_never_exceeds_its_bound():
    for prior in (0.001, 0.5, 0.9):
        bound = risk.posterior_of_pure(prior, 0.7).upper
        for fpr in (1e-6, 0.01, 0.3, 0.9):
            assert risk.posterior(prior, fpr, tradeoff_interval(fpr, 0.7, 0.0)).lower <= bound
    truth = 0.5 * math.exp(0.7) / (0.5 * math.exp(0.7) + 0.5)
    assert risk.posterior_of_pure(0.5, 0.7).upper == pytest.approx(truth, rel=1e-14)
    assert risk.posterior_of_pure(0.5, 0.0).upper == pytest.approx(0.5, rel=1e-14)
    assert risk.posterior_of_pure(1.0, 3.0) == Interval.exact(1.0)
    assert risk.posterior_of_pure(0.3, 1e5).upper == 1.0


@pytest.mark.parametrize("prior", [0.01, 0.3, 0.5, 0.8, 0.99])
def test_accuracy_is_that_of_the_bayes_test(prior):
    mu = 1.2
    a = np.linspace(0, 1, 200_001)
    slow = np.max((1 - prior) * (1 - a) + prior * (1 - profile.tradeoff(a, mu)))
    found = risk.accuracy(lambda e: profile.delta_interval(e, mu), prior)
    assert found.upper == pytest.approx(slow, abs=1e-8)
    assert found.upper >= max(prior, 1 - prior)


def test_accuracy_at_certain_priors():
    assert risk.accuracy(lambda e: Interval.exact(0.0), 0.0) == Interval.exact(1.0)
    assert risk.accuracy(lambda e: Interval.exact(0.0), 0.5).upper == pytest.approx(0.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: risk.posterior(1.5, 0.1, Interval.exact(0.5)),
        lambda: risk.posterior(0.5, -0.1, Interval.exact(0.5)),
        lambda: risk.posterior_of_pure(0.5, -1.0),
        lambda: risk.accuracy(lambda e: Interval.exact(0.0), math.nan),
        lambda: risk.true_positive_rate_of_approx(0.1, []),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidInput):
        call()
