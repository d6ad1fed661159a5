"""One row of the tables, the two better ways to spend its budget, and what they came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import final

from tightrope_reproduce.learning.gains import less_noise, more_rounds
from tightrope_reproduce.learning.paper import CLAIMS
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Summary

__all__ = ["Gain", "Scores", "change", "improvement"]

Found = Summary | str
Scores = tuple[Found, Found, Found]  # as the paper ran it, less noise, more rounds


@final
@dataclass(frozen=True)
class Gain:
    """One row, and the two ways to spend what the moments accountant reported for it."""

    row: Recipe

    @property
    def budget(self) -> float:
        return CLAIMS[self.row.name].moments_epsilon

    @cached_property
    def quieter(self) -> Recipe:
        return less_noise(self.row)

    @cached_property
    def longer(self) -> Recipe:
        return more_rounds(self.row)

    @property
    def less_noise(self) -> float:
        """Share of the noise that is not needed, in %."""
        before, after = self.row.noise_multiplier, self.quieter.noise_multiplier
        assert before and after, "rows of the tables are private"
        return 100.0 * (1.0 - after / before)

    @property
    def more_steps(self) -> float:
        """Rounds that come on top, in %."""
        return 100.0 * (self.longer.steps / self.row.steps - 1.0)


def improvement(row: Recipe, before: Summary, after: Summary) -> tuple[float, float]:
    """The gain and two standard errors, in points; an error falls where accuracy rises."""
    factor = -100.0 if row.task == "movielens" else 1.0
    moved, error = change(before, after)
    return factor * moved, abs(factor) * error


def change(before: Summary, after: Summary) -> tuple[float, float]:
    """Mean change over the seeds both have (same start, same batches), two standard errors."""
    earlier = {result.seed: result.final for result in before.results}
    changes = [r.final - earlier[r.seed] for r in after.results if r.seed in earlier]
    if not changes:
        return after.mean - before.mean, math.inf
    error = stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else math.inf
    return fmean(changes), 2.0 * error
