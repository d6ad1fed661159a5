"""What scikit-learn does around a private fit, seen from inside it.

An estimator is not told that it stands in a pipeline, and a meta-estimator hands it rows that it
has changed or chosen. Both can be read off the call stack: frames of scikit-learn whose `self` is
the pipeline, or whose `X` holds the rows as they were.
"""

from __future__ import annotations

import inspect
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
from tightrope.validate import warn

__all__ = [
    "TransformerNotPrivate",
    "SeededByOthers",
    "FitElsewhere",
    "ReadOffTheRows",
    "warn_of_longest_row",
    "LearnsFromPredictions",
    "original_rows",
    "warn_of_transformers",
    "warn_if_seeded",
    "warn_of_learning_from_predictions",
    "warn_of_workers",
]


class TransformerNotPrivate(UserWarning):
    """Something before a private estimator learns from the private rows without noise."""


class SeededByOthers(UserWarning):
    """A meta-estimator set the seed of a private estimator, which is therefore not private."""


class LearnsFromPredictions(UserWarning):
    """Something around a fitted private estimator learns from its predictions, without noise."""


class FitElsewhere(UserWarning):
    """A private fit ran in a worker process, where nobody sees the others."""


class ReadOffTheRows(UserWarning):
    """A number that should be public is, to the last digits, one of the private rows."""


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
            "joblib) to be told what they cost together, or give each fit its share of the budget.",
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
