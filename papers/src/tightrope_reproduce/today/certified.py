"""Runs that are private themselves: what they reached, with the epsilon of their certificates.

The trainings take minutes of a large GPU. Where they are not made again, what was stored of them on
STORED_ON is shown, and said to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tightrope.accounting import account
from tightrope.numerics.interval import Interval
from tightrope_reproduce.gdp.trained import trained
from tightrope_reproduce.item import Line, Outcome, Setting, Table, Verdict
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Store, Summary

__all__ = ["STORED", "MINUTES", "WITH_START", "outcome", "told"]

Reached = tuple[float, float, int]  # mean accuracy (%), standard deviation, runs
STORED_ON = "2026-11-16 and 17, one NVIDIA H200"
STORED: dict[str, Reached] = {
    "cifar-cnn-at-1": (65.26, 0.30, 3),
    "cifar-cnn-at-3": (69.57, 0.21, 3),
    "cifar-cnn-at-8": (71.92, 0.39, 3),
    "cifar-pictures-at-3": (77.77, 0.21, 3),
    "cifar-pictures-at-8": (82.21, 0.04, 3),
    "cifar-views-at-8": (82.97, 0.20, 3),
    "imdb-lora-at-1": (78.33, 0.23, 3),
    "imdb-lora-at-3": (79.52, 0.40, 3),
    "imdb-lora-at-8": (80.23, 0.13, 3),
    "imdb-all-at-1": (79.60, 0.29, 3),
    "imdb-all-at-3": (80.94, 0.02, 3),
    "imdb-all-at-8": (81.66, 0.22, 3),
}
MINUTES = 10.5
WITH_START = (
    "for 21 runs on CIFAR-10 (scattering) and IMDb together, up to six side by side, with the "
    "start of the machine and moving the data"
)
HEADS = ("recipe", "epsilon_lower", "epsilon_upper", "steps", "noise_multiplier",
         "accuracy_mean", "deviation", "runs", "shown")  # fmt: skip


def outcome(
    recipes: Iterable[Recipe], words: dict[str, str], goals: dict[str, float], setting: Setting
) -> Outcome:
    """A line and a row for each recipe. words: for each task, "{epsilon}" is filled in."""
    lines, rows = [], []
    for recipe in recipes:
        spent, (reached, why) = _spent(recipe), _reached(recipe, setting)
        epsilon = recipe.name.rsplit("-", 1)[1]
        what = words[recipe.task].format(epsilon=epsilon)
        lines.append(_line(what, goals.get(epsilon), reached, spent, _how(recipe, why)))
        facts = recipe.name, spent.lower, spent.upper, recipe.steps, recipe.noise_multiplier
        rows.append((*facts, *reached, "measured" if why is None else "stored"))
    return Outcome(tuple(lines), (Table("accuracy", HEADS, rows),))


def told(what: str, number: Any, because: str) -> Line:
    """A number about how the runs were made."""
    return Line(what, None, number, None, Verdict.BEYOND, because)


def _spent(recipe: Recipe) -> Interval:
    assert recipe.process is not None, "these recipes are private"
    return account(recipe.process).epsilon(recipe.delta)


def _reached(recipe: Recipe, setting: Setting) -> tuple[Reached, str | None]:
    """What is shown, and why it is the stored result if it is."""
    if setting.quick:
        return STORED[recipe.name], "quick run"
    found: Summary | str | None = Store(setting.learned).results(recipe)
    if found is None and setting.device == "cpu":
        return STORED[recipe.name], "too long for a CPU"
    found = trained(recipe, setting) if found is None else found
    if isinstance(found, str):
        return STORED[recipe.name], found
    return (round(found.mean, 2), round(found.deviation, 2), len(found.results)), None


def _how(recipe: Recipe, why: str | None) -> str:
    if why is None:
        return "the certificate of every run is in learning/certificates"
    again = f"python -m tightrope_reproduce.learning {recipe.group} --seeds 3 --device cuda"
    return f"stored ({STORED_ON}), not made again here ({why}): {again}"


def _line(what: str, goal: float | None, reached: Reached, spent: Interval, how: str) -> Line:
    mean, deviation, runs = reached
    ours = f"{mean:.2f} (1 run)" if runs == 1 else f"{mean:.2f} +- {deviation:.2f} ({runs} runs)"
    truth = "the truth column is the certified epsilon; " + how
    if goal is None:
        return Line(what, None, ours, spent, Verdict.BEYOND, truth)
    met = "met" if mean >= goal else "missed"
    return Line(what, f"goal {goal:g}", ours, spent, Verdict.BEYOND, f"goal {met}; {truth}")
