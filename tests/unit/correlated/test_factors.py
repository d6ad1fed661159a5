"""Optimised strategies: at least as good as what is printed elsewhere, and never worse than the
closed forms they start from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.correlated import (
    BandedToeplitz,
    BufferedToeplitz,
    SquareRoot,
    Strategy,
    Workload,
    banded_inverse_square_root,
    square_root,
    white,
)
from tightrope.correlated.factors import (
    best_banded,
    best_buffers,
    best_inverse,
    best_matrix,
    error_of,
)
from tightrope.correlated.sensitivity import Separated
from tightrope.errors import InvalidInput

EPOCHS = Separated(8, 256)


@pytest.mark.parametrize("bands", [1, 2, 16, 64, 256, 512])
def test_banded_ones_are_not_worse_than_the_square_root(bands: int) -> None:
    found = error_of(best_banded(2048, bands, EPOCHS), 2048, EPOCHS)
    assert found <= error_of(square_root(bands), 2048, EPOCHS)
    if bands >= 256:  # the square root has 10.948 there
        assert found < 10.5864


def test_two_draws_are_the_best_of_their_kind() -> None:
    """The golden share and error of DP-lambda-CGD, by a search over one number elsewhere."""
    found = best_inverse(2048, 2, EPOCHS)
    assert -found.coefficients[1] == pytest.approx(0.9690870202151446, abs=1e-5)
    assert error_of(found, 2048, EPOCHS) <= 16.1281847927 * (1 + 1e-9)


@pytest.mark.parametrize("bands", [4, 16])
def test_inverse_ones_are_better_than_the_closed_form(bands: int) -> None:
    plain = error_of(banded_inverse_square_root(bands), 2048, EPOCHS)
    assert error_of(best_inverse(2048, bands, EPOCHS), 2048, EPOCHS) < 0.6 * plain


# JAX Privacy, buffered_toeplitz_test.py: (scales, decays) of its optimum, steps, count, gap
PRINTED = [
    ((0.10595704738115597,), (0.9877027559462715,), 1000, 2, 5),
    (
        (0.07538320617916519, 0.5144060910151949), (0.993433070819512, 0.6342644427247973),
        1000, 2, 5,
    ),
    pytest.param(
        (0.0122853238, 0.1878393665), (0.9999528892, 0.9857068667), 100_000, 1, 1,
        marks=pytest.mark.slow,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("scales", "decays", "steps", "count", "gap"), PRINTED)
def test_buffers_are_at_least_as_good_as_those_of_jax_privacy(
    scales, decays, steps: int, count: int, gap: int
) -> None:
    pattern = Separated(count, gap)
    for worst in (True, False) if steps < 10_000 else (True,):
        ours = error_of(best_buffers(steps, len(scales), pattern, worst=worst), steps, pattern,
                        worst=worst)  # fmt: skip
        theirs = error_of(BufferedToeplitz(scales, decays), steps, pattern, worst=worst)
        assert ours <= theirs * (1 + 1e-9)


@pytest.mark.parametrize(
    ("steps", "buffers", "ratio"),
    [(10, 1, 1.04), (10_000, 1, 1.45), pytest.param(10_000, 3, 1.03, marks=pytest.mark.slow)],
)
def test_few_buffers_are_near_the_best_there_is(steps: int, buffers: int, ratio: float) -> None:
    """The tolerances of JAX Privacy's own test: error over 1 + ln(n) / pi."""
    found = error_of(best_buffers(steps, buffers, worst=True), steps, worst=True)
    assert found <= ratio * (1.0 + math.log(steps) / math.pi)


@pytest.mark.parametrize("bands", [None, 8])
def test_every_entry_is_better_than_every_diagonal(bands: int | None) -> None:
    found = best_matrix(64, bands)
    assert np.linalg.norm(found.matrix(64), axis=0) == pytest.approx(1.0, abs=1e-12)
    assert error_of(found, 64) < error_of(best_banded(64, bands or 64), 64)


def test_the_workload_counts() -> None:
    """Momentum and rates that fall: searched for them, the error is less than for prefix sums."""
    slow = Workload(0.95)
    for steps in (40, 200):
        ours = error_of(best_banded(steps, 20, workload=slow), steps, workload=slow)
        assert ours < error_of(best_banded(steps, 20), steps, workload=slow) * (1 - 1e-4)
    falling = Workload(0.9, tuple(np.linspace(1.0, 0.0, 60)))
    others: list[Strategy] = [white(), SquareRoot(), best_banded(60, 60), best_matrix(60)]
    least = error_of(best_matrix(60, workload=falling), 60, workload=falling)
    assert all(least < error_of(one, 60, workload=falling) for one in others)
    with pytest.raises(InvalidInput, match="these learning rates change"):
        best_banded(60, 4, workload=falling)


def test_what_is_not_searched_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 1,024 steps"):
        best_matrix(2000)
    assert isinstance(best_banded(1, 5), BandedToeplitz)
    assert best_buffers(1, 2).buffers(1) == 2
