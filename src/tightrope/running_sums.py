"""Running sums that are released all the time: a continual counter.

    counter = RunningSums(365, Target.approx_dp(1.0, 1e-6))
    for day in days:
        print(counter.add(day))      # rows of this day; the noisy sum of all rows so far

Each step's rows are shortened to a norm and added up without rounding; correlated noise makes the
error of the sums grow with the logarithm of the steps where independent noise grows with their
root. A record is a row; it may be in one step, or in several that are far enough apart.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.accounting import Account, account
from tightrope.calibrate import find_noise
from tightrope.correlated.factors import best_buffers
from tightrope.correlated.sensitivity import Separated
from tightrope.correlated.strategies import SquareRoot, Strategy
from tightrope.correlated.streaming import Stream
from tightrope.correlated.workloads import noise_left
from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency, CorrelatedSGD, SeparatedSampling
from tightrope.target import Target
from tightrope.validate import FloatArray, check_count, check_non_negative, check_positive

_GRID = 2.0**30  # parts of a norm: rows are cut to whole ones, so that sums are exact
_MOST_ROWS = 2**32  # in all: whole sums stay below 2^62
_WHOLE = 4096  # steps whose square root is kept whole
_BUFFERS = 4


@final
class RunningSums:
    """Noisy sums of all rows so far, after each step; all of them together meet the target.

    target: what the releases of all steps meet together; or the `noise_multiplier` of the draws.
    norm: public; longer rows are shortened. width: numbers in a row; 1 for a plain count.
    most_joins, separation: a record is in at most so many steps, each `separation` or more after
    the one before. Whoever adds rows keeps to that: the counter sees rows, not records.
    """

    def __init__(
        self,
        steps: int,
        target: Target | None = None,
        *,
        noise_multiplier: float | None = None,
        norm: float = 1.0,
        width: int = 1,
        most_joins: int = 1,
        separation: int = 1,
        strategy: Strategy | None = None,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
        seed: int | None = None,
    ) -> None:
        """seed: for tests; what is drawn from one is not private."""
        steps, self.width = check_count(steps, "steps", low=1), check_count(width, "width", low=1)
        self.norm = float(check_positive(norm, "norm"))
        sampling = SeparatedSampling(separation, most_joins)
        if strategy is None:
            strategy = _usual(steps, Separated(sampling.most_joins, sampling.separation))
        if (target is None) == (noise_multiplier is None):
            raise InvalidInput(
                "Give a target or a noise_multiplier, and not both: one says how much noise is "
                f"added. Got target {target!r} and noise_multiplier {noise_multiplier!r}."
            )
        noise = 1.0
        if noise_multiplier is not None:
            noise = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        self.process = CorrelatedSGD(strategy, sampling, noise, steps, adjacency)
        if target is not None:
            self.process = find_noise(self.process, target).process
        self._words = open_stream("running sums", seed=seed)
        self._stream = Stream(strategy, steps)
        self._whole = np.zeros(self.width, dtype=np.int64)
        self._noise = np.zeros(self.width)
        self._rows = 0

    @property
    def private(self) -> bool:
        """Is the noise from the operating system, and not from a seed?"""
        return self._words.private

    @property
    def errors(self) -> FloatArray:
        """The standard deviation of the noise in each number of the sum, after each step."""
        left = noise_left(self.process.strategy, self.process.steps)
        return np.array(left) * self.process.noise_multiplier * self.norm

    def account(self) -> Account:
        """What all steps lose together."""
        return account(self.process)

    def add(self, rows: ArrayLike) -> FloatArray:
        """The next step: its rows, one below the other (none is a step too); the noisy sum."""
        table = np.asarray(rows, dtype=np.float64)
        table = table.reshape(-1, self.width) if table.size == 0 or self.width == 1 else table
        if table.ndim != 2 or table.shape[1] != self.width or not np.isfinite(table).all():
            raise InvalidInput(
                f"A step takes rows of {self.width} finite numbers; got an array of shape "
                f"{np.shape(rows)}. Nothing was added, and no step was taken."
            )
        if self._rows + len(table) > _MOST_ROWS:
            raise InvalidInput(f"A counter adds up at most {_MOST_ROWS:,} rows exactly.")
        deviation = self.process.noise_multiplier * self.norm
        draw = deviation * self._words.generator().standard_normal(self.width)
        self._noise = self._noise + self._stream.next(draw)  # refuses steps beyond the plan
        self._rows += len(table)
        self._whole = self._whole + self._in_parts(table).sum(axis=0)
        return self._whole * (self.norm / _GRID) + self._noise

    def _in_parts(self, table: FloatArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows in whole parts of the norm, cut towards 0: no longer than the norm."""
        largest = np.maximum(np.abs(table).max(axis=1, initial=0.0), self.norm)[:, None]
        scaled = table / largest  # no square overflows
        lengths = np.sqrt(np.sum(scaled * scaled, axis=1))[:, None]
        shortened = scaled / np.maximum(lengths, self.norm / largest)
        return np.asarray(np.trunc(shortened * (_GRID * (1.0 - 1e-12))), dtype=np.int64)

    def state(self) -> dict[str, Any]:
        """What continues the counter later. Keep it secret: it holds the sums and the noise."""
        return {
            "stream": self._stream.state(),
            "whole": self._whole.copy(),
            "noise": self._noise.copy(),
            "rows": self._rows,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue a stored counter of the same plan. One state is continued once: two
        continuations would be two releases of the same steps."""
        self._stream.restore(state["stream"])
        self._whole, self._noise = state["whole"].copy(), state["noise"].copy()
        self._rows = int(state["rows"])


def _usual(steps: int, pattern: Separated) -> Strategy:
    if pattern.count == 1 and steps <= _WHOLE:
        return SquareRoot()
    return best_buffers(min(steps, _WHOLE), _BUFFERS, pattern)
