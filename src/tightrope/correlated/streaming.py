"""Correlated noise one step at a time: fresh draws in, the rows of C^-1 times all draws out.

    stream = Stream(square_root(32), steps=1000)
    noise = stream.next(draw)      # `draw`: any array of numpy or torch, of independent noise

What is kept depends on the strategy: nothing (white), the last draws (where C^-1 is banded), the
last noises (where C is), or one decaying sum for each buffer. Noise of different coordinates is
independent, so each part of a model can have a stream of its own, wherever that part lives; the
state is arrays of the shape of the draws. No draw is used at two steps, and the state together
with the releases gives earlier noise away: keep it as secret as the noise.

`skip` goes on where the noise of some steps is lost, in a crash say. Later steps then take nothing
of it back: from there on they have zeros in the columns of C of the lost steps, as if their noise
had been 0. Where C has no negative entry, no entry of C^T C grows by that, and so no sensitivity.

Draws under keys need not be kept at all: `taps` says which earlier draws a step needs.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from tightrope.correlated.strategies import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    Strategy,
    ToeplitzStrategy,
    check_strategy,
)
from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray, check_count


def taps(strategy: Strategy, step: int) -> tuple[float, ...] | None:
    """The noise of a step (from 0) as weights of its own draw, the one before, and so on.

    None where it is not a short sum of draws: then a stream keeps what it needs.
    """
    if isinstance(strategy, BandedToeplitz) and strategy.bands == 1:
        return (1.0 / strategy.coefficients[0],)
    if isinstance(strategy, InverseToeplitz):
        return strategy.coefficients[: step + 1]
    return None


@final
class Stream:
    """The noise of a run, step by step; `state` stores it and `restore` continues it."""

    def __init__(self, strategy: Strategy, steps: int) -> None:
        """steps: how many are planned; more are refused."""
        self.strategy, self.steps = strategy, check_count(steps, "steps", low=1)
        check_strategy(strategy, self.steps)
        self.step = 0
        self._kept: Any = None  # one array, stacked along a first axis
        self._table: Any = None  # weights of what is kept, beside it
        self._matrix = None if isinstance(strategy, ToeplitzStrategy) else strategy.matrix(steps)

    @property
    def buffers(self) -> int:
        """How many arrays like a draw are kept."""
        return self.strategy.buffers(self.steps)

    def next(self, draw: Any) -> Any:
        """The noise of the next step, from a draw that is used for nothing else."""
        if self.step >= self.steps:
            raise InvalidInput(
                f"The noise was planned for {self.steps:,} steps, and they are done. Plan all "
                "of them before the first one: the sensitivity counts every one of them."
            )
        own, weights = self._row()
        count = self.buffers
        if count == 0:
            self.step += 1
            return own * draw
        if self._kept is None:
            self._kept = _zeros(draw, count)
        elif tuple(self._kept.shape[1:]) != tuple(draw.shape):
            raise InvalidInput(
                f"A draw of shape {tuple(draw.shape)} does not continue noise of shape "
                f"{tuple(self._kept.shape[1:])}. Give each array of the model its own stream."
            )
        noise = self._advance(draw, own, weights)
        self.step += 1
        return noise

    def skip(self, steps: int) -> None:
        """Go on after so many steps whose noise is not known any more; see above."""
        if self.step + check_count(steps, "steps") > self.steps:
            raise InvalidInput(f"Only {self.steps:,} steps are planned.")
        if steps and not self.strategy.non_negative(self.steps):
            raise InvalidInput(
                f"The noise of {steps:,} steps is lost, and C ({self.strategy}) has negative "
                "entries, so that leaving it out could raise what one record moves. Start anew, "
                "with what was released in the history; store each step where steps may be lost."
            )
        if self._kept is None or self.buffers == 0:
            self.step += steps
            return
        for _ in range(steps):
            own, weights = self._row()
            draw = self._advance(0.0 * self._kept[0], own, weights)  # what would be taken back
            if isinstance(self.strategy, BufferedToeplitz):
                self._kept -= draw
            else:  # a draw that gives no noise, or that noise itself
                lost = -draw / own if isinstance(self.strategy, InverseToeplitz) else 0.0 * draw
                self._kept[self.step % self.buffers] = lost
            self.step += 1

    def rescale(self, factor: float) -> None:
        """Draws are of another unit from now on: so much larger."""
        if self._kept is not None and factor != 1.0:
            self._kept *= factor

    def widened(self, draw: Any) -> Any:
        """The draw, and what is kept, in the wider precision of the two."""
        if self._kept is None or self._kept.dtype == draw.dtype:
            return draw
        if self._kept.dtype.itemsize > draw.dtype.itemsize:
            return _as(draw, self._kept.dtype)
        self._kept, self._table = _as(self._kept, draw.dtype), None
        return draw

    def _row(self) -> tuple[float, FloatArray]:
        """The weights of this step: of its own draw, and of what is kept, the newest first."""
        strategy, count = self.strategy, self.buffers
        if isinstance(strategy, InverseToeplitz):
            row = np.array(strategy.coefficients)
            return float(row[0]), row[1 : count + 1]
        if isinstance(strategy, BufferedToeplitz):
            return 1.0, -np.array(strategy.scales)
        if isinstance(strategy, ToeplitzStrategy):
            row = strategy.column(count + 1)
        else:
            assert self._matrix is not None
            row = np.append(self._matrix[self.step, self.step :: -1], np.zeros(count))
        return 1.0 / float(row[0]), -row[1 : count + 1] / row[0]

    def _advance(self, draw: Any, own: float, weights: FloatArray) -> Any:
        kept, strategy, count = self._kept, self.strategy, len(self._kept)
        buffered = isinstance(strategy, BufferedToeplitz)
        if self._table is None or self._matrix is not None:
            # where step s goes, s mod count, the oldest lies: the weights, turned by as much
            turned = np.tile(weights[::-1], 2)
            if isinstance(strategy, BufferedToeplitz):
                turned = np.array([weights, strategy.decays])
            self._table = _like(kept, turned)
        here = self.step % count
        now = self._table[0] if buffered else self._table[count - here : 2 * count - here]
        noise = _sum(own, draw, now, kept.reshape(count, -1))
        if buffered:
            kept *= self._table[1].reshape((count,) + (1,) * len(draw.shape))
            kept += noise
        else:
            kept[here] = draw if isinstance(strategy, InverseToeplitz) else noise
        return noise

    def state(self) -> dict[str, Any]:
        """What continues the run: plain values and one array (None before the first step)."""
        kept = None if self._kept is None else _copied(self._kept)
        plan = {"strategy": self.strategy.digest, "steps": self.steps}
        return {**plan, "step": self.step, "kept": kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was stored, with the same strategy and plan."""
        stored = {"strategy": state["strategy"], "steps": state["steps"]}
        if stored != {"strategy": self.strategy.digest, "steps": self.steps}:
            raise InvalidInput(
                f"The stored noise has another strategy or plan ({state['steps']} steps) than this "
                f"run ({self.strategy}, {self.steps} steps). Resume with the strategy that the run "
                "was started with: other noise does not cancel what was released."
            )
        step, kept = check_count(state["step"], "step"), state["kept"]
        missing = kept is None and step > 0 and self.buffers > 0
        if step > self.steps or missing or (kept is not None and len(kept) != self.buffers):
            raise InvalidInput(
                f"The stored noise is not that of step {step} of {self.steps} with {self.buffers} "
                "buffers. Resume from a folder that was written whole."
            )
        self.step, self._kept = step, None if kept is None else _copied(kept)
        self._table = None


