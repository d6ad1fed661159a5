"""What scikit-learn does around a private fit, seen from inside it.

An estimator does not know that it stands in a pipeline, and a meta-estimator hands it rows that it
has changed or chosen. Both can be read off the call stack: frames of scikit-learn whose `self` is
the pipeline, or whose `X` holds the rows as they were.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from multiprocessing import parent_process
from types import FrameType
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures
from sklearn.utils import get_tags

from tightrope.convex.exact import Features
from tightrope.convex.rows import row_norms
from tightrope.estimators.repeated_fits import LEDGER, FitsAddUp
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.selection import selection_guarantee
from tightrope.numerics.rounding import rounded_up
from tightrope.validate import check_count, warn, warn_if_it_promises_nothing


class TransformerNotPrivate(UserWarning):
    """Something before a private estimator learns from the private rows without noise."""


class SeededByOthers(UserWarning):
    """A meta-estimator set the seed of a private estimator, which is therefore not private."""


class LearnsFromPredictions(UserWarning):
    """Something around a fitted private estimator learns from its predictions, without noise."""


class FitElsewhere(UserWarning):
    """A private fit ran in a worker process, which does not see the others."""


class ReadOffTheRows(UserWarning):
    """A number that should be public is, to the last digits, one of the private rows."""


class TuningCostsPrivacy(FitsAddUp):
    """A search fitted many private models on the same people."""


def tell_of_prediction() -> None:
    """Warn where a fit of something else asks; a search of ours adds noise to its scores."""
    if not LEDGER.quiet:
        warn_of_learning_from_predictions()


def tell(fitted: Any, features: Features, guarantee: Guarantee, records: int) -> None:
    """Warn once for each fit, and not at all where a search speaks for all of its own.

    records: how many there are, which is public.
    """
    if LEDGER.quiet:  # the number of trials of a search is secret: so is that of its warnings
        return
    if isinstance(getattr(fitted, "data_norm", None), float):
        warn_of_longest_row(features, fitted.data_norm)
    warn_of_transformers()
    warn_of_workers()
    warn_if_searching(guarantee, fitted.delta_)
    epsilon = guarantee.epsilon(fitted.delta_).upper
    warn_if_it_promises_nothing(epsilon, fitted.delta_, records)
    if warn_if_seeded(fitted.random_state) or fitted.private_:
        LEDGER.enter(original_rows(features), guarantee, fitted.delta_)


def warn_of_longest_row(features: Features, data_norm: float) -> None:
    """Warn where the bound on rows is the length of one of them, and no round number."""
    lengths = row_norms(features) if features.shape[1] else np.zeros(0)
    near = bool((np.abs(lengths - data_norm) <= 1e-12 * data_norm).any())
    if near and data_norm != float(f"{data_norm:.6g}") and not _is_root(data_norm):
        warn(
            "data_norm is, to the last digits, the length of one of the private rows. If it was "
            "read off them (their largest norm), it is part of the model and no epsilon covers it. "
            "Give a bound that is known without the rows, or data_norm='auto'.",
            ReadOffTheRows,
        )


def _is_root(norm: float) -> bool:
    """Is it the square root of a whole number, as bounds of encoded rows are?"""
    return norm < 1e6 and abs(norm**2 - round(norm**2)) <= 1e-9 * norm**2


def warn_of_workers() -> None:
    """Warn where this process was made by another one to work for it: it has its own ledger."""
    if parent_process() is not None:
        warn(
            "This private fit runs in a worker process (n_jobs, a pool). Fits that other workers "
            "make on the same people are not seen and not added up: k fits at the same epsilon "
            "and delta spend at most k times both. Use n_jobs=1 (or the 'threading' backend of "
            "joblib) to see what they cost together, or give each fit its share of the budget.",
            FitElsewhere,
        )


def _frames() -> Iterator[FrameType]:
    """The frames of scikit-learn above, from the inside out."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("sklearn."):
            yield frame
        frame = frame.f_back


def original_rows(features: Features) -> Any:
    """The rows of a fit as the outermost part of scikit-learn was given them.

    Scalers and selections of columns keep the order of rows, so an array with as many rows is the
    same people. Where columns were chosen before rows were (a search for columns by
    cross-validation), all rows that scikit-learn was given stand for those of the fit.
    """
    tables = [features, *filter(_is_table, (_given(frame) for frame in _frames()))]
    same = [table for table in tables if table.shape[0] == features.shape[0]]
    whole = tables[-1]
    return same[-1] if same[-1].shape[1] == whole.shape[1] else whole


def _given(frame: FrameType) -> Any:
    """What a part of scikit-learn was given as X; a data frame of numbers as an array of them."""
    given: Any = frame.f_locals.get("X")
    if len(getattr(given, "shape", ())) != 2 or isinstance(given, np.ndarray) or sp.issparse(given):
        return given
    try:
        return np.asarray(given)
    except (TypeError, ValueError):
        return None


