"""Each release ahead of a fit has the noise and the threshold that its process states.

The sums are known, so the noise of each release is seen alone, many times in one run. What is
expected is computed from the process, which is what the account reads. False-alarm rate: at most
1e-6 for each test. A parameter wrong by 4 % is noticed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("sklearn", reason="tables need scikit-learn")

from tightrope import account
from tightrope.entropy import open_stream
from tightrope.process import Adjacency, DiscreteGaussianVector, ThresholdedCounts
from tightrope.tables import Category, Number, TableSchema, releases
from tightrope.tables.releases import CellCounts, prepared, released
from tightrope.tables.rows import Rows
from tightrope.theorems.discrete_gaussian import chance_alone

FALSE_ALARM = 1e-6
REPLACE = Adjacency.REPLACE_ONE


def is_of(noise: Any, sigma: float) -> bool:
    """Whole numbers with variance sigma^2, by the chi-squared law of their squares (two-sided)."""
    total = float((np.asarray(noise, dtype=float) ** 2).sum()) / sigma**2
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], np.size(noise))
    return bool(low < total < high and np.equal(np.mod(noise, 1), 0).all())


def test_counts_have_the_noise_of_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"x{at}" for at in range(40)]
    schema = TableSchema(dict.fromkeys(names, Number()))
    plan = prepared(schema, 0.2, 1e-6, REPLACE)
    cells = np.full((50, 41), 1.0)
    seen: list[Any] = []
    real = releases.noisy

    def kept(counts: Any, scale: int, stream: Any) -> Any:
        found = real(counts, scale, stream)
        seen.append(found - counts)
        return found

    monkeypatch.setattr(releases, "noisy", kept)
    for _ in range(4):
        released(plan, Rows(cells, schema), open_stream("tables", cryptographic=True))
    for at, process in enumerate(plan.processes):
        assert isinstance(process, DiscreteGaussianVector)
        noise = np.concatenate([one.ravel() for one in seen[at::2]])
        assert noise.size > 3000
        assert is_of(noise, process.sigma)
        assert noise.size < 20_000 or not is_of(noise, 1.04 * process.sigma)


def test_a_category_of_one_row_is_shown_as_rarely_as_is_stated() -> None:
    """One row alone in its category, 200,000 times; and one well above the threshold always is."""
    schema = TableSchema({"job": Category()})
    plan = releases.Preparation(schema, REPLACE, categories=4, threshold=9)
    (process,) = plan.processes
    assert isinstance(process, ThresholdedCounts)
    book = {f"t{at}": at for at in range(20_000)}
    rows = Rows(np.column_stack([np.ones(20_000), np.arange(20_000.0)]), schema, {"job": book})
    draws = [released(plan, rows, open_stream("t", cryptographic=True)) for _ in range(10)]
    shown = sum(len(design.codes["job"].names) for design in draws)
    stated = chance_alone(process.sigma, process.threshold)
    truth = float(
        np.exp(-(np.arange(8, 60) ** 2) / 32).sum() / np.exp(-(np.arange(-60, 61) ** 2) / 32).sum()
    )
    assert truth <= stated
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 200_000, truth)
    assert low <= shown <= high
    many = Rows(np.column_stack([np.ones(500), np.zeros(500)]), schema, {"job": {"a": 0}})
    design = released(plan, many, open_stream("t"))
    assert design.codes["job"].names == ("a",)


def test_an_attack_on_the_counts_of_neighbours_wins_no_more_than_is_certified() -> None:
    """The best test between two neighbours, on 20,000 releases: its power is below the bound."""
    schema = TableSchema({"a": Number(), "b": Number()})
    plan = prepared(schema, 0.3, 1e-6, REPLACE)
    process = plan.processes[0]
    assert isinstance(process, DiscreteGaussianVector)
    one, two = np.ones((10, 3)), np.ones((10, 3))
    two[0, 1:] = 1e6
    edges = (tuple(releases._EDGES.tolist()),) * 2
    sums = [CellCounts((1, 2), edges)(table) for table in (one, two)]
    towards = (sums[1] - sums[0]).astype(float)
    stream = open_stream("tables", cryptographic=True)
    scores = [
        np.array([(releases.noisy(s, plan.octaves, stream) * towards).sum() for _ in range(20_000)])
        for s in sums
    ]
    guarantee = account(process).guarantee(1e-6)
    for false_alarms in (0.01, 0.1, 0.4):
        limit = np.quantile(scores[0], 1.0 - false_alarms)
        alpha, power = float(np.mean(scores[0] > limit)), float(np.mean(scores[1] > limit))
        bound = 1.0 - guarantee.tradeoff(alpha + _slack(alpha)).lower
        assert power <= bound + _slack(bound)
        least = 1.0 - guarantee.tradeoff(max(alpha - _slack(alpha), 0.0)).upper
        assert power >= least - _slack(power)  # the noise is no larger than it must be


def _slack(share: float) -> float:
    """Six deviations of a share of 20,000."""
    return 6.0 * math.sqrt(max(share * (1.0 - share), 1e-4) / 20_000)
