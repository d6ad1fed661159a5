"""Many-run bounds: Clopper-Pearson, both inequalities, ROC data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from tightrope.audit import Audit, audit_many_runs, roc_against
from tightrope.audit.many_runs import (
    Rates,
    clopper_pearson_lower,
    clopper_pearson_upper,
    measure_rates,
    rates_of,
)
from tightrope.audit.one_run import roc_points
from tightrope.errors import InvalidInput
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (250, 1000)])
def test_clopper_pearson_is_where_the_binomial_tail_is_the_miss(hits: int, trials: int) -> None:
    low, high = clopper_pearson_lower(hits, trials, 0.025), clopper_pearson_upper(hits, trials, 0.1)
    assert low == 0.0 if hits == 0 else binom.sf(hits - 1, trials, low) == pytest.approx(0.025)
    assert high == 1.0 if hits == trials else binom.cdf(hits, trials, high) == pytest.approx(0.1)


def test_both_inequalities_are_used() -> None:
    hits = Rates(false_positive_upper=0.01, true_positive_lower=0.3, confidence=0.95)
    assert hits.epsilon_lower(1e-3) == pytest.approx(math.log((0.3 - 1e-3) / 0.01))
    silent = Rates(false_positive_upper=0.7, true_positive_lower=0.99, confidence=0.95)
    assert silent.epsilon_lower(1e-3) == pytest.approx(math.log((0.3 - 1e-3) / 0.01))


def test_useless_tests_prove_nothing() -> None:
    assert Rates(0.5, 0.2, 0.9).epsilon_lower(0.0) == 0.0
    assert Rates(0.5, 0.2, 0.9).mu_lower() == 0.0
    assert Rates(1.0, 0.0, 0.9).mu_lower() == 0.0
    assert Rates(0.01, 0.3, 0.95).epsilon_lower(0.995) == 0.0
    of_gaussian = Rates(float(norm.sf(1.5)), float(norm.sf(1.5 - 0.8)), 0.95)
    assert of_gaussian.mu_lower() == pytest.approx(0.8)


def test_perfect_separation_is_limited_by_the_number_of_runs() -> None:
    present, absent = np.ones(200) + np.arange(200) * 1e-3, np.zeros(200) - np.arange(200) * 1e-3
    found = audit_many_runs(present, absent, delta=1e-5)
    # 100 measuring runs each: FPR <= 1 - 0.025^(1/100)
    limit = -math.expm1(math.log(0.025) / 100)
    assert found.epsilon_lower == pytest.approx(math.log((1 - limit - 1e-5) / limit))
    assert found.runs == 400


def test_the_side_of_the_threshold_is_found() -> None:
    low, high = np.linspace(0, 1, 100), np.linspace(2, 3, 100)
    as_is = audit_many_runs(high, low, delta=1e-5).epsilon_lower
    assert audit_many_runs(low, high, delta=1e-5).epsilon_lower == as_is > 2


def test_the_measuring_half_is_not_the_choosing_half() -> None:
    """A threshold that only separates the first halves is worth nothing."""
    present = np.concatenate([np.full(50, 5.0), np.zeros(50)]) + np.arange(100) * 1e-6
    absent = np.arange(100) * 1e-6
    rates = measure_rates(present, absent, lambda r: r.epsilon_lower(0.0), 0.95)
    assert rates.true_positive_lower < 0.05


def test_scores_may_come_in_any_order() -> None:
    """Sorted answers of randomised response: a bound above its epsilon is a chance of 1e-6.

    Were the runs that measure taken as they come, they would be the loudest, or the quietest.
    """
    epsilon, runs = 1.0, 2000
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    present, absent = (np.sort(np.arange(runs) < share * runs) for share in (truth, 1.0 - truth))
    found = audit_many_runs(present, absent[::-1], delta=0.0, confidence=1.0 - 1e-6)
    assert 0.3 < found.epsilon_lower < epsilon


def test_rates_need_runs() -> None:
    with pytest.raises(InvalidInput, match="at least four runs"):
        audit_many_runs([1.0], [0.0], delta=1e-5)
    with pytest.raises(InvalidInput, match="absent"):
        rates_of(0, 0, 1, 1, 0.95)


def test_roc_points_go_from_corner_to_corner_and_ties_move_together() -> None:
    scores = np.array([3.0, 1.0, 1.0, 0.0])
    points = roc_points(scores, np.array([True, True, False, False]))
    assert points == ((0.0, 0.0), (0.0, 0.5), (0.5, 1.0), (1.0, 1.0))


def _one(epsilon: float) -> Audit:
    return Audit(1, "test", epsilon, 0.2, 1e-5, 0.95, 10, 10, 5, ((0.0, 0.0), (1.0, 1.0)))


def test_contradiction_is_judged_against_the_safe_end() -> None:
    claim = ApproxGuarantee(1.0, 1e-5)
    assert _one(1.2).contradicts(claim)
    assert not _one(0.99).contradicts(claim)


def test_roc_against_a_claim_is_the_limit_of_every_attack() -> None:
    drawn = roc_against(_one(0.1), GaussianGuarantee(1.0), points=5)
    assert drawn.false_positive[0] == 0.0 and drawn.false_positive[-1] == 1.0
    at = drawn.false_positive.index(0.01)
    assert drawn.true_positive_upper[at] == pytest.approx(norm.sf(norm.isf(0.01) - 1.0))
    assert drawn.attack == ((0.0, 0.0), (1.0, 1.0))
