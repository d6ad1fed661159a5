"""What trying many settings on the same people costs."""

from __future__ import annotations

import inspect
import math
import re
from types import FrameType
from typing import Any

from sklearn.model_selection._search import BaseSearchCV

from tightrope.estimators.ledger import FitsAddUp
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.selection import selection_guarantee
from tightrope.numerics.rounding import rounded_up
from tightrope.validate import check_count, warn

__all__ = ["TuningCostsPrivacy", "tuning_cost", "warn_if_searching"]


class TuningCostsPrivacy(FitsAddUp):
    """A search fitted many private models on the same people."""


def tuning_cost(
    one_fit: Guarantee, *, candidates: int, folds: int, refit: bool = True
) -> Guarantee:
    """The guarantee of releasing every model of a grid search.

    Each person is in the training part of folds - 1 of the folds for each candidate, and in the
    refit. Composition covers every model and so every choice made by looking at the models. It does
    NOT cover scores computed without noise on held-out people: score on public rows, or add noise.
    """
    candidates = check_count(candidates, "candidates", low=1)
    folds = check_count(folds, "folds", low=1)
    trainings = candidates * max(folds - 1, 1) + refit
    return one_fit**trainings


def warn_if_searching(guarantee: Guarantee, delta: float) -> None:
    """Warn once, in the final refit of a scikit-learn search, with the cost of the search."""
    searching = _search_around(inspect.currentframe())
    if searching is None:
        return
    candidates, folds = searching
    cost = tuning_cost(guarantee, candidates=candidates, folds=folds)
    epsilon = cost.epsilon(delta).upper
    size = rounded_up(epsilon, 3) if math.isfinite(epsilon) else "infinity"
    warn(
        f"This model was chosen among {candidates} settings with {folds} folds on the same people. "
        f"One fit spends epsilon {rounded_up(guarantee.epsilon(delta).upper, 3)}; all models of "
        f"the search together spend {size} at delta {delta:.3g}. The held-out scores themselves "
        f"carry no noise and are covered by no guarantee. PrivateSearch with as many trials would "
        f"spend {_by_selection(guarantee, candidates, delta)} in all, scores included; the "
        "defaults, which look at public numbers only, cost nothing.",
        TuningCostsPrivacy,
    )


def _search_around(frame: FrameType | None) -> tuple[int, int] | None:
    """(candidates, folds) when the caller is the refit of a search."""
    while frame is not None:
        known = frame.f_locals
        if frame.f_code.co_name == "fit" and isinstance(known.get("self"), BaseSearchCV):
            results = known.get("results")
            return _size(results) if results and "refit_start_time" in known else None
        frame = frame.f_back
    return None


def _size(results: dict[str, Any]) -> tuple[int, int]:
    """(candidates, folds) from the table of scores of a search."""
    folds = {name.split("_")[0] for name in results if re.match(r"split\d+_test_", name)}
    return len(results["params"]), max(len(folds), 1)


def _by_selection(one_fit: Guarantee, candidates: int, delta: float) -> str:
    """What random-stopping selection among fits like this one costs (see `selection`)."""
    epsilon = selection_guarantee(one_fit, candidates).epsilon(delta).upper
    return rounded_up(epsilon, 3)