def warn_of_learning_from_predictions() -> None:
    """Warn where a prediction is asked for by the fit of something else.

    A threshold, a calibration map or a stacked model is fitted to what the private model says
    about rows, and to their targets. That a model was fitted before (cv="prefit", FrozenEstimator)
    makes no difference: then no private fit happens that could say so.
    """
    for frame in _frames():
        owner, name = frame.f_locals.get("self"), frame.f_code.co_name
        if not isinstance(owner, BaseEstimator) or not name.lstrip("_").startswith("fit"):
            continue
        if isinstance(owner, BaseSearchCV):  # has a warning of its own, with the price
            return
        warn(
            f"{_name(owner)} learns from what a private model predicts for the rows it is given, "
            "and from their targets, without noise. If these rows are private, what it learns "
            "(thresholds, calibration, weights, a choice of columns) is covered by no epsilon. "
            "Give it public rows; or choose a threshold known beforehand, and leave the rest out.",
            LearnsFromPredictions,
        )
        return


def warn_if_seeded(seed: int | None) -> bool:
    """Did a meta-estimator give a seed to an estimator that was made without one? Then warn."""
    for frame in _frames() if seed is not None else ():
        owner = frame.f_locals.get("self")
        given: Any = getattr(owner, "estimator", None)
        if hasattr(given, "random_state") and given.random_state is None:
            warn(
                f"{_name(owner)} gave its private estimator a seed (random_state), so the noise of "
                "this fit can be computed again: it is not private, and its certificate says so. "
                "Fit the estimator without it, or write the loop yourself.",
                SeededByOthers,
            )
            return True
    return False


def _is_table(given: Any) -> bool:
    plain = isinstance(given, np.ndarray) or sp.issparse(given)
    return plain and given.ndim == 2 and given.dtype.kind in "fiub"


def warn_of_transformers() -> None:
    """Warn of each pipeline above that learns from the rows before the private estimator does."""
    for name in dict.fromkeys(_learning_parts()):
        warn(
            f"{name} stands before a private estimator and learns from the same private rows "
            "without noise: what it learnt is part of the model, and no epsilon covers it (it has "
            "no bound at all). Replace it by a rule that is known beforehand (FunctionTransformer "
            "with public ranges, Normalizer, encoders with categories=[...]), or fit it on public "
            "rows first and pass what it gives. The estimators centre rows privately themselves.",
            TransformerNotPrivate,
        )


def _learning_parts() -> Iterator[str]:
    for frame in _frames():
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline):
            yield from (_name(part) for _, part in owner.steps[:-1] if learns(part))
        elif isinstance(owner, TransformedTargetRegressor) and learns(owner.transformer):
            yield _name(owner.transformer)


def learns(part: object) -> bool:
    """Does this transformer keep anything that it computes from the values of rows?"""
    if part is None or isinstance(part, str):  # "passthrough", "drop"
        return False
    if getattr(part, "carries_guarantee", False):
        return False
    if isinstance(part, Pipeline):
        return any(learns(inner) for _, inner in part.steps)
    if isinstance(part, FeatureUnion):
        return any(learns(inner) for _, inner in part.transformer_list)
    if isinstance(part, ColumnTransformer):
        inner = [transformer for _, transformer, _ in part.transformers]
        return any(learns(one) for one in (*inner, part.remainder))
    if isinstance(part, (OneHotEncoder, OrdinalEncoder)):
        return isinstance(part.categories, str)
    if isinstance(part, PolynomialFeatures):
        return False  # the number of columns only
    return bool(get_tags(part).requires_fit)


def _name(part: object) -> str:
    return type(part).__name__


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
    chosen = selection_guarantee(guarantee, candidates).epsilon(delta).upper
    warn(
        f"This model was chosen among {candidates} settings with {folds} folds on the same people. "
        f"One fit spends epsilon {rounded_up(guarantee.epsilon(delta).upper, 3)}; all models of "
        f"the search together spend {size} at delta {delta:.3g}. The held-out scores themselves "
        f"carry no noise and are covered by no guarantee. PrivateSearch with as many trials would "
        f"spend {rounded_up(chosen, 3)} in all, scores included; the "
        "defaults, which look at public numbers only, cost nothing.",
        TuningCostsPrivacy,
    )


def _search_around(frame: FrameType | None) -> tuple[int, int] | None:
    """(candidates, folds) when the caller is the refit of a search."""
    while frame is not None:
        known = frame.f_locals
        if frame.f_code.co_name == "fit" and isinstance(known.get("self"), BaseSearchCV):
            results = known.get("results")
            if not results or "refit_start_time" not in known:
                return None
            folds = {n.split("_")[0] for n in results if re.match(r"split\d+_test_", n)}
            return len(results["params"]), max(len(folds), 1)
        frame = frame.f_back
    return None
