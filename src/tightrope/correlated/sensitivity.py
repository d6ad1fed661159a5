"""How far one record can move C times the sums, in clip norms: exactly, or from above.

A record adds g_t, of length at most 1, to the sum of each step t that it takes part in, so it moves
C times the sums by the root of sum_{s,t} G_st <g_s, g_t>, G = C^T C. The sensitivity is the largest
such number over the patterns of steps that the sampler allows. Each pattern needs at most
sum_{s,t} |G_st|, and attains it where no entry is negative (all g_t equal).

 - Separated patterns and columns that are not negative and do not rise: the first pattern 0, b,
   2b, ... is the worst (Kalinin, Lampert 2024, arXiv:2405.13763, Theorem 2). Any other column is
   first replaced by the smallest one of that kind above its absolute values, which only raises G.
 - Fixed cycles: each pattern, one after the other.
 - All others: max over patterns P of sum_{s in P} (max over patterns P' of sum_{t in P'} |G_st|),
   both by a dynamic programme (Choquette-Choo et al. 2023, arXiv:2306.08153, Algorithm 3). Exact
   where participations are so far apart that their columns do not meet, as G is then diagonal.

Lower ends are those of a pattern. Floats: sums of n products lose n units of the product of the
two norms; the errors of columns are those that their strategies state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.correlated.strategies import Strategy, ToeplitzStrategy, check_strategy
from tightrope.errors import NotCertified
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

_MOST_STEPS = 4096  # of the general bound, whose work grows with their square
_MOST_WORK = 1e9
_NEAR = 1e-9


@final
@dataclass(frozen=True)
class Separated:
    """At most `count` steps, each `gap` or more after the one before."""

    count: int
    gap: int


@final
@dataclass(frozen=True)
class Cycle:
    """The steps j, j + period, j + 2 period, ... for one j."""

    period: int


@final
@dataclass(frozen=True)
class OnceAnEpoch:
    """One step of each block of `length` steps, whichever."""

    length: int


Pattern = Separated | Cycle | OnceAnEpoch


@lru_cache(maxsize=256)
def sensitivity(strategy: Strategy, pattern: Pattern, steps: int) -> Interval:
    """The largest length by which one record moves C times the sums; both ends hold."""
    check_strategy(strategy, steps)
    if steps == 0:
        return Interval.exact(0.0)
    found = Interval(0.0, math.inf)
    if isinstance(strategy, ToeplitzStrategy) and not isinstance(pattern, OnceAnEpoch):
        found = _of_first_pattern(strategy, pattern, steps)
        if found.relative_width <= _NEAR or steps > _MOST_STEPS:
            return found
    if steps > _MOST_STEPS:
        raise NotCertified(
            f"The sensitivity of {strategy} for {pattern} is known for at most {_MOST_STEPS:,} "
            f"steps; got {steps:,}. Visit the batches in a fixed cycle, or plan fewer steps."
        )
    other = _of_gram_matrix(strategy, pattern, steps)
    lower = max(found.lower, other.lower)
    return Interval(lower, max(lower, min(found.upper, other.upper)))


def column_norms(strategy: Strategy, steps: int) -> FloatArray:
    """The length of each column of C, from above: to 8 units where long doubles are longer."""
    rest = 0.0
    if isinstance(strategy, ToeplitzStrategy):
        column = strategy.column(steps)
        squares = np.cumsum(column.astype(np.longdouble) ** 2)[::-1]
        rest = strategy.column_error(column)
    else:
        matrix = strategy.matrix(steps).astype(np.longdouble)
        squares = np.sum(matrix * matrix, axis=0)
    slack = (steps + 8) * float(np.finfo(np.longdouble).eps) + 2.0 * ULP
    return np.asarray((np.sqrt(squares) + rest).astype(np.float64) * (1.0 + slack))


def _of_first_pattern(
    strategy: ToeplitzStrategy, pattern: Separated | Cycle, steps: int
) -> Interval:
    """Of the steps 0, b, 2b, ...; upper end by a column above that does not rise."""
    gap = pattern.gap if isinstance(pattern, Separated) else pattern.period
    count = -(-steps // gap)
    if isinstance(pattern, Separated):
        count = min(pattern.count, count)
    column = strategy.column(steps)
    above = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    error = count * strategy.column_error(column)
    lost = (steps + count + 8) * ULP
    least = _norm(_shifted(column, count, gap)) * (1.0 - lost) - error
    most = _norm(_shifted(above, count, gap)) * (1.0 + lost) + error
    return Interval(max(least, 0.0), most)


def _shifted(column: FloatArray, count: int, gap: int) -> FloatArray:
    """The sum of `count` copies of a column, each `gap` further down."""
    steps = len(column)
    if count * gap >= steps:
        rows = -(-steps // gap)
        padded = np.zeros(rows * gap)
        padded[:steps] = column
        return np.cumsum(padded.reshape(rows, gap), axis=0).reshape(-1)[:steps]
    found = column.copy()
    for j in range(1, count):
        found[j * gap :] += column[: steps - j * gap]
    return found


def _norm(values: FloatArray) -> float:
    return float(np.sqrt(np.sum(values * values)))


def _of_gram_matrix(strategy: Strategy, pattern: Pattern, steps: int) -> Interval:
    gram, error, rest = _gram(strategy, steps)
    size = np.abs(gram) + error
    if isinstance(pattern, Cycle):
        most = max(
            float(size[j :: pattern.period, j :: pattern.period].sum())
            for j in range(min(pattern.period, steps))
        )
    else:
        size[_never_both(pattern, steps)] = 0.0
        most = float(_most(_most(size, pattern)[None, :], pattern)[0])
    least, count = 0.0, 0
    for at in _examples(pattern, steps):
        part, lost = gram[np.ix_(at, at)], error[np.ix_(at, at)]
        count = max(count, len(at))
        least = max(least, float((part - lost).sum()))
    slack = (steps + 2 * count + 16) * ULP
    if np.count_nonzero(size) == steps:  # no two columns of a pattern meet: attained
        least = max(least, most * (1.0 - slack) - 2.0 * float(np.diag(error).sum()))
    upper = math.sqrt(most * (1.0 + slack)) + count * rest
    lower = math.sqrt(max(least, 0.0)) * (1.0 - slack) - count * rest
    return Interval(min(max(lower, 0.0), upper), upper)


def _gram(strategy: Strategy, steps: int) -> tuple[FloatArray, FloatArray, float]:
    """C^T C, the error of its entries, and that of each column."""
    gram = np.zeros((steps, steps))
    rest, bands = 0.0, min(strategy.bands or steps, steps)
    if isinstance(strategy, ToeplitzStrategy):
        column = strategy.column(steps)
        rest = strategy.column_error(column)
    else:
        matrix, rows = strategy.matrix(steps), np.arange(steps)[:, None] + np.arange(bands)
        columns = matrix[np.minimum(rows, steps - 1), np.arange(steps)[:, None]] * (rows < steps)
    for lag in range(bands):
        if isinstance(strategy, ToeplitzStrategy):
            entries = np.cumsum(column[: steps - lag] * column[lag:])[::-1]
        else:
            entries = np.sum(columns[: steps - lag, lag:] * columns[lag:, : bands - lag], axis=1)
        first = np.arange(steps - lag)
        gram[first, first + lag] = gram[first + lag, first] = entries
    lengths = np.sqrt(np.diag(gram))
    return gram, (gram != 0.0) * ((2 * steps + 16) * ULP) * np.outer(lengths, lengths), rest


def _never_both(pattern: Separated | OnceAnEpoch, steps: int) -> FloatArray:
    """The pairs of different steps of which a record takes part in one at most."""
    at = np.arange(steps)
    if isinstance(pattern, OnceAnEpoch):
        close = np.equal.outer(at // pattern.length, at // pattern.length)
    else:
        close = np.abs(np.subtract.outer(at, at)) < pattern.gap
    return np.asarray(close & ~np.eye(steps, dtype=bool))


def _examples(pattern: Pattern, steps: int) -> Iterator[NDArray[np.int64]]:
    """Some of the patterns: as many steps as fit, from the first on; of a cycle all."""
    if isinstance(pattern, Cycle):
        yield from (np.arange(j, steps, pattern.period) for j in range(min(pattern.period, steps)))
    elif isinstance(pattern, OnceAnEpoch):
        yield np.arange(0, steps, pattern.length)
        ends = np.minimum(np.arange(0, steps, pattern.length) + pattern.length - 1, steps - 1)
        ends[1::2] = np.arange(0, steps, pattern.length)[1::2]  # two of them next to each other
        yield ends
    else:
        yield np.arange(0, steps, pattern.gap)[: pattern.count]


def _most(weights: FloatArray, pattern: Separated | OnceAnEpoch) -> FloatArray:
    """Of each row of weights >= 0, the largest sum over a pattern."""
    rows, steps = weights.shape
    if isinstance(pattern, OnceAnEpoch):
        starts = np.arange(0, steps, pattern.length)
        return np.asarray(np.maximum.reduceat(weights, starts, axis=1).sum(axis=1))
    gap, count = pattern.gap, min(pattern.count, -(-steps // pattern.gap))
    if gap == 1:
        return np.asarray(np.sort(weights, axis=1)[:, steps - count :].sum(axis=1))
    if count == 1:
        return np.asarray(weights.max(axis=1))
    if count * gap >= steps or count * steps * rows > _MOST_WORK:
        count = 0  # the gap alone: as many as fit, which is never less
    # best[t % gap]: from step t on, with 1, 2, ..., count participations, or with any number
    best = np.zeros((gap, rows, max(count, 1)))
    last = np.zeros((rows, max(count, 1)))
    for t in range(steps - 1, -1, -1):
        after = best[t % gap]  # of step t + gap
        if count:
            after = np.concatenate([np.zeros((rows, 1)), after[:, :-1]], axis=1)
        last = np.maximum(last, weights[:, t : t + 1] + after)
        best[t % gap] = last
    return np.asarray(last[:, -1])
