"""Beyond the papers: the best accuracy at epsilon 3, and at the exact epsilons of Table 1.

MNIST and Fashion-MNIST with 60,000 people each, delta = 1e-5, exact accountant. What was tried to
get there, and what the choice would cost on the protected data itself, stands beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.accounting import account
from tightrope.guarantee.selection import selection_guarantee
from tightrope.numerics.interval import Interval
from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.trained import spread, trained
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Printed, Setting, Table, Verdict
from tightrope_reproduce.learning.beyond import DELTA, EPSILON, at_the_papers, beyond, candidates
from tightrope_reproduce.learning.paper import TABLE_1
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Store, Summary

GOALS = {"mnist": 98.5, "fashion": 87.0}  # accuracy (%) to reach at epsilon 3
NETWORKS = {"linear": "scattering + linear", "cnn": "scattering + small network"}
QUICK = "quick run: only the budget is computed"
HEADS = ("recipe", "epsilon_lower", "epsilon_upper", "accuracy_mean", "deviation", "runs")


def run(setting: Setting) -> Outcome:
    recipes = (*beyond(), *at_the_papers())
    spent = {recipe.name: _spent(recipe) for recipe in recipes}
    found = {recipe.name: _found(recipe, setting) for recipe in recipes}
    tried = Store(setting.learned)
    lines = [_goal_line(recipe, spent[recipe.name], found[recipe.name]) for recipe in beyond()]
    lines += _tuning_lines(tried, setting)
    lines += _paper_lines(found)
    rows = [
        (name, epsilon.lower, epsilon.upper, *_numbers(found[name]))
        for name, epsilon in spent.items()
    ]
    pictures = _pictures(found, tried) if any(map(_is_summary, found.values())) else ()
    return Outcome(tuple(lines), (Table("beyond", HEADS, rows),), pictures)


def _spent(recipe: Recipe) -> Interval:
    assert recipe.process is not None, "these recipes are private"
    return account(recipe.process).epsilon(recipe.delta)


def _found(recipe: Recipe, setting: Setting) -> Summary | str:
    return QUICK if setting.quick else trained(recipe, setting)


def _is_summary(found: Any) -> bool:
    return isinstance(found, Summary)


def _numbers(found: Summary | str) -> tuple[Any, Any, int]:
    if isinstance(found, str):
        return None, None, 0
    return found.mean, found.deviation, len(found.results)


def _goal_line(recipe: Recipe, spent: Interval, found: Summary | str) -> Line:
    data, network = recipe.task.split("-")
    what = f"{data}: accuracy (%) at epsilon {EPSILON:g}, {NETWORKS[network]}"
    goal = f"goal {GOALS[data]:g}"
    if found == QUICK:
        return Line(what, goal, "not trained", spent, Verdict.BEYOND, QUICK)
    if isinstance(found, str):
        return Line(what, goal, None, spent, Verdict.NOT_RUN, found)
    met = "met" if found.mean >= GOALS[data] else "missed"
    because = f"goal {met}; the truth column is the certified epsilon"
    return Line(what, goal, spread(found), spent, Verdict.BEYOND, because)


def _tuning_lines(tried: Store, setting: Setting) -> list[Line]:
    """What the settings cost to find, and what finding them on the same data would cost."""
    settings = len(candidates("mnist"))
    process = beyond()[0].process
    assert process is not None
    charged = selection_guarantee(account(process).guarantee(DELTA), settings).epsilon(DELTA)
    lines = [
        Line(
            "settings tried on each data set; used on the other one",
            None,
            settings,
            None,
            Verdict.BEYOND,
            "the choice rests on no number measured on the data it is used on, so it is not "
            "charged; the other data set counts as public",
        ),
        Line(
            "epsilon had the best of as many been chosen on the protected data, at most",
            None,
            charged.upper,
            None,
            Verdict.BEYOND,
            "private selection among a Poisson number of trials; a bound, not tight",
        ),
    ]
    runs = _tried(tried)
    if runs and not setting.quick:
        minutes = sum(result.seconds for s in runs for result in s.results) / 60.0
        because = f"training time in all, one run a setting, on {runs[0].results[0].machine}"
        what = "minutes of tuning, both data sets and networks"
        lines.append(Line(what, None, minutes, None, Verdict.BEYOND, because))
    return lines


def _tried(store: Store) -> list[Summary]:
    found = (store.results(recipe) for recipe in store.recipes("tuning"))
    return [summary for summary in found if summary is not None]


def _paper_lines(found: dict[str, Summary | str]) -> list[Line]:
    """The paper's accuracy beside ours at (not above) its exact epsilon."""
    lines = []
    for row, pair in zip(TABLE_1, _pairs(), strict=True):
        for recipe in pair:
            ours = found[recipe.name]
            if isinstance(ours, Summary):
                epsilon = recipe.name.rsplit("-", 1)[1]
                what = f"accuracy (%) at {row.name}'s epsilon {epsilon}, {_network(recipe)}"
                because = f"{ours.mean - (row.claim or 0.0):+.2f} at no more epsilon"
                lines.append(
                    Line(
                        what, Printed(row.claim or 0.0), spread(ours), None, Verdict.BEYOND, because
                    )
                )
    return lines