def multiply(strategy: Strategy, draws: FloatArray) -> FloatArray:
    """C^-1 times draws, one row for each step: all the noise of a run at once."""
    stream = Stream(strategy, len(draws))
    return np.stack([stream.next(draw) for draw in draws])


def _zeros(draw: Any, count: int) -> Any:
    shape = (count, *draw.shape)
    return draw.new_zeros(shape) if hasattr(draw, "new_zeros") else np.zeros(shape, draw.dtype)


def _like(kept: Any, values: Any) -> Any:
    """Numbers as an array of the library, kind and place of another."""
    if hasattr(kept, "new_tensor"):
        return kept.new_tensor(values)
    return np.asarray(values, dtype=kept.dtype)


def _as(values: Any, dtype: Any) -> Any:
    return values.to(dtype) if hasattr(values, "to") else values.astype(dtype)


def _sum(own: float, draw: Any, weights: Any, kept: Any) -> Any:
    """own * draw + weights @ kept"""
    if hasattr(draw, "addmv"):
        return draw.reshape(-1).addmv(kept.t(), weights, beta=own).reshape(draw.shape)
    return own * draw + (weights @ kept).reshape(draw.shape)


def _copied(kept: Any) -> Any:
    return kept.clone() if hasattr(kept, "clone") else kept.copy()
