"""What Tables 1 to 4 share: the privacy columns of a row, its lines and its drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from tightrope.numerics.interval import Interval
from tightrope_reproduce.gdp.analyses import Analyses
from tightrope_reproduce.gdp.trained import score_line, trained
from tightrope_reproduce.item import (
    Line,
    Objection,
    Outcome,
    Picture,
    Setting,
    Table,
    Verdict,
    check,
)
from tightrope_reproduce.learning.paper import CLAIMS, TWINS
from tightrope_reproduce.learning.recipe import Recipe

__all__ = ["PAPER", "Row", "ROUNDED", "outcome", "twin_of"]

PAPER = "Deep Learning with Gaussian Differential Privacy"
ROUNDED = 0.0061  # two printed digits, and the paper's unstated rounding of T
Pictures = Callable[[list["Row"], Setting], tuple[Picture, ...]]
COLUMNS = (
    "row",
    "rate",
    "noise_multiplier",
    "steps",
    "delta",
    "mu",
    "mu_paper",
    "epsilon_clt",
    "epsilon_clt_paper",
    "epsilon_moments",
    "epsilon_moments_paper",
    "epsilon_improved_moments",
    "epsilon_exact_lower",
    "epsilon_exact_upper",
    "true_delta_at_printed_clt_epsilon",
    "score_ours_mean",
    "score_ours_deviation",
    "runs",
    "score_paper",
    "score_non_private_mean",
)


@final
@dataclass(frozen=True)
class Row:
    """A private row of a table: what was run, what is printed, what is true."""

    recipe: Recipe

    @cached_property
    def analyses(self) -> Analyses:
        process = self.recipe.process
        assert process is not None, "rows of the tables are private"
        return Analyses(process)

    @cached_property
    def exact(self) -> Interval:
        return self.analyses.epsilon(self.recipe.delta)

    @cached_property
    def true_delta(self) -> Interval:
        """delta at the epsilon that the paper prints for the central limit theorem."""
        return self.analyses.delta(CLAIMS[self.recipe.name].clt_epsilon)

    @property
    def violated(self) -> bool:
        """The printed central-limit epsilon is below the truth."""
        return self.exact.lower > CLAIMS[self.recipe.name].clt_epsilon

    def lines(self) -> tuple[Line, ...]:
        name, delta, printed = self.recipe.name, self.recipe.delta, CLAIMS[self.recipe.name]
        analyses = self.analyses
        return (
            check(f"{name}: mu (CLT)", printed.mu, analyses.mu, ROUNDED),
            self._clt_line(),
            check(
                f"{name}: epsilon, moments accountant",
                printed.moments_epsilon,
                analyses.moments_epsilon(delta),
                ROUNDED,
                self.exact,
            ),
            Line(
                f"{name}: epsilon, improved moments accountant",
                None,
                analyses.improved_epsilon(delta),
                self.exact,
                Verdict.BEYOND,
                "the conversion of A Better Bound on the same divergences",
            ),
        )

    def _clt_line(self) -> Line:
        what = f"{self.recipe.name}: epsilon, central limit theorem"
        claim = CLAIMS[self.recipe.name].clt_epsilon
        ours = self.analyses.clt.epsilon(self.recipe.delta)
        if not self.violated:
            return check(what, claim, ours, ROUNDED, self.exact)
        times = self.true_delta.lower / self.recipe.delta
        because = (
            f"a limit is reported as a guarantee: the same formula gives our number, but the run "
            f"needs epsilon {self.exact.lower:.4g}; at {claim:g} its delta is "
            f"{self.true_delta.lower:.2g}, {times:.1f} times the claimed {self.recipe.delta:g}"
        )
        return Line(
            what, claim, ours, self.exact, Verdict.INVALID, because, objection=Objection.LIMIT
        )

    def numbers(self, setting: Setting) -> tuple[Any, ...]:
        """The row of the CSV file."""
        recipe, printed, analyses = self.recipe, CLAIMS[self.recipe.name], self.analyses
        return (
            recipe.name,
            recipe.rate,
            recipe.noise_multiplier,
            recipe.steps,
            recipe.delta,
            analyses.mu,
            printed.mu,
            analyses.clt.epsilon(recipe.delta),
            printed.clt_epsilon,
            analyses.moments_epsilon(recipe.delta),
            printed.moments_epsilon,
            analyses.improved_epsilon(recipe.delta),
            self.exact.lower,
            self.exact.upper,
            self.true_delta.lower,
            *_scores(recipe, setting),
            recipe.claim,
            _scores(twin_of(recipe), setting)[0],
        )


def _scores(recipe: Recipe, setting: Setting) -> tuple[Any, Any, int]:
    found = trained(recipe, setting)
    if isinstance(found, str):
        return None, None, 0
    return found.mean, found.deviation, len(found.results)


def twin_of(recipe: Recipe) -> Recipe:
    """The same network without clipping and noise."""
    return next(twin for twin in TWINS if twin.task == recipe.task)


def outcome(
    recipes: Sequence[Recipe],
    setting: Setting,
    unit: str,
    within: float,
    pictures: Pictures,
    baselines: tuple[Line, ...] = (),
) -> Outcome:
    """The outcome of one table; `unit` names its measure, `within` is what counts as the same."""
    rows = [Row(recipe) for recipe in recipes]
    lines = [line for row in rows for line in row.lines()]
    lines += [score_line(f"{recipe.name}: {unit}", recipe, setting, within) for recipe in recipes]
    twin = twin_of(recipes[0])
    lines.append(score_line(f"non-private twin: {unit}", twin, setting, within))
    table = Table("rows", COLUMNS, [row.numbers(setting) for row in rows])
    return Outcome((*lines, *baselines), (table,), pictures(rows, setting))
