"""scikit-learn estimators with a privacy guarantee."""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "tightrope.estimators needs scikit-learn: pip install 'tightrope[sklearn]'",
        name=missing.name,
    ) from missing

from tightrope.convex import PublicRows
from tightrope.estimators.additive import PrivateAdditiveClassifier, PrivateAdditiveRegressor
from tightrope.estimators.classification import PrivateLinearSVC, PrivateLogisticRegression
from tightrope.estimators.regression import PrivateLinearRegression, PrivateRidge
from tightrope.estimators.repeated_fits import FitsAddUp
from tightrope.estimators.search import PrivateSearch
from tightrope.estimators.watch import (
    FitElsewhere,
    LearnsFromPredictions,
    ReadOffTheRows,
    SeededByOthers,
    TransformerNotPrivate,
    TuningCostsPrivacy,
    tuning_cost,
)
from tightrope.guarantee.selection import selection_guarantee
from tightrope.validate import PromisesNothing

__all__ = [
    "PrivateLogisticRegression",
    "PrivateLinearSVC",
    "PrivateLinearRegression",
    "PrivateRidge",
    "PrivateAdditiveClassifier",
    "PrivateAdditiveRegressor",
    "PrivateSearch",
    "selection_guarantee",
    "PublicRows",
    "FitsAddUp",
    "FitElsewhere",
    "LearnsFromPredictions",
    "ReadOffTheRows",
    "PromisesNothing",
    "TransformerNotPrivate",
    "SeededByOthers",
    "TuningCostsPrivacy",
    "tuning_cost",
]
