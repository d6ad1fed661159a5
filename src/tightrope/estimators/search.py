"""Tuning with a guarantee: random-stopping search over settings of a private estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from tightrope.accounting import account
from tightrope.convex import Budget, Entropy, Learned
from tightrope.errors import InvalidInput, NotCertified
from tightrope.estimators.base import PrivateLinearModel
from tightrope.estimators.repeated_fits import LEDGER
from tightrope.estimators.watch import tell
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.selection import trial_mu
from tightrope.ledger.spending import reserved
from tightrope.process import Adjacency, PoissonSelection
from tightrope.process.adjacency import check_adjacency
from tightrope.search import PoissonTrials
from tightrope.validate import check_positive, check_real, default_delta

# What the promise is about: no candidate may set it.
_PROMISE = (
    "epsilon",
    "delta",
    "adjacency",
    "records",
    "classes",
    "labels_public",
    "target_bound",
    "cryptographic",
    "random_state",
)
_ROUNDING = 1.0 + 1e-9  # of a sum of scores that is rounded once


def _has(name: str) -> Any:
    return available_if(lambda self: hasattr(self.estimator, name))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """The best of a secret random number of private fits, all within one (epsilon, delta).

    Each trial draws one of `candidates` (dictionaries of parameters), fits it on the training rows
    and scores it with noise on the validation rows. The two parts are disjoint and divided by
    position, so one person is in one of them, and a trial is as private as the weaker of the two.
    The budget of `estimator` itself is overwritten, and candidates may not set what the promise is
    about (budget, neighbours, labels, randomness). Only the best trial is released; it carries the
    guarantee and the certificate of the whole search.

    Attributes: best_estimator_, best_params_, best_score_ (noisy), guarantee_ and process_ (of the
    whole search), delta_, private_, classes_ of a classifier.
    """

    estimator: BaseEstimator = field(kw_only=False)
    candidates: list[dict[str, Any]] = field(kw_only=False)
    epsilon: float = 1.0
    delta: float | None = None
    mean_trials: float = 10.0
    validation: float = 0.2
    random_state: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type, tags.input_tags = inner.estimator_type, inner.input_tags
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.target_tags = inner.target_tags
        return tags

    # --- the search ------------------------------------------------------------------------------
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Search on rows `X` with targets `y`."""
        self._check_promise()
        X, y = self._checked(X, y, y_numeric=not is_classifier(self.estimator))
        records = _enough(X)
        self.delta_ = default_delta(records) if self.delta is None else self.delta
        process = self._process(Budget(self.epsilon, self.delta_))
        base, held = self._base(y), self._held_out(records)
        entropy = Entropy(self.random_state, cryptographic=self.estimator.cryptographic)
        inside = reserved(process, "search", private=entropy.private)
        with inside, LEDGER.accounted_together():
            trials = [
                self._trial(base, X, y, held, process.trial_mu, entropy)
                for _ in range(PoissonTrials(process.mean_trials).draw(entropy.uniform))
            ]
        if not trials:
            raise NotCertified(
                "The secret number of trials was 0: nothing is released. Search again and compose "
                "the two guarantees, or take a larger mean_trials."
            )
        best = max(trials, key=lambda trial: trial[0])
        self.best_score_, self.best_params_, self.best_estimator_ = best
        self._release(process, entropy.private)
        tell(self, X, self.guarantee_, records)
        return self

    def _check_promise(self) -> None:
        if not isinstance(self.estimator, PrivateLinearModel):
            raise InvalidInput(
                f"PrivateSearch fits private estimators of this package; got "
                f"{type(self.estimator).__name__}. Whatever else learns from the rows (scalers, "
                "pipelines) has no guarantee."
            )
        if check_adjacency(self.estimator.adjacency) is not Adjacency.REPLACE_ONE:
            raise InvalidInput(
                "PrivateSearch divides rows by position, and adding or removing one shifts all "
                "that follow. Use adjacency='replace-one'."
            )
        if not self.candidates:
            raise InvalidInput("candidates is empty; give at least one dictionary of parameters.")
        for params in self.candidates:
            _check_candidate(params, self.estimator)

    def _process(self, budget: Budget) -> PoissonSelection:
        mean = float(check_positive(self.mean_trials, "mean_trials"))
        mu = trial_mu(budget.epsilon, budget.delta, mean, Adjacency.REPLACE_ONE)
        return PoissonSelection(mu, mean, Adjacency.REPLACE_ONE)

    def _base(self, y: ArrayLike) -> Any:
        """The estimator, with the labels declared once for all trials."""
        base = clone(self.estimator)
        if is_classifier(base):
            self.classes_ = base._known_classes(y, base.classes)
            base.set_params(classes=self.classes_)
        return base

    def _held_out(self, records: int) -> Any:
        """Every k-th row by position: a rule that looks at no row."""
        share = check_real(self.validation, "validation", low=0.0, high=0.5, open_low=True)
        return np.arange(records) % max(2, round(1.0 / share)) == 0

    def _trial(
        self,
        base: BaseEstimator,
        X: Any,
        y: Any,
        held: NDArray[np.int64],
        mu: float,
        entropy: Entropy,
    ) -> Any:
        params = self.candidates[entropy.whole_number(0, len(self.candidates) - 1)]
        one_fit = GaussianGuarantee(mu * (1.0 - 1e-9)).epsilon(self.delta_).lower
        seed = None if entropy.private else entropy.whole_number(0, 2**31)
        budget = {"epsilon": one_fit, "delta": self.delta_, "random_state": seed}
        model = clone(base).set_params(**params, **budget).fit(X[~held], y[~held])
        _check_trial(model.guarantee_, mu)
        # one row moves the sum by at most 1
        hits = _contributions(model, X[held], y[held])
        noisy = math.fsum(hits.tolist()) + _ROUNDING * float(entropy.normal(())) / mu
        return noisy / len(hits), params, model

    def _release(self, process: PoissonSelection, secret: bool) -> None:
        """The winner speaks for the whole search, not for its own fit alone."""
        self.process_ = process
        self.guarantee_ = account(process).guarantee(self.delta_)
        won: Learned = self.best_estimator_._learned
        budget = Budget(self.epsilon, self.delta_)
        plan = replace(
            won.plan,
            process=process,
            guarantee=self.guarantee_,
            budget=budget,
            searched=len(self.candidates),
        )
        self.private_ = won.private and secret
        self.best_estimator_._keep(replace(won, plan=plan, private=self.private_))

    def certificate(
        self, data: tuple[Any, ...] | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """The chained certificate of the whole search; see the estimators' own."""
        check_is_fitted(self)
        found: dict[str, Any] = self.best_estimator_.certificate(data, key)
        return found

    def _checked(self, X: ArrayLike, *y: ArrayLike, **how: Any) -> Any:
        how |= {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}
        return validate_data(self, X, *y, **how)

    # --- the best model --------------------------------------------------------------------------
    @_has("predict")  # type: ignore[untyped-decorator]
    def predict(self, X: ArrayLike) -> Any:
        """Prediction of the best model."""
        return self._fitted().predict(self._checked(X, reset=False))

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Any:
        """Probabilities of the best model."""
        return self._fitted().predict_proba(self._checked(X, reset=False))

    @_has("decision_function")  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> Any:
        """Scores of the best model."""
        return self._fitted().decision_function(self._checked(X, reset=False))

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Score of the best model, without noise: for rows that need no protection."""
        return float(self._fitted().score(self._checked(X, reset=False), y))

    def _fitted(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_


def _enough(X: Any) -> int:
    """The number of rows, which is public under replace-one neighbours."""
    if X.shape[0] < 4:
        raise InvalidInput(
            f"Found {X.shape[0]} sample(s) (n_samples={X.shape[0]}): a search needs at least two "
            "rows to fit on and two to score on."
        )
    return int(X.shape[0])


def _check_candidate(params: Any, estimator: Any) -> None:
    known = sorted(set(estimator.get_params()) - set(_PROMISE))
    if not isinstance(params, dict) or not set(params) <= set(known):
        raise InvalidInput(
            f"A candidate is a dictionary of parameters out of {', '.join(known)}; got {params!r}. "
            "What the promise of the search is about (budget, neighbours, labels, bounds of the "
            "target, randomness) belongs to the search or to its estimator, the same for all."
        )


def _check_trial(guarantee: Guarantee, mu: float) -> None:
    same = guarantee.adjacency is Adjacency.REPLACE_ONE
    if not same or guarantee.gaussian_mu().upper > mu:
        raise NotCertified(
            "A trial has no Gaussian DP bound within its share of the search; use 'descent'."
        )


def _contributions(model: BaseEstimator, X: Any, y: Any) -> Any:
    """One number in [0, 1] for each row."""
    predicted = model.predict(X)
    if hasattr(model, "classes_"):
        return (predicted == y).astype(float)
    return 1.0 - np.minimum(np.abs(predicted - y) / model.target_bound, 1.0)
