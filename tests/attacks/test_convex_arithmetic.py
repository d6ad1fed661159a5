"""Hole A2: sums over rows whose rounding moved more than one record may (Casacuberta et al. 2022).

Rows are crafted so that a float32 sum drifts apart once it crosses a power of two. One row decides
on which side it starts. The values that noise is added to must stay within the charged sensitivity.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import kstest

from tightrope.convex import (
    ArrayData,
    AveragedDescent,
    Budget,
    CyclicDescent,
    Entropy,
    Huber,
    LastIterateDescent,
    Logistic,
    MultinomialLogistic,
    OneVersusRest,
    Options,
    Problem,
    Scaling,
    SizeOnly,
    SmoothedHinge,
    StopDescent,
    learn,
)
from tightrope.convex.arithmetic import (
    LARGEST,
    MOST_ROWS,
    gamma,
    of_iterates,
    of_moments,
    of_sums,
    plain_reach,
)
from tightrope.convex.centred import moment_sums, sensitivity
from tightrope.convex.entropy import normal_from_words
from tightrope.convex.exact import (
    GRID,
    CarriedTotal,
    gridded,
    row_dots,
    row_squares,
    scores,
    weights_error,
)
from tightrope.convex.fit_certificate import certificate_of_fit
from tightrope.convex.rows import PIECE, Block
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency

PLAIN = Scaling(1.0, 0.0)
SLOPE = 0.5  # of the logistic loss at weights 0


def _drifting(columns: int) -> np.ndarray:
    """Halves up to a little above 2^13, then triples that add to 0 and drift in float32.

    Above 2^13 each triple drifts up by a unit in the last place, below it down by half of one.
    """
    unit = 2.0**-11 / SLOPE
    start = np.append(np.ones(16384), 0.5)
    triples = np.tile([1.4 * unit, -0.7 * unit, -0.7 * unit], 8000)
    rows = np.zeros((len(start) + len(triples), columns))
    rows[:, 0] = np.concatenate([start, triples])
    return rows


def _forms(rows: np.ndarray, folder: Path) -> dict[str, Any]:
    stored = np.lib.format.open_memmap(
        folder / "rows.npy", mode="w+", dtype=np.float32, shape=rows.shape
    )
    stored[:] = rows
    return {
        "sparse float32": sp.csr_array(rows.astype(np.float32)),
        "sparse float64": sp.csr_array(rows),
        "float32": rows.astype(np.float32),
        "float32 by columns": np.asfortranarray(rows.astype(np.float32)),
        "float64": rows,
        "memory-mapped float32": stored,
    }


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("order", ["as given", "reversed", "shuffled"])
def test_crafted_rows_move_the_gradient_by_no_more_than_is_charged(
    columns: int, order: str, tmp_path: Path
) -> None:
    rows = _drifting(columns)
    if order == "reversed":
        rows = rows[::-1].copy()
    if order == "shuffled":
        rows = np.random.default_rng(0).permutation(rows)
    other = rows.copy()
    other[np.flatnonzero(rows[:, 0] == 1.0)[0], 0] = -1.0
    targets = -np.ones(len(rows))
    for name in _forms(rows, tmp_path):
        sums = []
        for version in (rows, other):
            form = _forms(version, tmp_path)[name]
            problem = Problem(ArrayData(form, targets, PLAIN), Logistic())
            sums.append(problem.gradient_sum(np.zeros(columns)))
            sums[-1] = np.array(sums[-1])
        moved = float(np.linalg.norm(sums[0] - sums[1]))
        rho = of_sums(problem)
        # at weights 0 the slope is half the Lipschitz constant: hold it to half the sensitivity
        assert moved <= problem.moved * SLOPE * (1.0 + rho), name
        assert rho < 1e-7


@pytest.mark.parametrize("adjacency", list(Adjacency)[:2])  # of rows
def test_the_released_mean_moves_by_no_more_than_is_charged(adjacency: Adjacency) -> None:
    rows = _drifting(2) * SLOPE  # the mean has slope 1
    rows[:16384, 0] = 1.0
    rows = rows[8192:]
    rows[8192, 0] = 0.5
    other = rows.copy() if adjacency is Adjacency.REPLACE_ONE else rows[1:]
    if adjacency is Adjacency.REPLACE_ONE:
        other[0, 0] = -1.0
    problems = [
        Problem(
            ArrayData(sp.csr_array(x.astype(np.float32)), np.ones(len(x)), PLAIN),
            Logistic(),
            adjacency=adjacency,
            private_records=None if adjacency is Adjacency.REPLACE_ONE else 1000,
        )
        for x in (rows, other)
    ]
    moved = float(np.linalg.norm(moment_sums(problems[0]) - moment_sums(problems[1])))
    assert moved <= sensitivity(adjacency) * (1.0 + of_moments(problems[0]))


# --- what is computed of a row depends on that row alone -----------------------------------------
def _rows(rows: int = 333, columns: int = 37, seed: int = 3) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((rows, columns)) * generator.exponential(3.0, (rows, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("outputs", [(), (4,)], ids=["one", "four"])
@pytest.mark.parametrize("centred", [False, True])
def test_exact_scores_are_the_same_to_the_last_bit_wherever_a_row_stands(
    dtype: Any, form: Any, outputs: tuple[int, ...], centred: bool
) -> None:
    rows = _rows().astype(dtype)
    scaling = Scaling(2.0).centred(np.full(37, 0.02), 0.09) if centred else Scaling(2.0)
    weights = 1e3 * np.random.default_rng(1).standard_normal((38, *outputs))

    def scored(order: np.ndarray) -> np.ndarray:
        data = ArrayData(form(rows[order]), np.ones(len(order)), scaling)
        return np.concatenate([block.scores(weights, exactly=True) for block in data.blocks()])

    whole = scored(np.arange(333))
    shuffled = np.random.default_rng(2).permutation(333)
    np.testing.assert_array_equal(scored(shuffled), whole[shuffled])
    for row in (0, 7, 332):
        np.testing.assert_array_equal(scored(np.array([row])), whole[[row]])


def test_scores_are_exact_products_of_the_gridded_rows() -> None:
    rows, weights = _rows(5, 9) / 100.0, 1e4 * np.random.default_rng(0).standard_normal(9)
    whole = gridded(rows, np.full(5, 1.0))
    found = scores(whole, weights, 1.0)
    for row, score in zip(whole, found, strict=True):
        truth = sum(
            (Fraction(v) * Fraction(w) for v, w in zip(row, weights, strict=True)), Fraction()
        ) / Fraction(2**GRID)
        room = weights_error(9, 1.0) * np.linalg.norm(weights) + 2.0**-52 * abs(float(truth))
        assert abs(float(Fraction(score) - truth)) <= room


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("outputs", [(), (3,)], ids=["one", "three"])
@pytest.mark.parametrize("radius", [1.0, 0.09])
def test_plain_scores_are_as_near_to_the_exact_ones_as_the_bound_says(
    form: Any, outputs: tuple[int, ...], radius: float
) -> None:
    rows, center = _rows(40, 12), np.full(12, 0.25)
    scaling = Scaling(2.0) if radius == 1.0 else Scaling(2.0).centred(center, radius)
    weights = np.random.default_rng(1).standard_normal((13, *outputs))
    block = next(ArrayData(form(rows), np.ones(40), scaling).blocks())
    columns = weights.reshape(13, -1)
    found = block.scores(weights).reshape(40, -1)
    for i, row in enumerate(rows):
        away = 0.0 if scaling.center is None else Fraction(block.shifts[i]) * Fraction(0.25)
        scaled = [Fraction(block.factors[i]) * Fraction(x) - away for x in row]
        scaled.append(Fraction(scaling.constant))
        truth = [
            sum((a * Fraction(b) for a, b in zip(scaled, column, strict=True)), Fraction())
            for column in columns.T
        ]
        error = math.hypot(*(float(Fraction(a) - b) for a, b in zip(found[i], truth, strict=True)))
        assert error <= gamma(2 * 13 + 16) / radius * np.linalg.norm(weights)


@pytest.mark.parametrize("loss", [Logistic(0.5), Huber(7.0), SmoothedHinge(1e-3)])
@pytest.mark.parametrize("adjacency", list(Adjacency)[:2])  # of rows
@pytest.mark.parametrize("radius", [1.0, 0.08])
def test_the_rounding_of_plain_scores_is_charged_as_far_as_they_are_used(
    loss: Any, adjacency: Adjacency, radius: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows(30, 9)
    scaling = Scaling(2.0) if radius == 1.0 else Scaling(2.0).centred(np.zeros(9), radius)
    one = adjacency is Adjacency.REPLACE_ONE
    problem = Problem(
        ArrayData(rows, np.ones(30), scaling),
        loss,
        adjacency=adjacency,
        private_records=None if one else 30,
    )
    reach, most = plain_reach(problem), 30 if one else MOST_ROWS
    slopes = loss.curvature_bound * gamma(2 * 10 + 16) / radius * reach / loss.slope_bound
    sums = (2.0 / radius + 1.0) * gamma(PIECE)
    assert of_sums(problem, radius) >= 2.0 * most * (slopes + sums) / problem.moved
    assert of_sums(problem, radius) >= of_sums(problem)
    used = []
    plain = Block.scores

    def watched(self: Block, weights: Any, *, exactly: bool = False) -> Any:
        used.append(exactly)
        return plain(self, weights, exactly=exactly)

    monkeypatch.setattr(Block, "scores", watched)
    for factor in (0.999, 1.001):
        weights = np.zeros(10)
        weights[3] = factor * reach
        problem.gradient_sum(weights)
        problem.block_gradient(problem.data.part(slice(0, 1)), weights)
    assert used == [False, False, True, True]


def test_weights_beyond_the_floats_are_refused_for_sparse_rows_too() -> None:
    for form in (np.asarray, sp.csr_array):
        problem = Problem(ArrayData(form(_rows(9, 2)), np.ones(9), PLAIN), Logistic())
        for weights in (np.full(2, 1e200), np.full(2, np.nan)):
            with pytest.raises(InvalidInput, match="too large for floats"):
                problem.gradient_sum(weights)


def test_last_iterates_on_centred_rows_are_charged_for_their_radius() -> None:
    near, far = (
        Problem(SizeOnly(1000, 10, Scaling(1.0).centred(np.zeros(9), r)), Logistic())
        for r in (0.08, 1.0)
    )
    how: dict[str, Any] = {"steps": 10, "size": 100, "step_size": 1.0, "radius": 10.0}
    assert of_iterates(near, **how) > 2.0 * of_iterates(far, **how)


def test_entries_given_twice_are_one_entry() -> None:
    """Norms of separate entries would be too small by the root of their number."""
    repeated = sp.csr_array((np.ones(16), np.zeros(16, dtype=int), np.array([0, 16])), shape=(1, 2))
    assert row_squares(repeated)[0] == 256.0
    assert row_dots(repeated, np.array([1.0, 0.0]))[0] == 16.0
    block = next(ArrayData(repeated, np.ones(1), PLAIN).blocks())
    assert np.linalg.norm(block.pull_back(np.ones(1))) <= 1.0


# --- the bound is the inequality that it states --------------------------------------------------
@pytest.mark.parametrize("rows", [100, 2048, 7000])
def test_a_sum_is_as_near_to_the_exact_one_as_the_bound_says(rows: int) -> None:
    generator = np.random.default_rng(rows)
    data = ArrayData(generator.standard_normal((rows, 6)), np.ones(rows), PLAIN)
    problem = Problem(data, Logistic())
    weights = generator.standard_normal(6)
    parts = [problem.block_gradient(data.part(slice(i, i + 1)), weights) for i in range(rows)]
    exact = np.array([math.fsum(column) for column in np.array(parts).T])
    error = float(np.linalg.norm(problem.gradient_sum(weights) - exact))
    assert error <= rows * 3.0 * gamma(PIECE + 8)
    assert of_sums(problem) >= 2.0 * rows * gamma(PIECE) / problem.moved


def test_a_total_keeps_what_a_float_sum_loses() -> None:
    total = CarriedTotal((1,))
    for value in [1e16, *[1.0] * 1000, -1e16]:
        total.add(np.array([value]))
    assert total.value[0] == 1000.0


def test_rho_is_small_for_ordinary_sizes_and_charged_in_noise_and_process() -> None:
    problem = Problem(SizeOnly(1_000_000, 100), Logistic(0.5), strength=1e-4)
    cases = [
        AveragedDescent(100, 4.0),
        LastIterateDescent(1.0, steps=250),
        CyclicDescent(1.0, batch_size=100_000, epochs=20),
        StopDescent(0.1),
    ]
    for algorithm in cases:
        assert 0.0 < algorithm.rounding(problem) <= LARGEST
    hidden = cases[1].process(problem)
    assert hidden.loss.lipschitz == 0.5 * (1.0 + cases[1].rounding(problem))
    assert of_sums(problem) < 3e-6


def test_rho_covers_every_loss_and_both_relations() -> None:
    losses = (
        Logistic(0.01),
        Huber(1e-3),
        SmoothedHinge(1e-6),
        MultinomialLogistic(50, 0.1),
        OneVersusRest(SmoothedHinge(0.5), 20),
    )
    for loss in losses:
        assert of_sums(Problem(SizeOnly(30_000, 800), loss)) < 1e-5
        wide = Problem(
            SizeOnly(30_000, 800), loss, adjacency=Adjacency.ADD_OR_REMOVE, private_records=30_000
        )
        assert of_sums(wide, 0.08) <= LARGEST


def test_sizes_beyond_the_bound_are_refused_with_a_way_out() -> None:
    problem = Problem(SizeOnly(10**13, 10), Logistic())
    with pytest.raises(InvalidInput, match="Rounding could move"):
        of_sums(problem)
    with pytest.raises(InvalidInput, match="descent"):
        of_iterates(problem, steps=10**9, size=10**6, step_size=1e-9, radius=None)


def test_no_target_and_no_loss_gives_a_longer_contribution() -> None:
    """A label of 1000, a loss that lies about its slope, NaN: the bound is a fact all the same."""

    class Liar:
        outputs, slope_bound, curvature_bound, convex = 1, 1.0, 1.0, True

        def value(self, scores: Any, targets: Any) -> Any:
            return 0.0 * scores

        def slope(self, scores: Any, targets: Any) -> Any:
            return np.where(targets > 0, 1e9, np.nan)

    data = ArrayData(_rows(2), np.array([1000.0, -1000.0]), Scaling(2.0))
    for loss in (Huber(1.0), Liar()):
        problem = Problem(data, loss)  # type: ignore[arg-type]
        for at in (0, 1):
            part = problem.block_gradient(data.part(slice(at, at + 1)), np.ones(38))
            assert np.linalg.norm(part) <= 1.0
    with pytest.raises(InvalidInput, match="NaN"):
        ArrayData(_rows(2), np.array([1.0, np.nan]), Scaling(2.0))


@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge(0.5)])
@pytest.mark.parametrize("target", [0.0, 1000.0])
def test_targets_of_two_classes_are_signs(loss: Any, target: float) -> None:
    """A target of 1000 multiplies the curvature by 10^6: steps that contract no more."""
    data = ArrayData(_rows(50), np.where(np.arange(50) % 2, target, -1.0), Scaling(2.0))
    with pytest.raises(InvalidInput, match="-1 or"):
        learn(Problem(data, loss), Budget(1.0, 1e-5), algorithm="last-iterate")


def test_shapes_that_would_spread_one_noise_over_many_sums_are_refused() -> None:
    rows, budget = _rows(50, 1), Budget(1.0, 1e-5)
    column = Problem(ArrayData(rows, np.ones((50, 1)), PLAIN), Huber(0.5))
    with pytest.raises(InvalidInput, match="one number for each row"):
        learn(column, budget, algorithm="descent")
    problem = Problem(ArrayData(rows, np.ones(50), PLAIN), Huber(0.5))
    for start in (np.zeros((1, 1)), np.zeros((1, 7)), np.zeros(2)):
        with pytest.raises(InvalidInput, match="shape"):
            learn(problem, budget, start=start)


_HUGE = 1.7e308


@pytest.mark.parametrize("entries", [[_HUGE] * 2, [_HUGE] * 2 + [-_HUGE] * 2])
@pytest.mark.parametrize("centring", [0.0, 0.1])
def test_one_row_beyond_the_floats_does_not_poison_the_model(
    entries: list[float], centring: float
) -> None:
    """Finite entries of one place whose sum is not: infinity times 0 made every weight NaN."""
    rows = sp.csr_array(_rows(60, 3))
    number = len(entries)
    last = sp.csr_array((entries, np.zeros(number, dtype=int), [0, number]), shape=(1, 3))
    whole = sp.csr_array(
        (
            np.concatenate([rows.data, last.data]),
            np.concatenate([rows.indices, last.indices]),
            np.append(rows.indptr, rows.indptr[-1] + number),
        ),
        shape=(61, 3),
    )
    options = Options(centring=centring, steps=5)
    problem = Problem(ArrayData(whole, np.ones(61), Scaling(2.0)), Logistic())
    learned = learn(problem, Budget(1.0, 1e-5), algorithm="descent", options=options)
    assert np.isfinite(learned.weights).all()


def test_rows_too_wide_for_exact_scores_are_refused() -> None:
    """Around a centre rows are long: their parts would leave the whole numbers of a float."""
    problem = Problem(SizeOnly(100, 1 << 20), Logistic())
    with pytest.raises(InvalidInput, match="exact scores"):
        of_sums(problem, 1e-3)


def test_rows_are_kept_between_passes_and_stay_what_they_were() -> None:
    rows = _rows(5000, 7)
    data = ArrayData(rows, np.ones(5000), Scaling(2.0))
    problem, weights = Problem(data, Logistic()), np.linspace(-1.0, 1.0, 8)
    before = problem.gradient_sum(weights)
    rows *= 1e6  # somebody writes into the array meanwhile: factors would be those of other rows
    np.testing.assert_array_equal(problem.gradient_sum(weights), before)


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"steps": 2.5}, {"batch_size": -5}, {"radius": -1.0}]
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Options(**options)


def test_the_certificate_says_mode_rho_and_sensitivity() -> None:
    data = ArrayData(_rows(), np.ones(333), Scaling(2.0))
    learned = learn(Problem(data, Logistic(0.5)), Budget(1.0, 1e-5), algorithm="descent", seed=0)
    run = certificate_of_fit(learned)["run"]
    rho = run["settings"]["rho"]
    assert run["settings"]["arithmetic"] == "bounded"
    assert 0.0 < rho < 1e-9
    assert run["sensitivity"] == 0.5 * (1.0 + rho)


# --- B5: convex noise from the cryptographic generator -------------------------------------------
def test_noise_can_come_from_the_cryptographic_generator() -> None:
    data = ArrayData(_rows(), np.ones(333), Scaling(2.0))
    problem = Problem(data, Logistic(0.5))
    for algorithm in ("descent", "poisson"):
        learned = learn(problem, Budget(1.0, 1e-5), algorithm=algorithm, cryptographic=True)
        assert learned.private
        said = certificate_of_fit(learned)["run"]["sampling"]
        assert said == "SHAKE-256, operating-system entropy"
    seeded = [
        learn(problem, Budget(1.0, 1e-5), algorithm="descent", cryptographic=True, seed=1).weights
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*seeded)


def test_cryptographic_noise_is_standard_normal() -> None:
    drawn = Entropy(5, cryptographic=True).normal((200_000,))
    assert kstest(drawn, "norm").pvalue > 1e-3
    assert Entropy(5, cryptographic=True).normal((3, 2)).shape == (3, 2)
    coins = Entropy(5, cryptographic=True).included(100_000, 0.3)
    assert abs(coins.mean() - 0.3) < 0.01


def test_the_radius_reaches_far_beyond_the_digits_of_one_word() -> None:
    def smallest(count: int) -> Any:
        return np.zeros(count, dtype=np.uint64)

    assert normal_from_words(smallest, (1,))[0] > 13.0
    largest = normal_from_words(lambda n: np.full(n, 2**64 - 1, dtype=np.uint64), (1,))
    assert abs(largest[0]) < 1e-6
