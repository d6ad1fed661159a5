"""Private linear regression: targets are clipped to a public bound and scaled to [-1, 1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from tightrope.convex import REGRESSION, Huber, Learned, Loss, PublicRows, Squared
from tightrope.errors import InvalidInput
from tightrope.estimators.base import PrivateLinearModel
from tightrope.validate import FloatArray, check_positive


@dataclass(eq=False, repr=False, kw_only=True)
class _PrivateRegressor(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    target_bound: float | None = None

    _outputs_kept = False
    _expected = REGRESSION
    _row_reach = 2.0  # a shortened row predicts a shortened target

    def fit(
        self, X: ArrayLike, y: ArrayLike, public: PublicRows | tuple[Any, Any] | None = None
    ) -> Self:
        """Fit on private rows `X` and targets `y`; `public` = (rows, targets) need no noise."""
        X, y = self._checked(X, y, reset=True, y_numeric=True)
        self._learn(X, self._encoded(y), self._checked_public(public), None)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Go on with rows of people never seen before; see `PrivateLogisticRegression`."""
        first = not hasattr(self, "coef_")
        X, y = self._checked(X, y, reset=first, y_numeric=True)
        self._learn(X, self._encoded(y), None, None if first else self._weights)
        return self

    def predict(self, X: ArrayLike) -> FloatArray:
        """Predicted targets; rows outside the norm bound are shortened as in the fit."""
        return self._scores(X) * self._target_bound()

    def _keep(self, learned: Learned) -> None:
        super()._keep(learned)
        self.coef_ = self.coef_ * self._target_bound()
        self.intercept_ = self.intercept_ * self._target_bound()

    def _target_bound(self) -> float:
        if self.target_bound is None:
            raise InvalidInput(
                f"{type(self).__name__} needs target_bound: a bound on |target| that is known "
                "without looking at the data (targets beyond it are clipped to it)."
            )
        return float(check_positive(self.target_bound, "target_bound"))

    def _encoded(self, targets: ArrayLike) -> FloatArray:
        return np.clip(np.asarray(targets, dtype=np.float64) / self._target_bound(), -1.0, 1.0)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearRegression(_PrivateRegressor):
    """Linear regression with a Huber loss and an (epsilon, delta)-DP guarantee.

    `target_bound` bounds |target| and is required like `data_norm`. Residuals beyond
    `residual_limit` (as a part of `target_bound`) count linearly: a smaller limit means less noise
    and more robustness. All other parameters and the attributes are those of
    `PrivateLogisticRegression`.
    """

    residual_limit: float = 0.5

    def _loss(self) -> Loss:
        return Huber(self.residual_limit)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRidge(_PrivateRegressor):
    """Least squares on a ball of weights, L2-regularised, with an (epsilon, delta)-DP guarantee.

    `radius` is that of the ball, for weights on rows scaled to norm 1, in units of `target_bound`.
    Residuals beyond `residual_limit` (as a part of `target_bound`) count linearly, as in
    `PrivateLinearRegression`; None is the squared loss itself, whose slope is bounded by
    radius + 1 only: it needs (radius + 1)/residual_limit times the noise.
    """

    radius: float | None = 3.0
    residual_limit: float | None = 0.5

    def _loss(self) -> Loss:
        squared = Squared(target_bound=1.0, radius=self.radius)  # type: ignore[arg-type]
        if self.residual_limit is None:
            return squared
        return Huber(min(self.residual_limit, squared.slope_bound))
