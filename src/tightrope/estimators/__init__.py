"""scikit-learn estimators with a privacy guarantee."""

from tightrope.estimators.linear_svc import PrivateLinearSVC
from tightrope.estimators.logistic import PrivateLogisticRegression
from tightrope.estimators.regression import PrivateLinearRegression, PrivateRidge
from tightrope.estimators.tuning import TuningCostsPrivacy, tuning_cost

__all__ = [
    "PrivateLogisticRegression",
    "PrivateLinearSVC",
    "PrivateLinearRegression",
    "PrivateRidge",
    "TuningCostsPrivacy",
    "tuning_cost",
]
