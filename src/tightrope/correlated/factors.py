"""The best strategies of a kind for a workload: least error times sensitivity.

The error of Toeplitz strategies is that of the first row sums of A C^-1: with column c of C, d of
C^-1 (one over c, as power series) and a of A, b = a d and the mean squared error of step i is the
sum of b_k^2 over k <= i. Its derivative by c is that by d, times -d^2. Minimised by L-BFGS from a
known strategy of the kind; the answer is never worse than the start, both judged by the certified
sensitivity. What comes out is a strategy like any other: nothing of its account rests on this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from tightrope.correlated.sensitivity import Separated, sensitivity
from tightrope.correlated.strategies import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    SquareRoot,
    Strategy,
    Triangular,
    banded_inverse_square_root,
    inverse_series,
    square_root,
)
from tightrope.correlated.workloads import (
    PREFIX_SUMS,
    Workload,
    noise_left,
    product,
    root_mean_square,
)
from tightrope.errors import InvalidInput, TightropeError
from tightrope.validate import FloatArray, check_count

ONCE = Separated(1, 1)
_MOST_MATRIX = 1024  # steps
_OPTIONS: dict[str, Any] = {"maxiter": 200, "maxfun": 300, "ftol": 1e-11, "gtol": 1e-7}
_Made = TypeVar("_Made", bound=Strategy)


def error_of(
    strategy: Strategy,
    steps: int,
    pattern: Separated = ONCE,
    workload: Workload = PREFIX_SUMS,
    worst: bool = False,
) -> float:
    """Sensitivity times the root mean square of the error over the steps, or its worst step."""
    left = noise_left(strategy, steps, workload)
    return sensitivity(strategy, pattern, steps).upper * (
        max(left) if worst else root_mean_square(left)
    )


def best_banded(
    steps: int,
    bands: int,
    pattern: Separated = ONCE,
    workload: Workload = PREFIX_SUMS,
    worst: bool = False,
) -> BandedToeplitz:
    """C with `bands` diagonals, each constant. Where columns of one record meet, they do not rise:
    each entry is a share of the one before, whose odds are searched."""
    problem = _Problem(steps, pattern, workload, worst)
    bands = min(check_count(bands, "bands", low=1), steps)
    meet = pattern.count > 1 and bands > pattern.gap

    def entries(x: FloatArray) -> FloatArray:
        share = 1.0 / (1.0 + np.exp(-np.clip(x, -60.0, 60.0)))
        return np.asarray(np.cumprod(share) if meet else x, dtype=np.float64)

    def made(x: FloatArray) -> BandedToeplitz:
        return BandedToeplitz((1.0, *entries(x)))

    def slope(x: FloatArray) -> tuple[float, FloatArray]:
        column = np.concatenate([[1.0], entries(x), np.zeros(steps - bands)])
        value, by_column, _ = problem.at(column, inverse_series(column[:bands], steps))
        by = by_column[1:bands]
        if meet:
            by = np.cumsum((column[1:bands] * by)[::-1])[::-1] / (1.0 + np.exp(np.clip(x, -60, 60)))
        return value, by

    root = SquareRoot().column(bands)
    share = root[1:] / root[:-1]
    return problem.least(made, slope, [np.log(share / (1.0 - share)) if meet else root[1:]])


def best_inverse(
    steps: int,
    bands: int,
    pattern: Separated = ONCE,
    workload: Workload = PREFIX_SUMS,
    worst: bool = False,
) -> InverseToeplitz:
    """C^-1 with `bands` diagonals, each constant; two of them are DP-lambda-CGD.

    Less than the noise of a step is taken back altogether, so that C does not grow: shares of it,
    and of what stays, are searched by their logarithms.
    """
    problem = _Problem(steps, pattern, workload, worst)
    bands = min(check_count(bands, "bands", low=1), steps)

    def taken(x: FloatArray) -> FloatArray:
        odds = np.exp(np.clip(x, -60.0, 60.0))
        return np.asarray(odds / (1.0 + np.sum(odds)))

    def made(x: FloatArray) -> InverseToeplitz:
        return InverseToeplitz((1.0, *-taken(x)))

    def slope(x: FloatArray) -> tuple[float, FloatArray]:
        shares = taken(x)
        noising = np.concatenate([[1.0], -shares, np.zeros(steps - bands)])
        value, _, by_noising = problem.at(inverse_series(noising[:bands], steps), noising)
        by_share = -by_noising[1:bands]
        return value, shares * (by_share - shares @ by_share)

    start = -np.array(banded_inverse_square_root(bands).coefficients[1:])
    return problem.least(made, slope, [np.log(start / (1.0 - np.sum(start)))])


def best_buffers(
    steps: int,
    buffers: int,
    pattern: Separated = ONCE,
    workload: Workload = PREFIX_SUMS,
    worst: bool = False,
) -> BufferedToeplitz:
    """A few decaying sums. Searched over the logarithms of the scales and of decay / (1 - decay).

    The start is 1 / sqrt(pi k) as an integral over decays: the square root of prefix sums.
    """
    problem = _Problem(steps, pattern, workload, worst)
    check_count(buffers, "buffers", low=1)
    k = np.arange(max(steps - 1, 0), dtype=np.float64)

    def parts(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        scales, odds = np.exp(np.clip(x, -60.0, 60.0)).reshape(2, buffers)
        return scales, odds / (1.0 + odds)

    def made(x: FloatArray) -> BufferedToeplitz:
        scales, decays = parts(x)
        return BufferedToeplitz(tuple(scales), tuple(decays))

    def slope(x: FloatArray) -> tuple[float, FloatArray]:
        scales, decays = parts(x)
        strategy = BufferedToeplitz(tuple(scales), tuple(decays))
        value, by_column, _ = problem.at(strategy.column(steps), strategy.noising(steps))
        with np.errstate(under="ignore"):
            powers = decays[:, None] ** k
            by_scale = powers @ by_column[1:]
            by_decay = scales / np.maximum(decays, 1e-300) * ((powers * k) @ by_column[1:])
        return value, np.concatenate([by_scale * scales, by_decay * decays * (1.0 - decays)])

    def start(longest: float) -> FloatArray:
        spread = max(longest, 2.0) ** (1.0 / buffers)
        lives = spread ** (np.arange(buffers) + 0.5)
        scales = np.log(spread) / np.pi / np.sqrt(lives)
        return np.concatenate([np.log(scales), -np.log(np.expm1(1.0 / lives))])

    return problem.least(made, slope, [start(life) for life in (steps / 4.0, 2.0 * steps)])


def best_matrix(
    steps: int, bands: int | None = None, workload: Workload = PREFIX_SUMS
) -> Triangular:
    """Any C with columns of length 1 and at most `bands` diagonals (all without it).

    The least mean error for records that take part once, or so seldom that their columns do not
    meet: their sensitivity is the root of how often.
    """
    bands = steps if bands is None else min(check_count(bands, "bands", low=1), steps)
    if not 1 <= steps <= _MOST_MATRIX:
        raise InvalidInput(
            f"Every entry of a matrix of {steps:,} steps would be searched; at most "
            f"{_MOST_MATRIX:,} steps are. Use best_banded, whose diagonals are constant."
        )
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    rows = np.arange(steps)
    kept = np.subtract.outer(rows, rows)
    kept = (kept >= 0) & (kept < bands)
    whole = workload.times(np.eye(steps))

    def columns(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        raw = np.zeros((steps, steps))
        raw[kept] = x
        lengths = np.sqrt(np.sum(raw * raw, axis=0))
        return raw / lengths, lengths

    def slope(x: FloatArray) -> tuple[float, FloatArray]:
        c, lengths = columns(x)
        left = solve_triangular(c, whole.T, lower=True, trans="T").T  # A C^-1
        error = float(np.sum(left * left))
        by_c = -2.0 / error * solve_triangular(c, left.T @ left, lower=True).T
        by_raw = (by_c - c * np.sum(c * by_c, axis=0)) / lengths
        return float(np.log(error)), by_raw[kept]

    start = (
        best_banded(steps, bands, workload=workload) if workload.toeplitz else square_root(bands)
    )
    options = {"maxiter": 200, "maxfun": 300}
    found = minimize(slope, start.matrix(steps)[kept], jac=True, method="L-BFGS-B", options=options)
    c, _ = columns(found.x)
    c *= np.where(np.diag(c) < 0.0, -1.0, 1.0)  # the sign of a column does not matter
    return Triangular(tuple(tuple(c[j : j + bands, j].tolist()) for j in range(steps)))


class _Problem:
    """ln of the squared error and of the squared sensitivity, and their slopes."""

    def __init__(self, steps: int, pattern: Separated, workload: Workload, worst: bool) -> None:
        self.steps, self.pattern, self.worst = check_count(steps, "steps", low=1), pattern, worst
        self.workload = workload
        if not workload.toeplitz:
            raise InvalidInput(
                "A Toeplitz strategy is searched for a workload that is the same at every step; "
                "these learning rates change. Use best_matrix, or search for constant rates."
            )
        self.summed = workload.column(steps)
        weights = (steps - np.arange(steps)) / steps
        self.weights = np.ones(steps) if worst else weights

    def at(self, column: FloatArray, noising: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """The value, its slope by the column of C, and by that of C^-1 (one follows the other)."""
        left = product(self.summed, noising)
        error = float(np.sum(self.weights * left * left))
        by_noising = _correlated(self.summed, 2.0 * self.weights * left / error)
        gap = self.pattern.gap
        count = min(self.pattern.count, -(-self.steps // gap))
        moved, by_column = np.zeros(self.steps), np.zeros(self.steps)
        for j in range(count):
            moved[j * gap :] += column[: self.steps - j * gap]
        square = float(np.sum(moved * moved))
        for j in range(count):
            by_column[: self.steps - j * gap] += 2.0 / square * moved[j * gap :]
        value = float(np.log(error) + np.log(square))
        whole_by_column = by_column - _correlated(product(noising, noising), by_noising)
        whole_by_noising = by_noising - _correlated(product(column, column), by_column)
        return value, whole_by_column, whole_by_noising

    def least(
        self,
        made: Callable[[FloatArray], _Made],
        slope: Callable[[FloatArray], tuple[float, FloatArray]],
        starts: Iterable[FloatArray],
    ) -> _Made:
        """The best strategy that was found from any start, or a start."""
        from scipy.optimize import minimize

        def guarded(x: FloatArray) -> tuple[float, FloatArray]:
            with np.errstate(all="ignore"):
                value, by = slope(x)
            good = np.isfinite(value) and bool(np.all(np.isfinite(by)))
            return (value, by) if good else (1e30, np.zeros_like(x))

        best: tuple[float, _Made] | None = None
        for start in starts:
            points = [start]
            if len(start):
                found = minimize(guarded, start, jac=True, method="L-BFGS-B", options=_OPTIONS)
                points.append(found.x)
            for point in points:
                try:
                    strategy = made(point)
                    error = error_of(strategy, self.steps, self.pattern, self.workload, self.worst)
                except TightropeError:
                    continue  # badly scaled
                if best is None or error < best[0]:
                    best = error, strategy
        assert best is not None  # a start is a known strategy
        return best[1]


def _correlated(kernel: FloatArray, values: FloatArray) -> FloatArray:
    """sum_k kernel_k values_{i+k}: the transpose of multiplying by a power series."""
    return product(values[::-1], kernel)[::-1]
