"""What you gain today: each row of Tables 1 to 4, with the exact accountant instead of the MA.

The paper reports the moments accountant's epsilon. Whoever accepts that epsilon may spend it
exactly: less noise over the same rounds, or more rounds with the same noise; and train for real.
"""

from __future__ import annotations

from typing import Any

from tightrope.accounting import account
from tightrope.numerics.interval import Interval
from tightrope_reproduce.gdp.trained import spread, trained
from tightrope_reproduce.item import Item, Line, Outcome, Printed, Setting, Table, Verdict
from tightrope_reproduce.learning.gains import ROWS
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Summary
from tightrope_reproduce.today.gain import Gain, Scores, change
from tightrope_reproduce.today.gains_picture import gains_picture

HEADS = (
    "row",
    "budget_epsilon",
    "delta",
    "noise_paper",
    "noise_allowed",
    "less_noise_percent",
    "steps_paper",
    "steps_allowed",
    "more_steps_percent",
    "score_paper",
    "score_ours",
    "score_less_noise",
    "score_more_rounds",
)


def run(setting: Setting) -> Outcome:
    gains = [Gain(row) for row in ROWS]
    scores = [_scores(gain, setting) for gain in gains]
    lines = [line for gain in gains for line in _lines(gain)]
    for gain, found in zip(gains, scores, strict=True):
        lines += _score_lines(gain, found)
    rows = [_numbers(gain, found) for gain, found in zip(gains, scores, strict=True)]
    table = Table("gains", HEADS, rows)
    return Outcome(tuple(lines), (table,), (gains_picture(gains, scores),))


def _scores(gain: Gain, setting: Setting) -> Scores:
    if setting.quick:
        return ("quick run",) * 3
    before, quieter, longer = (trained(r, setting) for r in (gain.row, gain.quieter, gain.longer))
    return before, quieter, longer


def _lines(gain: Gain) -> tuple[Line, ...]:
    row, budget = gain.row, f"epsilon {gain.budget:g}"
    spent = [_spent(recipe) for recipe in (gain.quieter, gain.longer)]
    return (
        Line(
            f"{row.name}: noise for {budget}",
            Printed(row.noise_multiplier or 0.0),
            gain.quieter.noise_multiplier,
            spent[0],
            Verdict.BEYOND,
            f"{gain.less_noise:.0f} % less noise over the same rounds; the truth column is the "
            "certified epsilon of that run",
        ),
        Line(
            f"{row.name}: rounds for {budget}",
            row.steps,
            gain.longer.steps,
            spent[1],
            Verdict.BEYOND,
            f"{gain.more_steps:.0f} % more rounds with the same noise",
        ),
    )


def _spent(recipe: Recipe) -> Interval:
    assert recipe.process is not None, "rows of the tables are private"
    return account(recipe.process).epsilon(recipe.delta)


def _score_lines(gain: Gain, scores: Scores) -> list[Line]:
    """What the better spent budget buys, on our own runs of the paper's setting."""
    before, *after = scores
    claim = None if gain.row.claim is None else Printed(gain.row.claim)
    lines = []
    for words, found in zip(("less noise", "more rounds"), after, strict=True):
        what = f"{gain.row.name}: {_unit(gain.row)} with {words}"
        if isinstance(found, str) or isinstance(before, str):
            reason = found if isinstance(found, str) else str(before)
            if reason != "quick run":
                lines.append(Line(what, claim, None, None, Verdict.NOT_RUN, reason))
            continue
        moved, error = change(before, found)
        because = (
            f"{moved:+.3g} (95 % by t: +-{error:.2g}) over the same seeds at the paper's "
            f"setting, {spread(before)}"
        )
        lines.append(Line(what, claim, spread(found), None, Verdict.BEYOND, because))
    return lines


def _unit(recipe: Recipe) -> str:
    return "root mean squared error" if recipe.task == "movielens" else "accuracy (%)"


def _numbers(gain: Gain, scores: Scores) -> tuple[Any, ...]:
    return (
        gain.row.name,
        gain.budget,
        gain.row.delta,
        gain.row.noise_multiplier,
        gain.quieter.noise_multiplier,
        gain.less_noise,
        gain.row.steps,
        gain.longer.steps,
        gain.more_steps,
        gain.row.claim,
        *(found.mean if isinstance(found, Summary) else None for found in scores),
    )


ITEM = Item(
    "today-gains",
    "What you gain today",
    "Tables 1 to 4 with the exact accountant",
    run,
    ("table-1", "table-2", "table-3", "table-4", "gain"),
)
