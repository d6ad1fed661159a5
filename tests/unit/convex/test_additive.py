"""Additive models: bins by public facts, exact histograms, and what one record can move."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from tightrope.accounting import account
from tightrope.convex import Budget, Entropy, Huber, Logistic, MultinomialLogistic, calibrated
from tightrope.convex import additive as module
from tightrope.convex.additive import (
    STEPS,
    UNITS,
    AdditiveData,
    CyclicBoosting,
    noisy,
    slopes_of,
    within_units,
)
from tightrope.convex.bins import CELLS, MISSING, categories, histogram, numbers
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency

RELATIONS = [Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE]
LOSSES: list[Any] = [
    Logistic(0.5),
    Logistic(1.0),
    Huber(0.5),
    Huber(3.0),
    MultinomialLogistic(3, 1.0),
    MultinomialLogistic(5),
]


def _targets(loss: Any, rows: int, generator: np.random.Generator) -> np.ndarray:
    if isinstance(loss, Logistic):
        return generator.choice([-1, 1], rows)
    if isinstance(loss, Huber):
        return generator.integers(-STEPS, STEPS + 1, rows)
    return generator.integers(0, loss.classes, rows)


def _scores(rows: int, outputs: int, generator: np.random.Generator) -> np.ndarray:
    """From tiny to far beyond the table."""
    sizes = 10.0 ** generator.uniform(-4, 3, (rows, outputs))
    return np.rint(STEPS * sizes * generator.choice([-1, 1], (rows, outputs))).astype(np.int64)


# --- bins -----------------------------------------------------------------------------------------
def test_numbers_fall_into_cells_between_public_bounds() -> None:
    column = numbers((0.0, 256.0), "x")
    values = [0.0, 0.5, 1.0, 255.9, 256.0, 1e9, -5.0, np.inf, -np.inf, np.nan, "text", None, "7"]
    found = column.codes(np.array(values, dtype=object))
    assert found.tolist() == [1, 1, 2, 256, 256, 256, 1, 256, 1, MISSING, MISSING, MISSING, 8]
    assert column.bins == CELLS + 1


def test_unknown_categories_are_missing() -> None:
    column = categories(["a", "b", 3], "x")
    found = column.codes(np.array(["b", "a", "c", None, 3, 3.0, [1], np.nan], dtype=object))
    assert found.tolist() == [2, 1, MISSING, MISSING, 3, 3, MISSING, MISSING]
    assert column.bins == 4


def test_given_edges_are_kept() -> None:
    column = numbers([0, 1, 10, 100], "x")
    assert column.thinned(np.zeros(4), 2, 1e9) is column
    assert column.codes(np.array([0.5, 1.0, 9.9, 10.0, 1e6])).tolist() == [1, 2, 2, 3, 3]


def test_joined_cells_have_about_equal_weight() -> None:
    generator = np.random.default_rng(0)
    column, values = numbers((0.0, 1.0), "x"), generator.beta(2, 8, 20_000)
    counts = histogram(column.codes(values), column.bins)[:, 0].astype(float)
    joined = column.thinned(counts, 16, 50.0)
    weights = histogram(joined.codes(values), joined.bins)[1:, 0]
    assert 12 <= len(weights) <= 16 and weights.sum() == 20_000
    assert weights.max() <= 2.5 * 20_000 / 16 and weights.min() >= 50
    assert set(joined.edges) <= set(column.edges)


def test_joined_bins_have_the_least_weight_or_there_is_one() -> None:
    column = numbers((0.0, 1.0), "x")
    counts = np.append(0.0, np.random.default_rng(1).normal(0.0, 10.0, CELLS))
    joined = column.thinned(counts, 32, 500.0)
    cells = np.maximum(counts[1:], 0.0)
    places = joined.codes(np.asarray(column.edges[:-1]))
    assert np.bincount(places, cells)[1:].min() >= 500.0
    assert column.thinned(np.zeros(CELLS + 1), 32, 10.0).bins == 2


@pytest.mark.parametrize(
    "fact", [(1, 1), (2, 1), (0, np.inf), (0,), "ab", None, (0, 1, 1), (np.nan, 1), 5, [[0, 1]]]
)
def test_bounds_that_are_none_are_refused(fact: Any) -> None:
    with pytest.raises(InvalidInput, match="Column 'x' needs public bounds"):
        numbers(fact, "Column 'x'")


@pytest.mark.parametrize("fact", [[], "abc", ["a", "a"], [[1]], 3, None, range(70_000)])
def test_categories_that_are_none_are_refused(fact: Any) -> None:
    with pytest.raises(InvalidInput, match="needs a list of its categories"):
        categories(fact, "Column 'x'")


@pytest.mark.parametrize("piece", [7, 1 << 22])
def test_histograms_are_exact_where_floats_would_round(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightrope.convex.bins._PIECE", piece)
    rows, generator = 3000, np.random.default_rng(9)
    codes = generator.integers(0, 4, rows).astype(np.uint16)
    entries = generator.integers(-UNITS, UNITS + 1, (rows, 2))
    entries[:, 1] = UNITS - 1
    found = histogram(codes, 5, entries)
    for place in range(5):
        inside = entries[codes == place].tolist()
        assert found[place].tolist() == [sum(row[output] for row in inside) for output in (0, 1)]
    assert histogram(codes, 5)[:, 0].tolist() == np.bincount(codes, minlength=5).tolist()


# --- slopes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_slopes_are_within_their_units(loss: Any) -> None:
    generator, slopes = np.random.default_rng(2), slopes_of(loss)
    whole = slopes.whole(_scores(4000, slopes.outputs, generator), _targets(loss, 4000, generator))
    assert whole.dtype == np.int64
    lengths = [sum(int(v) ** 2 for v in row) for row in whole]
    assert max(lengths) <= UNITS**2
    assert max(lengths) >= (0.9 * UNITS) ** 2, "the noise is made for slopes that occur"
    assert slopes.bound == loss.slope_bound


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_slopes_are_those_of_the_loss(loss: Any) -> None:
    generator, slopes = np.random.default_rng(3), slopes_of(loss)
    scores = generator.integers(-3 * STEPS, 3 * STEPS, (500, slopes.outputs))
    targets = _targets(loss, 500, generator)
    plain = (scores / STEPS)[:, 0] if slopes.outputs == 1 else scores / STEPS
    asked = targets / STEPS if isinstance(loss, Huber) else targets.astype(float)
    expected = loss.slope(plain, asked).reshape(500, -1)
    found = slopes.whole(scores, targets) * (slopes.bound / UNITS)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_slope_of_a_row_does_not_depend_on_other_rows(loss: Any) -> None:
    """To the last unit, at every place in a block and alone."""
    generator, slopes = np.random.default_rng(4), slopes_of(loss)
    scores, targets = _scores(67, slopes.outputs, generator), _targets(loss, 67, generator)
    together = slopes.whole(scores, targets)
    for first in range(67):
        assert (slopes.whole(scores[first:], targets[first:]) == together[first:]).all()
        one = slopes.whole(scores[first : first + 1], targets[first : first + 1])
        assert (one == together[first]).all()
    columns = slopes.whole(np.asfortranarray(scores), targets)
    assert (columns == together).all()


def test_rows_that_are_too_long_are_shortened_or_dropped() -> None:
    rows = np.array([[UNITS, 1.0], [UNITS, 0.0], [3.0 * UNITS, 0.0], [0.0, 0.0]])
    assert within_units(rows).tolist() == [[UNITS - 1, 0], [UNITS, 0], [0, 0], [0, 0]]


def test_curvatures_are_those_of_the_score() -> None:
    scores = np.linspace(-3, 3, 7)[:, None]
    chance = expit(scores)
    np.testing.assert_allclose(
        slopes_of(Logistic(0.5)).curvature(scores), chance * (1 - chance), rtol=1e-12
    )
    several = np.random.default_rng(5).normal(size=(6, 4))
    bound = slopes_of(MultinomialLogistic(4)).curvature(several)
    for row, diagonal in zip(softmax(several, axis=1), bound, strict=True):
        excess = np.diag(diagonal) - (np.diag(row) - np.outer(row, row))
        assert np.linalg.eigvalsh(excess).min() >= -1e-12


# --- what one record moves ------------------------------------------------------------------------
class _Recorded:
    """The whole sums that noise is added to, in their order, and what was released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replies: list[Any] | None = None) -> None:
        self.sums: list[Any] = []
        self.noises: list[float] = []
        self.replies: list[Any] = []

        def record(sums: Any, noise_std: float, entropy: Any) -> Any:
            self.sums.append(sums.copy())
            self.noises.append(noise_std)
            if replies is None:
                drawn = np.random.default_rng(len(self.sums)).standard_normal(sums.shape)
                self.replies.append(sums + np.rint(noise_std * drawn).astype(np.int64))
            else:  # the same releases, whoever is in the data
                self.replies.append(replies[len(self.sums) - 1])
            return self.replies[-1]

        monkeypatch.setattr(module, "noisy", record)


