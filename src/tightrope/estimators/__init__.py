"""scikit-learn estimators with a privacy guarantee."""

from tightrope.estimators.linear_svc import PrivateLinearSVC
from tightrope.estimators.logistic import PrivateLogisticRegression
from tightrope.estimators.regression import PrivateLinearRegression, PrivateRidge
from tightrope.estimators.search import PrivateSearch
from tightrope.estimators.selection import selection_guarantee
from tightrope.estimators.tuning import TuningCostsPrivacy, tuning_cost

__all__ = [
    "PrivateLogisticRegression",
    "PrivateLinearSVC",
    "PrivateLinearRegression",
    "PrivateRidge",
    "PrivateSearch",
    "selection_guarantee",
    "TuningCostsPrivacy",
    "tuning_cost",
]
