"""Private models from a CSV file: what the command line calls.

The header and the number of rows count as public; the possible labels are declared. Every column
but the target is a feature and must hold numbers; text columns are refused, since listing their
values would look at the private data: encode them by a public list first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightrope.convex import Budget, Plan, Problem, SizeOnly
from tightrope.convex import plan as plan_problem
from tightrope.errors import InvalidInput
from tightrope.estimators.linear_svc import PrivateLinearSVC
from tightrope.estimators.logistic import PrivateLogisticRegression
from tightrope.estimators.regression import PrivateLinearRegression, PrivateRidge
from tightrope.estimators.table import CsvTable, numbers, read_csv
from tightrope.process import Adjacency
from tightrope.process.adjacency import check_adjacency
from tightrope.validate import check_count, default_delta

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["CsvTable", "read_csv", "plan", "fit", "model_card"]

_MODELS: dict[str, Any] = {
    "logistic": PrivateLogisticRegression,
    "svc": PrivateLinearSVC,
    "regression": PrivateLinearRegression,
    "ridge": PrivateRidge,
}
_CLASSIFIERS = ("logistic", "svc")


def plan(
    *,
    records: int,
    features: int,
    epsilon: float,
    delta: float | None = None,
    model: str = "logistic",
    classes: int = 2,
    algorithm: str = "auto",
    adjacency: str = "replace-one",
) -> Plan:
    """What a fit on a table of this size would do, before any row is seen."""
    records = check_count(records, "records", low=2)
    width = check_count(features, "features", low=1) + 1
    estimator = _made(model, epsilon, delta=delta, algorithm=algorithm, adjacency=adjacency)
    estimator.classes_ = np.arange(check_count(classes, "classes", low=2))
    relation = check_adjacency(adjacency)
    declared = records if relation is Adjacency.ADD_OR_REMOVE else None
    problem = Problem(
        SizeOnly(records, width), estimator._loss(), adjacency=relation, private_records=declared
    )
    planned, _ = plan_problem(
        problem,
        Budget(epsilon, default_delta(records) if delta is None else delta),
        algorithm=algorithm,
        expected=estimator._expected,
        options=estimator._options(),
    )
    return planned


def _made(model: str, epsilon: float, **settings: Any) -> Any:
    if model not in _MODELS:
        raise InvalidInput(f"model must be one of {', '.join(_MODELS)}; got {model!r}.")
    return _MODELS[model](epsilon, **settings)


def fit(
    path: str | Path,
    *,
    target: str,
    epsilon: float,
    data_norm: float,
    delta: float | None = None,
    model: str = "logistic",
    algorithm: str = "auto",
    classes: Sequence[str] | None = None,
    labels_public: bool = False,
    target_bound: float | None = None,
    on_pass: Callable[[], None] | None = None,
    **settings: Any,
) -> Any:
    """A fitted private estimator for the named target column.

    A classifier needs `classes`, or `labels_public` where the labels that occur are public; a
    regression needs `target_bound`. `on_pass` is called before each pass over the rows, for a
    progress bar.
    """
    if classes is not None and "" in classes:
        raise InvalidInput(
            "One of the declared classes is empty. An empty field is not a label; leave it out."
        )
    if model in _CLASSIFIERS:
        settings |= {"classes": classes, "labels_public": labels_public}
    else:
        settings |= {"target_bound": target_bound}
    estimator = _made(
        model, epsilon, delta=delta, data_norm=data_norm, algorithm=algorithm, **settings
    )
    table = read_csv(path, target)
    goal = _labels(table, target) if model in _CLASSIFIERS else numbers(table.target, target)
    estimator._on_pass = on_pass
    fitted = estimator.fit(table.features, goal)
    estimator._on_pass = None  # not part of the model, and perhaps not picklable
    fitted.feature_names_ = table.names
    return fitted


def _labels(table: CsvTable, target: str) -> Any:
    if (table.target == "").any():
        raise InvalidInput(
            f"Column {target!r}, the target, has empty fields. An empty field is not a label: drop "
            "such rows, or write a label of their own into them."
        )
    return table.target


def model_card(fitted: BaseEstimator) -> str:
    """The released model as JSON: its numbers, its guarantee, and what ran."""
    scaling = fitted._scaling
    centre = None if scaling.center is None else scaling.center.tolist()
    card = {
        "model": type(fitted).__name__,
        "private": fitted.private_,
        "epsilon": fitted.guarantee_.epsilon(fitted.delta_).upper,
        "delta": fitted.delta_,
        "neighbours": str(fitted.guarantee_.adjacency),
        "validity": str(fitted.guarantee_.validity),
        "process": repr(fitted.process_),
        "choice": fitted.reason_,
        "features": list(getattr(fitted, "feature_names_", ())),
        "classes": [str(label) for label in getattr(fitted, "classes_", ())],
        "rows": {
            "data_norm": scaling.data_norm,
            "center": centre,
            "radius": scaling.radius,
            "intercept": scaling.intercept,
        },
        "weights": fitted._weights.tolist(),
    }
    return json.dumps(card, indent=2)