def _table(loss: Any, rows: int = 40) -> AdditiveData:
    generator = np.random.default_rng(6)
    columns = (numbers((0, 1), "0"), categories(["x", "y", "z"], "1"))
    values = (generator.uniform(-0.2, 1.2, rows), generator.choice(["x", "y", "z", "?"], rows))
    codes = tuple(c.codes(v) for c, v in zip(columns, values, strict=True))
    return AdditiveData(columns, codes, _targets(loss, rows, generator))


def _only(data: AdditiveData, rows: Any) -> AdditiveData:
    return AdditiveData(data.columns, tuple(c[rows] for c in data.codes), data.targets[rows])


def _replaced(data: AdditiveData, row: int, by: int, target: int) -> AdditiveData:
    codes = tuple(code.copy() for code in data.codes)
    for code in codes:
        code[row] = code[by]
    targets = data.targets.copy()
    targets[row] = target
    return AdditiveData(data.columns, codes, targets)


def _sums(boosting: CyclicBoosting, data: AdditiveData, loss: Any, replies: Any) -> _Recorded:
    with pytest.MonkeyPatch.context() as patch:
        recorded = _Recorded(patch, replies)
        boosting.run(data, slopes_of(loss), Entropy(0))
    return recorded


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
@pytest.mark.parametrize("loss", [Logistic(0.5), Huber(0.5), MultinomialLogistic(3)], ids=repr)
def test_no_record_moves_a_release_by_more_than_is_charged(loss: Any, relation: Any) -> None:
    """Every record removed or replaced, the releases before being the same on both sides."""
    boosting = CyclicBoosting(3, 2, 0.2, 8, relation, noise_multiplier=0.05)
    data, rows = _table(loss), 40
    first = _sums(boosting, data, loss, None)
    if relation is Adjacency.ADD_OR_REMOVE:
        neighbours = [_only(data, np.arange(rows) != gone) for gone in range(rows)]
    else:
        others = np.unique(data.targets)[[0, -1]]
        neighbours = [
            _replaced(data, row, by, int(target))
            for row in range(0, rows, 5)
            for by in (row, (row + 1) % rows, (row + 17) % rows)
            for target in others
        ]
    moved = np.zeros(len(first.sums))
    for neighbour in neighbours:
        other = _sums(boosting, neighbour, loss, first.replies)
        lengths = [
            float(np.linalg.norm(a - b)) for a, b in zip(first.sums, other.sums, strict=True)
        ]
        counted = math.hypot(*lengths[:2])
        assert counted <= math.sqrt(relation.moved * 2)
        assert max(lengths[2:]) <= relation.moved * UNITS
        moved = np.maximum(moved, lengths)
    assert moved[2:].max() >= 0.5 * relation.moved * UNITS, "the bound is for what can happen"


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_each_release_has_the_noise_that_its_mechanism_says(relation: Any) -> None:
    boosting = CyclicBoosting(3, 2, 0.2, 8, relation, noise_multiplier=7.0)
    counts, steps = boosting.process().parts
    recorded = _sums(boosting, _table(Logistic(0.5)), Logistic(0.5), None)
    both = math.sqrt(2 * relation.moved)  # one row is in one bin of each of two columns
    assert recorded.noises[:2] == pytest.approx([counts.noise_multiplier * both] * 2)
    assert min(recorded.noises[:2]) >= counts.noise_multiplier * both
    assert recorded.noises[2:] == [7.0 * relation.moved * UNITS] * steps.count
    assert steps.inner.noise_multiplier == 7.0 and steps.count == 6


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_shares_compose_to_the_budget_exactly(relation: Any) -> None:
    budget = Budget(1.0, 1e-5)
    plan = CyclicBoosting(12, 14, 0.1, 32, relation)
    ready, guarantee = calibrated(plan, None, budget)  # type: ignore[arg-type]
    spent = guarantee.epsilon(1e-5)
    assert 1.0 - 1e-6 <= spent.upper <= 1.0
    counts, steps = ready.process().parts
    assert 1 / counts.noise_multiplier**2 == pytest.approx(0.1 * budget.mu**2, rel=1e-6)
    assert steps.count / steps.inner.noise_multiplier**2 == pytest.approx(0.9 * budget.mu**2)
    assert account(ready.process()).guarantee(1e-5) == guarantee


