"""What one gains today: the moments accountant's epsilon, spent with the exact accountant.

For each row of Tables 1 to 4 the paper's moments accountant reports more epsilon than the run
really costs. Spending the reported epsilon exactly allows less noise over the same rounds, or more
rounds with the same noise. Both are recipes of their own, trained for real.
"""

from __future__ import annotations

import math

from tightrope.calibrate import Target, find_noise, find_steps
from tightrope.errors import InvalidInput
from tightrope.process import NoisySGD
from tightrope_reproduce.learning.paper import CLAIMS, TABLE_1, TABLE_2, TABLE_3, TABLE_4
from tightrope_reproduce.learning.recipe import Recipe

__all__ = ["ROWS", "less_noise", "more_rounds", "rounded_up"]

ROWS = (*TABLE_1, TABLE_2, TABLE_3, TABLE_4)


def less_noise(recipe: Recipe, epsilon: float | None = None) -> Recipe:
    """The same rounds with the least noise that `epsilon` (else the printed one) allows."""
    process, target = _budget(recipe, epsilon)
    noise = rounded_up(find_noise(process, target).value)
    return recipe.but(f"{recipe.name}-less-noise", group="gain", noise_multiplier=noise, claim=None)


def more_rounds(recipe: Recipe, epsilon: float | None = None) -> Recipe:
    """The same noise for as many rounds as `epsilon` (else the printed one) allows."""
    process, target = _budget(recipe, epsilon)
    steps = int(find_steps(process, target).value)
    return recipe.but(f"{recipe.name}-more-rounds", group="gain", steps=steps, claim=None)


def rounded_up(noise_multiplier: float) -> float:
    """Four decimals, on the safe side: the same number on every machine."""
    return math.ceil(noise_multiplier * 1e4) / 1e4


def _budget(recipe: Recipe, epsilon: float | None) -> tuple[NoisySGD, Target]:
    process = recipe.process
    if process is None:
        raise InvalidInput(f"{recipe.name} is not private; it has no budget to spend better.")
    spent = CLAIMS[recipe.name].moments_epsilon if epsilon is None else epsilon
    return process, Target.approx_dp(spent, recipe.delta)
