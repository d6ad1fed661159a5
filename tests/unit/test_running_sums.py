"""The continual counter: its noise has the covariance it claims, and its sums are exact.

Statistical tests have a false-alarm rate of 1e-6 each.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tightrope import Adjacency, Target
from tightrope.correlated import (
    BandedToeplitz,
    BufferedToeplitz,
    SquareRoot,
    Strategy,
    Triangular,
    banded_inverse_square_root,
    square_root,
    white,
)
from tightrope.errors import InvalidInput
from tightrope.running_sums import RunningSums

FALSE_ALARM = 1e-6
STEPS, WIDTH = 9, 6000
STRATEGIES = [
    white(),
    SquareRoot(),
    square_root(3),
    BandedToeplitz((1.0, 0.6, 0.4, 0.3)),
    banded_inverse_square_root(3),
    BufferedToeplitz((0.3, 0.2), (0.9, 0.5)),
    Triangular(tuple((1.0, 0.5, 0.4)[: STEPS - j] for j in range(STEPS))),
]


def fits(sample: np.ndarray, factor: np.ndarray) -> bool:
    """Are rows of `sample` factor times independent standard normal numbers? Each entry of the
    covariance of what should be standard, by chi-square and by Fisher's transform."""
    white = np.linalg.solve(factor, sample)
    count, size = white.shape[1], len(white)
    each = FALSE_ALARM / (size * (size + 1) / 2)
    low, high = stats.chi2.ppf([each / 2, 1 - each / 2], count)
    squares = (white**2).sum(axis=1)
    own = bool(np.all((squares > low) & (squares < high)))
    correlations = np.corrcoef(white)[np.triu_indices(size, 1)]
    limit = stats.norm.isf(each / 2) / np.sqrt(count - 3)
    return own and bool(np.all(np.abs(np.arctanh(correlations)) < limit))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_what_is_released_has_the_covariance_of_the_strategy(strategy: Strategy) -> None:
    counter = RunningSums(
        STEPS, noise_multiplier=2.0, norm=3.0, width=WIDTH, strategy=strategy, seed=4
    )
    sums = np.stack([counter.add([]) for _ in range(STEPS)])
    factor = 2.0 * 3.0 * np.tri(STEPS) @ strategy.inverse(STEPS)
    assert fits(sums, factor)
    assert counter.errors == pytest.approx(np.linalg.norm(factor, axis=1))


def test_the_test_notices_a_band_that_is_missing() -> None:
    counter = RunningSums(STEPS, noise_multiplier=1.0, width=WIDTH, strategy=square_root(3), seed=4)
    sums = np.stack([counter.add([]) for _ in range(STEPS)])
    assert not fits(sums, np.tri(STEPS) @ square_root(2).inverse(STEPS))
    assert not fits(sums, np.tri(STEPS) @ SquareRoot().inverse(STEPS))
    assert not fits(sums, 1.05 * np.tri(STEPS) @ square_root(3).inverse(STEPS))


def test_sums_are_exact_and_rows_are_shortened() -> None:
    counter = RunningSums(3, noise_multiplier=0.0, norm=2.0, width=2)
    rows = [[3.0, 4.0], [0.3, 0.0], [1e300, 0.0], [0.0, -1e-300]]
    assert counter.add(rows) == pytest.approx([1.2 + 0.3 + 2.0, 1.6], abs=1e-8)
    one = counter._in_parts(np.array([*rows, [2.0, 0.0], [1e200, 1e200]]))
    assert np.all((one.astype(object) ** 2).sum(axis=1) <= 2**60)
    assert counter.add([]) == pytest.approx([3.5, 1.6], abs=1e-8)
    with pytest.raises(InvalidInput, match="no step was taken"):
        counter.add([[1.0, np.nan]])
    with pytest.raises(InvalidInput, match="rows of 2 finite"):
        counter.add([[1.0]])
    counter.add([[1.0, 0.0]])
    with pytest.raises(InvalidInput, match="planned for 3 steps"):
        counter.add([])


def test_the_target_is_met_by_all_steps_together() -> None:
    target = Target.approx_dp(1.0, 1e-6)
    found = {}
    for joins, apart in ((1, 1), (3, 10)):
        counter = RunningSums(100, target, most_joins=joins, separation=apart)
        assert counter.private
        assert 0.99 < counter.account().epsilon(1e-6).upper <= 1.0
        found[joins] = counter.errors[-1]
    plain = RunningSums(100, target, strategy=white())
    assert found[1] < 0.4 * plain.errors[-1]
    assert found[3] < 3.0 * found[1]
    swapped = RunningSums(100, target, adjacency=Adjacency.REPLACE_ONE)
    assert swapped.errors[-1] == pytest.approx(2.0 * found[1], rel=1e-6)


def test_a_stored_counter_goes_on() -> None:
    plan = {"noise_multiplier": 1.0, "width": 3, "strategy": square_root(2), "seed": 1}
    first = RunningSums(6, **plan)  # type: ignore[arg-type]
    for _ in range(3):
        first.add([[1.0, 0.0, 0.0]])
    stored, second = first.state(), RunningSums(6, **plan)  # type: ignore[arg-type]
    second.restore(stored)
    later = second.add([])
    assert second._stream.step == 4
    assert later[0] == pytest.approx(3.0 + second._noise[0], abs=1e-8)
    with pytest.raises(InvalidInput, match="another strategy or plan"):
        RunningSums(6, **{**plan, "strategy": square_root(3)}).restore(stored)  # type: ignore[arg-type]


def test_noise_must_be_said_once() -> None:
    for words in ({}, {"target": Target.approx_dp(1.0, 1e-6), "noise_multiplier": 1.0}):
        with pytest.raises(InvalidInput, match="and not both"):
            RunningSums(5, **words)  # type: ignore[arg-type]