def test_what_is_learnt_depends_on_the_releases_alone() -> None:
    """Other rows and the same releases: the same model, to the last bit."""
    boosting = CyclicBoosting(3, 2, 0.2, 8, Adjacency.REPLACE_ONE, noise_multiplier=0.05)
    data, loss = _table(Logistic(0.5)), Logistic(0.5)
    first = _sums(boosting, data, loss, None)
    models = []
    for rows in (data, _only(data, slice(5, 20)), _only(data, slice(20, 40))):
        with pytest.MonkeyPatch.context() as patch:
            _Recorded(patch, first.replies)
            models.append(boosting.run(rows, slopes_of(loss), Entropy(0)))
    for other in models[1:]:
        assert other.columns == models[0].columns
        assert (other.intercept == models[0].intercept).all()
        for own, same in zip(other.shapes, models[0].shapes, strict=True):
            assert (own == same).all()


# --- noise and model ------------------------------------------------------------------------------
def test_noise_is_rounded_before_it_meets_the_sums() -> None:
    """The same draw moves every sum by the same whole number."""
    sums = np.array([[0], [1], [-7], [2**40]])
    zero = noisy(np.zeros_like(sums), 1e7, Entropy(3))
    assert ((noisy(sums, 1e7, Entropy(3)) - sums) == zero).all()


