"""What is minimised: (1/n) sum of losses + (strength/2) |weights|^2 over scaled rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.convex.losses import Loss
from tightrope.convex.rows import Block, Data
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency
from tightrope.process.convex import ClippedLoss, ConvexLoss
from tightrope.validate import FloatArray

__all__ = ["Problem"]


@final
@dataclass(frozen=True)
class Problem:
    """Private rows, a loss with known constants, and rows that are public, if there are any.

    `records` (all rows, private and public) is public and divides every sum.
    """

    data: Data
    loss: Loss
    strength: float = 0.0
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    public: Data | None = None

    def __post_init__(self) -> None:
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
        return self.data.count + (self.public.count if self.public is not None else 0)

    @property
    def shape(self) -> tuple[int, ...]:
        width = self.data.width
        return (width,) if self.loss.outputs == 1 else (width, self.loss.outputs)

    @property
    def constants(self) -> ConvexLoss | ClippedLoss:
        """What the theorems may know of the loss; the regulariser touches no record."""
        if not self.loss.convex:
            return ClippedLoss(self.loss.slope_bound)
        return ConvexLoss(self.loss.slope_bound, self.smoothness, self.strength)

    @property
    def smoothness(self) -> float:
        return self.loss.curvature_bound + self.strength

    @property
    def moved(self) -> float:
        """How far one neighbour moves the sum of gradients, in Lipschitz constants (A64)."""
        return 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0

    def block_gradient(self, block: Block, weights: FloatArray) -> FloatArray:
        """Sum of the loss gradients over one block."""
        scores = block.scores(weights)
        return block.pull_back(self.loss.slope(scores, block.targets))

    def gradient_sum(
        self, weights: FloatArray, choose: Callable[[int], Any] | None = None
    ) -> FloatArray:
        """Sum of the loss gradients over all private rows, or over those `choose` picks."""
        total = np.zeros(self.shape)
        for block in self.data.blocks():
            part = block if choose is None else block.only(choose(len(block.factors)))
            total += self.block_gradient(part, weights)
        return total

    def public_sum(self, weights: FloatArray) -> FloatArray:
        """The same over the public rows, which need no noise."""
        total = np.zeros(self.shape)
        for block in self.public.blocks() if self.public is not None else ():
            total += self.block_gradient(block, weights)
        return total