def _pairs() -> list[tuple[Recipe, ...]]:
    """Both networks for each row of Table 1."""
    every = at_the_papers()
    return [every[i : i + 2] for i in range(0, len(every), 2)]


def _network(recipe: Recipe) -> str:
    return NETWORKS[recipe.task.split("-")[1]]


def _pictures(found: dict[str, Summary | str], tried: Store) -> tuple[Picture, ...]:
    runs = _tried(tried)

    def draw(axes: Any) -> None:
        _draw_accuracy(axes[0], found)
        _draw_tuning(axes[1], runs)

    caption = (
        "Left: MNIST, accuracy at the exact epsilon (certified to ten digits, bands invisible); "
        "bars: one standard deviation over the runs. Right: every setting that was tried, at "
        "epsilon 3, from the best to the worst."
    )
    return (Picture("beyond", caption, draw, columns=2, width=5.0, height=3.8),)


def _draw_accuracy(axes: Any, found: dict[str, Summary | str]) -> None:
    epsilons = [_spent(row).upper for row in TABLE_1]
    claims = [row.claim for row in TABLE_1]
    axes.plot(epsilons, claims, "o--", color=COLOURS["estimate"], label="the paper, Table 1")
    for network, colour, marker in (("linear", "bound", "s"), ("cnn", "exact", "D")):
        chosen = [r for r in (*beyond(), *at_the_papers()) if r.task == f"mnist-{network}"]
        points = sorted(
            (_spent(recipe).upper, s.mean, s.deviation)
            for recipe in chosen
            if isinstance(s := found[recipe.name], Summary)
        )
        if points:
            x, y, error = np.transpose(points)
            axes.errorbar(
                x, y, yerr=error, fmt=f"{marker}-", color=COLOURS[colour], label=NETWORKS[network]
            )
    axes.set(xscale="log", xlabel="exact epsilon (nats) at delta = 1e-5", ylabel="accuracy (%)")
    axes.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axes.minorticks_off()
    axes.set_title("MNIST at the same exact epsilon")
    axes.legend(fontsize=8, loc="lower right")


def _draw_tuning(axes: Any, runs: list[Summary]) -> None:
    looks = {
        "mnist-linear": ("bound", "-"),
        "mnist-cnn": ("exact", "-"),
        "fashion-linear": ("bound", "--"),
        "fashion-cnn": ("exact", "--"),
    }
    for task, (colour, line) in looks.items():
        scores = sorted((s.mean for s in runs if s.recipe.task == task), reverse=True)
        share = np.arange(1, len(scores) + 1) / max(len(scores), 1) * 100.0
        axes.plot(share, scores, line, color=COLOURS[colour], label=f"{task} ({len(scores)})")
    axes.set(xlabel="settings tried, best first (%)", ylabel="accuracy (%)", ylim=(80, 100))
    axes.set_title("What the tuning saw")
    axes.legend(fontsize=8, loc="lower left")


ITEM = Item(
    "today-beyond",
    "What you gain today",
    "Beyond the papers: the best accuracy at epsilon 3",
    run,
    ("beyond", "tuning"),
)
