"""Tuning with a guarantee: random-stopping search over settings of a private estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from tightrope.convex import Budget, Entropy
from tightrope.errors import InvalidInput, NotCertified
from tightrope.estimators.base import default_delta
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.selection import selection_guarantee, trial_mu
from tightrope.process import Adjacency
from tightrope.validate import check_positive, check_real

__all__ = ["PrivateSearch"]


def _has(name: str) -> Any:
    return available_if(lambda self: hasattr(self.estimator, name))


class PrivateSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of a secret random number of private fits, all within one (epsilon, delta).

    Each trial draws one of `candidates` (dictionaries of parameters), fits it on the training rows
    and scores it with noise on the validation rows. The two parts are disjoint and divided by
    position, so one person is in one of them, and a trial is as private as the weaker of the two.
    The budget of `estimator` itself is overwritten. Only the best trial is released.

    Attributes: best_estimator_, best_params_, best_score_ (noisy), guarantee_ (of the whole
    search), delta_, private_.
    """

    def __init__(
        self,
        estimator: Any,
        candidates: list[dict[str, Any]],
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        mean_trials: float = 10.0,
        validation: float = 0.2,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.candidates = candidates
        self.epsilon = epsilon
        self.delta = delta
        self.mean_trials = mean_trials
        self.validation = validation
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Search on rows `X` with targets `y`."""
        records = int(X.shape[0])
        self.delta_ = default_delta(records) if self.delta is None else self.delta
        budget, held = Budget(self.epsilon, self.delta_), self._held_out(records)
        mean = float(check_positive(self.mean_trials, "mean_trials"))
        adjacency = Adjacency(self.estimator.adjacency)
        if adjacency is not Adjacency.REPLACE_ONE:
            raise InvalidInput(
                "PrivateSearch divides rows by position, and adding or removing one shifts all "
                "that follow. Use adjacency='replace-one'."
            )
        mu = trial_mu(budget.epsilon, budget.delta, mean, adjacency)
        entropy = Entropy(self.random_state)
        trials = [
            self._trial(X, np.asarray(y), held, mu, entropy) for _ in range(entropy.poisson(mean))
        ]
        if not trials:
            raise NotCertified("The secret number of trials was 0: nothing is released.")
        self.best_score_, self.best_params_, self.best_estimator_ = max(
            trials, key=lambda trial: trial[0]
        )
        self.guarantee_ = selection_guarantee(GaussianGuarantee(mu, adjacency), mean)
        self.private_ = entropy.private
        return self

    def _held_out(self, records: int) -> Any:
        """Every k-th row by position: a rule that looks at no row."""
        share = check_real(self.validation, "validation", low=0.0, high=0.5, open_low=True)
        return np.arange(records) % max(2, round(1.0 / share)) == 0

    def _trial(self, X: Any, y: Any, held: Any, mu: float, entropy: Entropy) -> Any:
        if not self.candidates:
            raise InvalidInput("candidates is empty; give at least one dictionary of parameters.")
        params = self.candidates[entropy.whole_number(0, len(self.candidates) - 1)]
        one_fit = GaussianGuarantee(mu * (1.0 - 1e-9)).epsilon(self.delta_).lower
        model = clone(self.estimator).set_params(**params, epsilon=one_fit, delta=self.delta_)
        model.set_params(random_state=None if entropy.private else entropy.whole_number(0, 2**31))
        model.fit(X[~held], y[~held])
        if model.guarantee_.gaussian_mu().upper > mu:
            raise NotCertified("This algorithm has no Gaussian DP bound; use 'descent'.")
        # one row moves the sum by at most 1 under either adjacency
        hits = _contributions(model, X[held], y[held])
        noise = entropy.normal(()) / (mu * len(hits))
        return float(hits.mean() + noise), params, model

    @_has("predict")  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Prediction of the best model."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the best model."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)

    def score(self, X: Any, y: Any) -> float:
        """Score of the best model, without noise: for rows that need no protection."""
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))


def _contributions(model: Any, X: Any, y: Any) -> Any:
    """One number in [0, 1] for each row."""
    predicted = model.predict(X)
    if hasattr(model, "classes_"):
        return (predicted == y).astype(float)
    return 1.0 - np.minimum(np.abs(predicted - y) / model.target_bound, 1.0)
