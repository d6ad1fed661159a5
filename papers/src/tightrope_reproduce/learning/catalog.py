"""Every recipe by the name of its group."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tightrope.errors import InvalidInput
from tightrope_reproduce.learning.beyond import at_the_papers, beyond, candidates
from tightrope_reproduce.learning.gains import ROWS, less_noise, more_rounds
from tightrope_reproduce.learning.paper import (
    FIGURE_4,
    LAST_TENTH,
    SLICES,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TWINS,
)
from tightrope_reproduce.learning.quick import QUICK, QUICK_TWIN
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.records import cifar, finetuned, pictures, views

__all__ = ["GROUPS", "recipes_of"]

Recipes = tuple[Recipe, ...]


def _twin(task: str) -> Recipe:
    return next(twin for twin in TWINS if twin.task == task)


@cache
def _gain() -> Recipes:
    return tuple(change(row) for row in ROWS for change in (less_noise, more_rounds))


GROUPS: dict[str, Callable[[], Recipes]] = {
    "table-1": lambda: (*TABLE_1, _twin("mnist")),
    "table-2": lambda: (TABLE_2, _twin("adult"), LAST_TENTH, _twin("adult-last-tenth")),
    "table-3": lambda: (TABLE_3, _twin("imdb"), SLICES),
    "table-4": lambda: (TABLE_4, _twin("movielens")),
    "figure-4": lambda: FIGURE_4,
    "gain": _gain,
    "beyond": lambda: (*beyond(), *at_the_papers()),
    "tuning": lambda: (*candidates("mnist"), *candidates("fashion")),
    "cifar-10": cifar,
    "cifar-pictures": pictures,
    "cifar-views": views,
    "imdb-finetuned": finetuned,
    "quick": lambda: (QUICK, QUICK_TWIN),
}


def recipes_of(names: list[str]) -> list[Recipe]:
    """The recipes of groups, or single ones by name."""
    found: list[Recipe] = []
    for name in names:
        members = GROUPS[name]() if name in GROUPS else _single(name)
        found.extend(recipe for recipe in members if recipe not in found)
    return found


def _single(name: str) -> Recipes:
    match = tuple(r for make in GROUPS.values() for r in make() if r.name == name)
    if not match:
        raise InvalidInput(f"No group or recipe is called {name!r}; groups: {', '.join(GROUPS)}.")
    return match
