"""Rows: never longer than 1, in whatever form they come; nothing about them in messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tightrope.convex import ArrayData, Logistic, Problem, Scaling, SizeOnly, StreamData
from tightrope.errors import InvalidInput

SCALING = Scaling(2.0)


def _table(rows: int = 700, columns: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((rows, columns)) * generator.exponential(2.0, (rows, 1))
    return features, np.where(generator.random(rows) < 0.5, 1.0, -1.0)


def _scaled_rows(data: Any) -> np.ndarray:
    """The rows as gradients see them, by pulling back one unit slope at a time."""
    found = []
    for block in data.blocks():
        for row in range(len(block.factors)):
            found.append(block.only(slice(row, row + 1)).pull_back(np.ones(1)))
    return np.array(found)


@pytest.mark.parametrize("intercept", [True, False])
def test_no_row_is_longer_than_one_whatever_comes(intercept: bool) -> None:
    features, targets = _table()
    features[0], features[1], features[2] = 1e200, -1e308, 0.0
    rows = _scaled_rows(ArrayData(features, targets, Scaling(2.0, 0.5 * intercept)))
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    assert np.isfinite(rows).all()


def test_rows_inside_the_bound_keep_their_direction_and_relative_length() -> None:
    features, targets = _table()
    short = features[np.linalg.norm(features, axis=1) < 2.0]
    rows = _scaled_rows(ArrayData(short, targets[: len(short)], Scaling(2.0, 0.0)))
    np.testing.assert_allclose(rows, short / 2.0, rtol=2e-6, atol=2.0**-34)  # the grid of rows


def test_one_neighbour_moves_the_gradient_sum_by_at_most_twice_the_lipschitz_constant() -> None:
    generator = np.random.default_rng(5)
    for trial in range(50):
        features, targets = _table(40)
        weights = generator.standard_normal(6) * 10.0 ** generator.integers(-2, 3)
        other, others = features.copy(), targets.copy()
        other[7], others[7] = generator.standard_normal(5) * 10.0**trial, -targets[7]
        first, second = (
            Problem(ArrayData(x, y, SCALING), Logistic(0.5)).gradient_sum(weights)
            for x, y in ((features, targets), (other, others))
        )
        assert np.linalg.norm(first - second) <= 2 * 0.5


def _as_forms(features: np.ndarray, folder: Path) -> dict[str, Any]:
    stored = np.lib.format.open_memmap(
        folder / "rows.npy", mode="w+", dtype=np.float64, shape=features.shape
    )
    stored[:] = features
    return {"memory-mapped": stored, "sparse": sp.csr_array(features), "float32": features}


def test_dense_sparse_and_memory_mapped_rows_give_the_same_gradient(tmp_path: Path) -> None:
    features, targets = _table(5000, 60)
    weights = np.random.default_rng(1).standard_normal(61)
    expected = Problem(ArrayData(features, targets, SCALING), Logistic()).gradient_sum(weights)
    for name, form in _as_forms(features, tmp_path).items():
        rows = form.astype(np.float32) if name == "float32" else form
        found = Problem(ArrayData(rows, targets, SCALING), Logistic()).gradient_sum(weights)
        tolerance = 1e-4 if name == "float32" else 1e-10
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=name)


def test_a_stream_gives_the_gradient_of_the_array() -> None:
    features, targets = _table()

    def source() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for at in range(0, 700, 150):
            yield features[at : at + 150], targets[at : at + 150]

    weights = np.linspace(-1, 1, 6)
    whole = Problem(ArrayData(features, targets, SCALING), Logistic()).gradient_sum(weights)
    stream = Problem(StreamData(source, 700, 5, SCALING), Logistic()).gradient_sum(weights)
    np.testing.assert_allclose(stream, whole, rtol=1e-12)
    with pytest.raises(InvalidInput, match="declared with 699 rows"):
        Problem(StreamData(source, 699, 5, SCALING), Logistic()).gradient_sum(weights)


def test_raw_coefficients_give_the_scores_of_scaled_weights() -> None:
    features, targets = _table()
    short = features[np.linalg.norm(features, axis=1) < 2.0]
    weights = np.random.default_rng(2).standard_normal(6)
    block = next(ArrayData(short, targets[: len(short)], SCALING).blocks())
    coefficients, intercept = SCALING.unscale(weights)
    grid = 2.0**-34 * np.abs(weights).sum()
    linear = short @ coefficients + intercept
    np.testing.assert_allclose(linear, block.scores(weights), rtol=1e-9, atol=grid)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sparse", [False, True])
def test_nan_and_infinity_are_refused_without_telling_values(bad: float, sparse: bool) -> None:
    features = np.array([[123.456, 1.0], [bad, 7.654]])
    form = sp.csr_array(features) if sparse else features
    with pytest.raises(InvalidInput) as told:
        ArrayData(form, np.ones(2), SCALING)
    assert not any(private in str(told.value) for private in ("123", "7.65", "456"))


def test_sizes_alone_can_be_planned_but_not_fitted() -> None:
    with pytest.raises(InvalidInput, match="planned, not fitted"):
        Problem(SizeOnly(100, 3), Logistic()).gradient_sum(np.zeros(3))
