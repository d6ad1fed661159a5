"""What is minimised: (1/n) sum of losses + (strength/2) |weights|^2 over scaled rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from tightrope.convex.arithmetic import MOST_ROWS, plain_reach
from tightrope.convex.exact import CarriedTotal, checked_size
from tightrope.convex.losses import Loss
from tightrope.convex.rows import Block, Data, Part, SummedElsewhere
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency
from tightrope.process.adjacency import check_rows
from tightrope.process.convex import ClippedLoss, ConvexLoss
from tightrope.validate import FloatArray, check_count


def public_count(adjacency: Adjacency, declared: int | None, present: int) -> int:
    """The public number of rows: that of the rows, or one that is declared where it is private."""
    if adjacency is Adjacency.REPLACE_ONE:
        if declared not in (None, present):
            raise InvalidInput(
                f"records={declared!r} was declared, and the data have another number of rows. "
                "Under replace-one neighbours that number is public: leave records out. Where it "
                "is private, use adjacency='add-or-remove'."
            )
        return present
    if declared is None:
        raise InvalidInput(
            "Under add-or-remove neighbours the number of rows is private, so nothing may depend "
            "on it. Declare a public number of records, about as many as you expect (records= of "
            "an estimator, private_records= of a Problem), or use adjacency='replace-one', where "
            "the number of rows is public."
        )
    return check_count(declared, "records", low=2)


def check_two(rows: int) -> None:
    """Refuse one row alone."""
    if rows < 2:
        raise InvalidInput(
            "Found 1 sample (n_samples=1): with one person the model would be about that person "
            "alone, and delta 1/n^1.1 would be 1. Fit on at least two."
        )


@final
@dataclass(frozen=True)
class Problem:
    """Private rows, a loss with known constants, and rows that are public, if there are any.

    `private_records` is the public number of private rows that divides every sum. Under replace-one
    neighbours it is the number of rows itself; under add-or-remove that number is private, so a
    public one must be declared. The regulariser shrinks towards `anchor` (0 if None), a public
    point. `other_people` declares that public rows equal to private ones are another person's.
    """

    data: Data
    loss: Loss
    strength: float = 0.0
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    public: Data | None = None
    private_records: int | None = None
    anchor: FloatArray | None = None
    other_people: bool = False

    def __post_init__(self) -> None:
        self._check_loss()
        check_rows(self.adjacency, "Learning from rows")
        if self.adjacency is not Adjacency.REPLACE_ONE:
            public_count(self.adjacency, self.private_records, 0)
        elif self.private_records is not None:
            declared = check_count(self.private_records, "records", low=2)
            public_count(self.adjacency, declared, self.data.count)

    def _check_loss(self) -> None:
        for name in ("slope_bound", "curvature_bound"):
            known = getattr(self.loss, name, None)
            if not isinstance(known, float | int) or not 0.0 < known < math.inf:
                raise InvalidInput(
                    f"The loss {type(self.loss).__name__} has no finite {name}, and without it "
                    "neither the noise nor a safe step is known. Use a loss of tightrope.convex, "
                    "or give yours the bounds of its slope and curvature in the score."
                )
        if not isinstance(getattr(self.loss, "convex", None), bool):
            raise InvalidInput(
                f"The loss {type(self.loss).__name__} does not say whether it is convex; set its "
                "`convex` to True only if its slope never falls as the score grows."
            )

    @property
    def records(self) -> int:
        return self.counted + (self.public.count if self.public is not None else 0)

    @property
    def counted(self) -> int:
        """The public number of private rows."""
        return self.data.count if self.private_records is None else self.private_records

    @property
    def shape(self) -> tuple[int, ...]:
        width = self.data.width
        return (width,) if self.loss.outputs == 1 else (width, self.loss.outputs)

    def constants(
        self, sensitivity: float, *, contracting: bool = True
    ) -> ConvexLoss | ClippedLoss:
        """What the theorems may know of the loss; the regulariser touches no record.

        sensitivity: the slope's bound with rounding. contracting: claim strong convexity, too.
        """
        if not self.loss.convex:
            return ClippedLoss(sensitivity)
        return ConvexLoss(sensitivity, self.smoothness, self.strength if contracting else 0.0)

    @property
    def smoothness(self) -> float:
        return self.loss.curvature_bound + self.strength

    @property
    def moved(self) -> float:
        """How far one neighbour moves the sum of gradients, in Lipschitz constants (A64)."""
        return self.adjacency.moved

    def regulariser(self, weights: FloatArray) -> FloatArray:
        """Gradient of (strength/2) |weights - anchor|^2."""
        away = weights if self.anchor is None else weights - self.anchor
        return self.strength * away

    def private_blocks(self) -> Iterator[Block]:
        """The private rows; no more of them than their sums are bounded for."""
        seen = 0
        for block in self.data.blocks():
            seen += len(block.factors)
            self._check_most(seen)
            yield block

    def sum_elsewhere(self, data: SummedElsewhere, part: Part) -> FloatArray:
        """A sum over private rows that are on other machines, for as many as it is bounded for."""
        self._check_most(data.rows)
        return data.total_of(part).value

    def _check_most(self, seen: int) -> None:
        if seen > MOST_ROWS and self.adjacency is not Adjacency.REPLACE_ONE:
            raise InvalidInput(
                f"Under add-or-remove neighbours rounding is bounded for {MOST_ROWS:,} rows, "
                "and there are more. Use adjacency='replace-one'."
            )

    @cached_property
    def _plain_reach(self) -> float:
        return plain_reach(self)

    def _exactly(self, weights: FloatArray) -> bool:
        """Are these weights too long for the rounding of plain scores?"""
        return not checked_size(weights) <= self._plain_reach

    def block_gradient(self, block: Block, weights: FloatArray) -> FloatArray:
        """Sum of the loss gradients over one block."""
        return self._sum([block], weights)

    def _sum(self, blocks: Iterable[Block], weights: FloatArray) -> FloatArray:
        return self._part(weights)(blocks).value

    def _part(self, weights: FloatArray) -> GradientSum:
        return GradientSum(self.loss, self.shape, weights, self._exactly(weights))

    def gradient_sum(
        self, weights: FloatArray, choose: Callable[[int], Any] | None = None
    ) -> FloatArray:
        """Sum of the loss gradients over all private rows, or over those `choose` picks."""
        if choose is None and isinstance(self.data, SummedElsewhere):
            return self.sum_elsewhere(self.data, self._part(weights))
        blocks = self.private_blocks()
        if choose is None:
            return self._sum(blocks, weights)
        return self._sum((b.only(choose(len(b.factors))) for b in blocks), weights)

    def public_sum(self, weights: FloatArray) -> FloatArray:
        """The same over the public rows, which need no noise."""
        return self._sum(() if self.public is None else self.public.blocks(), weights)


@final
@dataclass(frozen=True)
class GradientSum:
    """The sum of the clipped gradients over blocks of rows, wherever they are."""

    loss: Loss
    shape: tuple[int, ...]
    weights: FloatArray
    exactly: bool

    def __call__(self, blocks: Iterable[Block]) -> CarriedTotal:
        total = CarriedTotal(self.shape)
        for block in blocks:
            for piece in block.pieces():
                scores = piece.scores(self.weights, exactly=self.exactly)
                slopes = self.loss.slope(scores, piece.targets)
                _check_shapes(scores, slopes)
                total.add(piece.pull_back(limited(slopes, self.loss.slope_bound)))
        return total


def _check_shapes(scores: FloatArray, slopes: FloatArray) -> None:
    if np.shape(slopes) != scores.shape:
        raise InvalidInput(
            f"The loss gave slopes of shape {np.shape(slopes)} for scores of shape "
            f"{scores.shape}. Targets must be one number for each row, and a loss must answer "
            "with one slope for each score."
        )


def limited(slopes: FloatArray, bound: float) -> FloatArray:
    """Slopes of norm at most `bound` for each row, whatever loss and targets gave; NaN is 0."""
    slopes = np.asarray(slopes, dtype=np.float64)
    if not np.isfinite(slopes).all():
        slopes = np.nan_to_num(slopes, nan=0.0)
    if slopes.ndim == 1:
        return np.clip(slopes, -bound, bound)
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    return np.asarray(slopes * np.minimum(1.0, bound / np.maximum(norms, 1e-300)))
