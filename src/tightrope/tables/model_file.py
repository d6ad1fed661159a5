"""A fitted private table model as a JSON file without code.

The file holds the schema, how columns are encoded, the weights and the guarantee: numbers and texts
that were released or are public. Reading it runs nothing, and everything in it is checked.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from tightrope.convex import Scaling
from tightrope.errors import InvalidInput
from tightrope.estimators import (
    PrivateLinearRegression,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
)
from tightrope.evidence.files import printable, read_json, write_text
from tightrope.tables.design import Design
from tightrope.tables.pipeline import PrivatePipeline
from tightrope.tables.schema import TableSchema
from tightrope.validate import FloatArray

FORM = "tightrope.table.model/1"
MODELS: dict[str, Any] = {
    "logistic": PrivateLogisticRegression,
    "svc": PrivateLinearSVC,
    "regression": PrivateLinearRegression,
    "ridge": PrivateRidge,
}


def as_data(model: PrivatePipeline) -> dict[str, Any]:
    """The released model as plain data."""
    fitted = model.estimator_
    names = {cls: name for name, cls in MODELS.items()}
    if type(fitted) not in names or model._schema.target is None:
        raise InvalidInput(
            f"A model file holds a linear model of a table whose schema names the target; got "
            f"{type(fitted).__name__}. Others can be pickled, which is code."
        )
    scaling: Scaling = fitted._scaling
    return {
        "schema": FORM,
        "table": model._schema.as_dict(),
        "encoding": model.design_.as_dict(),
        "model": names[type(fitted)],
        "weights": fitted._weights.tolist(),
        "rows": {
            "data_norm": scaling.data_norm,
            "intercept": scaling.intercept,
            "center": None if scaling.center is None else scaling.center.tolist(),
            "radius": scaling.radius,
        },
        "private": model.private_,
        "epsilon": model.guarantee_.epsilon(model.delta_).upper,
        "delta": model.delta_,
        "neighbours": str(model.guarantee_.adjacency),
        "unit": model.guarantee_.unit_of_privacy,
    }


def from_data(data: Any, where: object = "This file") -> PrivatePipeline:
    """A model that predicts as the one that was written."""
    if not isinstance(data, dict) or data.get("schema") != FORM:
        raise InvalidInput(
            f"{printable(where)} is not a model of a private table ({FORM}). `tightrope table "
            "fit` writes one; a certificate lies beside it."
        )
    try:
        schema = TableSchema.from_dict(data["table"])
        design = Design.from_dict(data["encoding"])
        rows, kind = data["rows"], MODELS[data["model"]]
        center = None if rows["center"] is None else _finite(rows["center"], 1)
        scaling = Scaling(
            float(rows["data_norm"]), float(rows["intercept"]), center, float(rows["radius"])
        )
        weights = _finite(data["weights"], 2 if len(np.shape(data["weights"])) == 2 else 1)
        width = design.width + bool(scaling.intercept)
        numbers = (scaling.data_norm, scaling.radius)
        good = len(weights) == width and all(0.0 < n < math.inf for n in numbers)
        good &= tuple(design.codes) == schema.features and schema.target is not None
        good &= design.places == tuple(1 + schema.used.index(name) for name in schema.features)
        if not good or (center is not None and len(center) != design.width):
            raise ValueError
    except (KeyError, TypeError, ValueError, InvalidInput) as error:
        raise InvalidInput(f"{printable(where)} is a damaged model file.") from error
    model = PrivatePipeline(schema)
    model.estimator_ = _estimator(kind, weights, scaling, design, schema)
    model.design_, model._schema = design, schema
    model.n_features_in_ = len(schema.features)
    if schema.classes is not None:
        model.classes_ = np.array(schema.classes)
    return model


def _finite(given: Any, dimensions: int) -> FloatArray:
    found = np.array(given, dtype=np.float64)
    if found.ndim != dimensions or not np.isfinite(found).all():
        raise ValueError
    return found


def _estimator(
    kind: Any, weights: FloatArray, scaling: Scaling, design: Design, schema: TableSchema
) -> Any:
    found = kind() if schema.classes is not None else kind(target_bound=1.0)
    found._weights, found._scaling = weights, scaling
    found.coef_, found.intercept_ = scaling.unscale(weights)
    found.n_features_in_ = design.width
    if schema.classes is not None:
        found.classes_ = np.arange(len(schema.classes))
    return found


def write_model(model: PrivatePipeline, path: str | Path) -> Path:
    """Write the released model; it may be published."""
    return write_text(path, json.dumps(as_data(model), indent=1, allow_nan=False) + "\n")


def read_model(path: str | Path) -> PrivatePipeline:
    """Read a model file."""
    return from_data(read_json(Path(path)), path)
