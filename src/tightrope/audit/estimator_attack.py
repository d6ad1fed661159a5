"""Audits of the private linear estimators, and of anything with fit and a linear score.

A canary is a row of full norm in a direction of its own. Under replace-one its coin chooses between
two labels, under add-or-remove whether it is there. One run: many canaries in one fit. Many runs:
one canary, many fits.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.audit.one_run import Bits
from tightrope.audit.result import Audit, audit_one_run, audit_repeated
from tightrope.convex.exact import Features
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency
from tightrope.process.adjacency import check_adjacency
from tightrope.validate import FloatArray, check_count, check_positive

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


def audit_estimator(
    estimator: BaseEstimator,
    features: Features,
    targets: ArrayLike,
    *,
    labels: tuple[Any, Any],
    delta: float,
    canaries: int = 200,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audit:
    """One fit with many canaries. labels: (label of a canary, label of what may replace it)."""
    generator = np.random.default_rng(seed)
    rows = _rows(estimator, features, check_count(canaries, "canaries", low=1), generator)
    included: Bits = generator.random(len(rows)) < 0.5
    fitted = _fit(estimator, features, targets, rows, included, labels)
    scores = {"scores of canary rows": _score(fitted, rows, labels)}
    return audit_one_run(scores, included, delta=delta, confidence=confidence)


def audit_estimator_runs(
    estimator: BaseEstimator,
    features: Features,
    targets: ArrayLike,
    *,
    labels: tuple[Any, Any],
    delta: float,
    runs: int = 400,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audit:
    """`runs` fits, half with one canary and half without it (or with its replacement)."""
    if estimator.random_state is not None:
        raise InvalidInput(
            f"random_state is {estimator.random_state!r}, so every fit would have the same noise "
            "and any canary would look like a leak. Set it to None."
        )
    generator = np.random.default_rng(seed)
    row = _rows(estimator, features, 1, generator)

    def score_of_run(included: bool) -> float:
        fitted = _fit(estimator, features, targets, row, np.array([included]), labels)
        return float(_score(fitted, row, labels)[0])

    how: Any = {"runs": runs, "delta": delta, "confidence": confidence}
    return audit_repeated(score_of_run, attack="score of one canary row", **how)


def _rows(
    estimator: BaseEstimator, features: Features, count: int, generator: np.random.Generator
) -> FloatArray:
    """Random directions (orthogonal where there is room), as long as a row may be."""
    width, norm = np.shape(features)[1], check_positive(estimator.data_norm, "data_norm")
    raw = generator.standard_normal((width, count))
    if count <= width:
        raw = np.linalg.qr(raw)[0]
    rows: FloatArray = norm * (raw / np.linalg.norm(raw, axis=0)).T
    return rows


def _fit(
    estimator: BaseEstimator,
    features: Features,
    targets: ArrayLike,
    rows: FloatArray,
    included: Bits,
    labels: Any,
) -> Any:
    own, other = labels
    if check_adjacency(estimator.adjacency) is Adjacency.ADD_OR_REMOVE:
        rows, extra = rows[included], np.full(int(included.sum()), own)
    else:
        extra = np.where(included, own, other)
    all_rows = np.concatenate([np.asarray(features), rows])
    from tightrope.estimators.repeated_fits import (
        LEDGER,  # scikit-learn, for those who audit estimators
    )

    with LEDGER.accounted_together():  # fits of an audit are not released
        return copy.deepcopy(estimator).fit(all_rows, np.concatenate([np.asarray(targets), extra]))


def _score(fitted: BaseEstimator, rows: FloatArray, labels: tuple[Any, Any]) -> FloatArray:
    """How much the model favours the canary's label over the other one."""
    own, other = labels
    if not hasattr(fitted, "classes_"):
        return np.asarray(fitted.predict(rows) * np.sign(own - other), dtype=np.float64)
    classes = list(fitted.classes_)
    if own not in classes or other not in classes:
        raise InvalidInput(f"labels must be two of the classes {classes}; got {labels!r}.")
    scores = np.asarray(fitted.decision_function(rows), dtype=np.float64)
    if scores.ndim == 1:
        return scores if classes.index(own) == 1 else -scores
    difference: FloatArray = scores[:, classes.index(own)] - scores[:, classes.index(other)]
    return difference
