"""The same code in seconds: recipes on the digits that come with scikit-learn."""

from __future__ import annotations

from tightrope_reproduce.learning.recipe import Recipe

__all__ = ["QUICK", "QUICK_TWIN", "quickly"]

QUICK = Recipe(
    name="digits-1.3",
    group="quick",
    task="digits",
    update="sgd",
    learning_rate=1.0,
    batch_size=150,
    public_size=1_500,
    steps=150,
    clip_norm=1.0,
    noise_multiplier=1.3,
)
QUICK_TWIN = QUICK.twin(epochs=15)


def quickly(recipe: Recipe) -> Recipe:
    """Ten steps of a recipe: enough to see that data, network and loop fit together."""
    return recipe.but(f"{recipe.name}-quick", group="quick", steps=10, claim=None)
