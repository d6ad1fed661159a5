"""Additive models release what their process says: noise of its size and law, fresh each time.

False-alarm rate: at most 1e-6 for each test. A deviation wrong by 4 % is noticed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tightrope.audit import audit_repeated
from tightrope.convex import Budget, Entropy, Logistic, calibrated
from tightrope.convex import additive as module
from tightrope.convex.additive import UNITS, AdditiveData, CyclicBoosting, noisy, slopes_of
from tightrope.convex.bins import categories
from tightrope.process import Adjacency

FALSE_ALARM = 1e-6
BINS = 20_000
RELATIONS = [Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE]


def _check_normal(sample: Any, std: float) -> None:
    """Independent N(0, std^2): size, shape and neighbours."""
    level, scaled = FALSE_ALARM / 4, np.asarray(sample) / std
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], len(scaled))
    assert low < scaled @ scaled < high
    assert stats.kstest(scaled, "norm").pvalue > level
    assert stats.pearsonr(scaled[:-1], scaled[1:]).pvalue > level


def _balanced(columns: int, rows_in_a_bin: int) -> AdditiveData:
    """Equally many rows in each bin, with targets that cancel."""
    codes = np.repeat(np.arange(1, BINS + 1, dtype=np.uint16), rows_in_a_bin)
    targets = np.tile([-1, 1], len(codes) // 2)
    return AdditiveData((categories(range(BINS), "x"),) * columns, (codes,) * columns, targets)


@pytest.mark.parametrize("cryptographic", [False, True])
@pytest.mark.parametrize("std", [0.3, 3.0, 1e9])
def test_noise_is_a_rounded_gaussian(std: float, cryptographic: bool) -> None:
    """Rounded numbers, spread over their cells again, are compared with such a law."""
    drawn = noisy(np.zeros((BINS, 1), dtype=np.int64), std, Entropy(cryptographic=cryptographic))[
        :, 0
    ]
    spread = drawn + np.random.default_rng().uniform(-0.5, 0.5, BINS)

    def cdf(x: Any) -> Any:
        below = np.floor(np.asarray(x) + 0.5) - 0.5
        low, high = stats.norm.cdf(below / std), stats.norm.cdf((below + 1.0) / std)
        return low + (np.asarray(x) - below) * (high - low)

    assert stats.kstest(spread, cdf).pvalue > FALSE_ALARM / 2
    if std > 1.0:  # then the squares of rounded numbers are nearly chi-squared
        size = float(drawn.astype(np.float64) @ drawn) / (std**2 + 1 / 12)
        low, high = stats.chi2.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], BINS)
        assert low < size < high


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_each_histogram_of_slopes_has_fresh_noise_of_its_mechanism(
    relation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model stays at zero, where the slopes of a bin cancel: what is seen is noise."""
    seen: list[Any] = []
    monkeypatch.setattr(module._Fit, "_move", lambda self, n, gradient, _: seen.append(gradient))
    boosting = CyclicBoosting(2, 2, 0.2, 8, relation, noise_multiplier=2.0)
    boosting.run(_balanced(2, 2), slopes_of(Logistic(0.5)), Entropy())
    step = boosting.process().parts[1]
    assert len(seen) == step.count == 4
    std = step.inner.noise_multiplier * relation.moved * 0.5
    for gradient in seen:
        _check_normal(gradient[:, 0], std)
    for first in range(4):
        for second in range(first):
            both = stats.pearsonr(seen[first][:, 0], seen[second][:, 0])
            assert both.pvalue > FALSE_ALARM / 6


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_counts_have_the_noise_of_their_mechanism(relation: Any) -> None:
    """Noise is far below the 60 rows of a bin, so no count is cut at zero."""
    boosting = CyclicBoosting(1, 1, 0.2, 8, relation, noise_multiplier=2.0)
    model = boosting.run(_balanced(1, 60), slopes_of(Logistic(0.5)), Entropy())
    mechanism = boosting.process().parts[0]
    std = mechanism.noise_multiplier * math.sqrt(relation.moved)
    assert 1.0 < std < 6.0
    cells = np.random.default_rng().uniform(-0.5, 0.5, BINS)  # whole numbers, spread again
    _check_normal(model.counts[0][1:] - 60.0 + cells, math.sqrt(std**2 + 2 / 12))


# --- an audit: one row more or less, or with another label ----------------------------------------
DELTA, EPSILON, RUNS = 1e-5, 4.0, 4000


def _audited(relation: Adjacency, noise: float) -> Any:
    """Attack on all that a fit releases: how much the canary's own bin moves in its direction.

    noise: over that of a fit with epsilon 4.
    """
    plan = CyclicBoosting(3, 1, 0.1, 8, relation)
    ready, _ = calibrated(plan, None, Budget(EPSILON, DELTA))
    slopes, released = slopes_of(Logistic(0.5)), list[Any]()
    x, y = np.repeat([1, 2, 3], [20, 20, 1]).astype(np.uint16), np.tile([-1, 1], 21)[:41]
    column = categories(["a", "b", "c"], "x")

    def record(sums: Any, std: float, entropy: Entropy) -> Any:
        released.append((noisy(sums, noise * std, entropy)[3, 0], std))
        return sums * 0 + released[-1][0]

    def score_of_run(included: bool) -> float:
        released.clear()
        kept = slice(None) if included or relation is Adjacency.REPLACE_ONE else slice(40)
        targets = np.append(y[:40], 1 if included else -1)
        data = AdditiveData((column,), (x[kept],), targets[kept])
        ready.run(data, slopes, Entropy())
        (count, std), *steps = released
        known = count / std**2 if relation is Adjacency.ADD_OR_REMOVE else 0.0
        return float(known - sum(UNITS * total / std**2 for total, std in steps))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "noisy", record)
        return audit_repeated(score_of_run, runs=RUNS, delta=DELTA, confidence=1 - FALSE_ALARM)


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_an_audit_at_epsilon_4_stays_below_its_claim(relation: Any) -> None:
    """And comes near enough to it to be worth something."""
    found = _audited(relation, 1.0)
    assert 0.2 * Budget(EPSILON, DELTA).mu < found.mu_lower <= Budget(EPSILON, DELTA).mu
    assert found.epsilon_lower < EPSILON


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_an_audit_finds_a_fit_with_a_tenth_of_the_noise(relation: Any) -> None:
    assert _audited(relation, 0.1).mu_lower > 2.0 * Budget(EPSILON, DELTA).mu


def test_units_leave_room_for_exact_sums() -> None:
    """Rows that are added as floats are whole numbers below 2^53, and totals below 2^63."""
    assert UNITS * 2**22 < 2**53