def test_more_noise_than_whole_numbers_take_is_refused() -> None:
    with pytest.raises(InvalidInput, match="larger epsilon"):
        noisy(np.zeros((1, 1), dtype=np.int64), 2.0**47, Entropy(0))


def test_without_noise_the_shapes_of_an_additive_target_are_found() -> None:
    generator = np.random.default_rng(7)
    x = generator.uniform(size=(20_000, 2))
    y = np.sin(6 * x[:, 0]) / 2 + np.where(x[:, 1] > 0.5, 0.3, -0.3)
    columns = (numbers((0, 1), "0"), numbers((0, 1), "1"))
    codes = tuple(column.codes(x[:, i]) for i, column in enumerate(columns))
    data = AdditiveData(columns, codes, np.rint(y * STEPS).astype(np.int64))
    boosting = CyclicBoosting(20, 2, 0.1, 64, Adjacency.REPLACE_ONE, noise_multiplier=1e-3)
    model = boosting.run(data, slopes_of(Huber(0.5)), Entropy(0))
    scores = model.scores(tuple(c.codes(x[:, i]) for i, c in enumerate(model.columns)))[:, 0]
    assert np.mean((scores - y) ** 2) < 0.01 * np.var(y)
    for shape, counts in zip(model.shapes, model.counts, strict=True):
        assert abs(counts @ shape[:, 0]) < 1e-6 * counts.sum()
    sine = (np.asarray(model.columns[0].edges)[:-1] + np.asarray(model.columns[0].edges)[1:]) / 2
    assert np.corrcoef(model.shapes[0][1:, 0], np.sin(6 * sine))[0, 1] > 0.995


def test_bins_without_rows_stay_near_their_neighbours() -> None:
    """Under much noise a bin that no one is in is no island, and none is far from zero."""
    generator = np.random.default_rng(8)
    columns = (numbers([0, 1, 2, 3, 4, 5, 6], "0"),)
    codes = (columns[0].codes(generator.choice([0.5, 1.5, 4.5, 5.5], 4000)),)
    data = AdditiveData(columns, codes, np.full(4000, STEPS // 2))
    boosting = CyclicBoosting(12, 1, 0.1, 8, Adjacency.REPLACE_ONE, noise_multiplier=300.0)
    for seed in range(10):
        shape = boosting.run(data, slopes_of(Huber(0.5)), Entropy(seed)).shapes[0][1:, 0]
        assert np.abs(np.diff(shape)).max() < 1.0 and np.abs(shape).max() < 2.0
