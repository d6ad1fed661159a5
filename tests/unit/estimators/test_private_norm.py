"""data_norm="auto": a bound on rows that is bought, and a warning where one is read off them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tightrope import account
from tightrope.convex import counts
from tightrope.convex.counts import norm_release, released_norm
from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.estimators import PrivateLinearRegression, PrivateLogisticRegression, ReadOffTheRows
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.process import Adjacency


def rows(count: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 3)) * 40.0
    return x, (x[:, 0] > 0).astype(int)


def test_the_norm_is_bought_within_the_budget_and_certified() -> None:
    x, y = rows()
    model = PrivateLogisticRegression(1.0, delta=1e-6, data_norm="auto", classes=[0, 1]).fit(x, y)
    assert 0.99 < model.guarantee_.epsilon(1e-6).upper <= 1.0
    assert account(model.process_).epsilon(1e-6).upper <= 1.0
    assert 60.0 < model._scaling.data_norm < 150.0
    assert model.score(x, y) > 0.95
    certificate = model.certificate()
    assert holds(verify(certificate))
    assert "released bound" in certificate["run"]["clip"]


@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE])
def test_counts_of_neighbours_are_as_far_apart_as_is_accounted(
    relation: Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[np.ndarray, int]] = []
    monkeypatch.setattr(counts, "noisy", lambda c, s, w: (seen.append((c, s)), c)[1])
    (process,) = norm_release(relation)(0.3)
    x, _ = rows(50)
    other = x[1:] if relation is Adjacency.ADD_OR_REMOVE else np.vstack([x[1:], [[1e300] * 3]])
    for array in (x, other):
        released_norm(array, process, open_stream("t", seed=0))
    (one, scale), (two, _) = seen
    assert scale == process.sigma and one.size == process.dimension
    assert np.linalg.norm(one - two) == pytest.approx(process.sensitivity)


def test_a_norm_that_is_read_off_the_rows_is_warned_of() -> None:
    x, y = rows(200)
    longest = float(np.linalg.norm(x, axis=1).max())
    with pytest.warns(ReadOffTheRows, match="no epsilon covers it"):
        PrivateLogisticRegression(data_norm=longest, classes=[0, 1]).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReadOffTheRows)
        warnings.simplefilter("ignore", UserWarning)
        ones = np.ones((200, 3)) * np.sign(x)
        PrivateLogisticRegression(data_norm=3**0.5, classes=[0, 1]).fit(ones, y)
        PrivateLogisticRegression(data_norm=2.0, classes=[0, 1]).fit(ones[:, [0]] * 2.0, y)


def test_what_cannot_be_bought_is_refused() -> None:
    x, y = rows(100)
    with pytest.raises(InvalidInput, match="number or 'auto'"):
        PrivateLogisticRegression(data_norm="largest", classes=[0, 1]).fit(x, y)
    with pytest.raises(InvalidInput, match="lengths are public"):
        PrivateLogisticRegression(data_norm="auto", classes=[0, 1]).fit(x, y, public=(x, y))
    model = PrivateLinearRegression(data_norm="auto", target_bound=1.0).fit(x, y)
    assert model.guarantee_.epsilon(model.delta_).upper <= 1.0
