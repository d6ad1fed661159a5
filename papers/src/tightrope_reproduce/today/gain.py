"""One row of the tables, the two better ways to spend its budget, and what they came to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import final

from scipy.stats import t as student

from tightrope_reproduce.learning.gains import less_noise, more_rounds
from tightrope_reproduce.learning.paper import CLAIMS
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Summary

__all__ = ["Gain", "Scores", "change", "improvement", "margin"]

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
    """The gain and its 95 % margin, in points; an error falls where accuracy rises."""
    factor = -100.0 if row.task == "movielens" else 1.0
    moved, error = change(before, after)
    return factor * moved, abs(factor) * error


def change(before: Summary, after: Summary) -> tuple[float, float]:
    """Mean change over the seeds both have (same start, same batches), and its 95 % margin.

    By Student's t: for three runs 4.3 standard errors, not two.
    """
    earlier = {result.seed: result.final for result in before.results}
    changes = [r.final - earlier[r.seed] for r in after.results if r.seed in earlier]
    if not changes:
        return after.mean - before.mean, math.inf
    return fmean(changes), margin(changes)


def margin(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean by Student's t; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
