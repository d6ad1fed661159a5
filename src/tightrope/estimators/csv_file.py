"""Private models from a CSV file: what the command line calls.

The header, the number of rows and the set of labels count as public. Every column but the target is
a feature and must hold numbers; text columns are refused, since listing their values would look at
the private data: encode them by a public list first.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from tightrope.convex import (
    Budget,
    Logistic,
    Loss,
    MultinomialLogistic,
    Options,
    Plan,
    Problem,
    SizeOnly,
    SmoothedHinge,
)
from tightrope.convex import plan as plan_problem
from tightrope.errors import InvalidInput
from tightrope.estimators.base import default_delta
from tightrope.estimators.linear_svc import PrivateLinearSVC
from tightrope.estimators.logistic import PrivateLogisticRegression
from tightrope.estimators.regression import PrivateLinearRegression
from tightrope.process import Adjacency
from tightrope.validate import FloatArray, check_count

__all__ = ["CsvTable", "read_csv", "plan", "fit", "model_card"]

_MODELS: dict[str, Any] = {
    "logistic": PrivateLogisticRegression,
    "svc": PrivateLinearSVC,
    "regression": PrivateLinearRegression,
}


@final
@dataclass(frozen=True)
class CsvTable:
    """Features (n, d) float64, the target column as text, and the names of the features."""

    features: FloatArray
    target: Any
    names: tuple[str, ...]


def read_csv(path: str | Path, target: str) -> CsvTable:
    """Read a file with a header line; messages name columns, never values."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, None)
        if header is None or target not in header:
            raise InvalidInput(
                f"{path} has no column {target!r}; its header is {header or 'empty'}."
            )
        rows = [row for row in reader if row]
    if not rows or any(len(row) != len(header) for row in rows):
        raise InvalidInput(
            f"{path} must hold at least one row, and each row as many fields as the header."
        )
    names = tuple(name for name in header if name != target)
    columns = [_numbers(rows, header.index(name), name) for name in names]
    labels = np.array([row[header.index(target)] for row in rows])
    features = np.column_stack(columns) if columns else np.empty((len(rows), 0))
    return CsvTable(features, labels, names)


def _numbers(rows: list[list[str]], index: int, name: str) -> FloatArray:
    try:
        return np.array([row[index] for row in rows], dtype=np.float64)
    except ValueError:
        raise InvalidInput(
            f"Column {name!r} holds text or empty fields. Encode it as numbers by a rule that does "
            "not look at the data (a public list of categories, a fixed value for empty fields)."
        ) from None


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
    problem = Problem(
        SizeOnly(records, width), _planned_loss(model, classes), adjacency=Adjacency(adjacency)
    )
    budget = Budget(epsilon, default_delta(records) if delta is None else delta)
    planned, _ = plan_problem(
        problem, budget, algorithm=algorithm, options=Options(centring=0.06, row_reach=0.8)
    )
    return planned


def _planned_loss(model: str, classes: int) -> Loss:
    if model == "logistic":
        return Logistic(0.5) if classes == 2 else MultinomialLogistic(classes, 1.0)
    if model == "svc" and classes == 2:
        return SmoothedHinge(2.0)
    raise InvalidInput(f"plan knows 'logistic' and two-class 'svc'; got {model!r}.")


def fit(
    path: str | Path,
    *,
    target: str,
    epsilon: float,
    data_norm: float,
    delta: float | None = None,
    model: str = "logistic",
    algorithm: str = "auto",
    on_pass: Callable[[], None] | None = None,
    **settings: Any,
) -> Any:
    """A fitted private estimator for the named target column.

    `on_pass` is called before each pass over the rows, for a progress bar.
    """
    if model not in _MODELS:
        raise InvalidInput(f"model must be one of {', '.join(_MODELS)}; got {model!r}.")
    table = read_csv(path, target)
    make = _MODELS[model]
    estimator = make(epsilon, delta=delta, data_norm=data_norm, algorithm=algorithm, **settings)
    goal = _numeric_target(table.target, target) if model == "regression" else table.target
    estimator._on_pass = on_pass
    fitted = estimator.fit(table.features, goal)
    estimator._on_pass = None  # not part of the model, and perhaps not picklable
    fitted.feature_names_ = table.names
    return fitted


def _numeric_target(values: Any, name: str) -> FloatArray:
    return _numbers([[value] for value in values], 0, name)


def model_card(fitted: Any) -> str:
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
