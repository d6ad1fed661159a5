"""What the private linear estimators share: checked input, one private fit, what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from tightrope.convex import (
    CLASSIFICATION,
    ArrayData,
    Budget,
    Data,
    Learned,
    Loss,
    Options,
    Problem,
    PublicRows,
    Scaling,
    WatchedData,
    learn,
)
from tightrope.convex.counts import (
    budget_of,
    check_fit,
    norm_release,
    released_norm,
    shared,
)
from tightrope.convex.exact import Features
from tightrope.convex.fit_certificate import certificate_of_fit
from tightrope.convex.learn import check_promise, continued
from tightrope.convex.problem import check_two
from tightrope.convex.rows import INTERCEPT
from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.estimators.watch import tell, tell_of_prediction
from tightrope.ledger.spending import reserved
from tightrope.process import Adjacency
from tightrope.process.adjacency import check_adjacency, check_rows
from tightrope.validate import (
    FloatArray,
    check_count,
    check_positive,
    check_real,
    default_delta,
)

_SMALLEST_NORM, _LARGEST_NORM = 1e-30, 1e30
_NORM_SHARE = 0.05  # of mu^2, for data_norm="auto"


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]
    """Fits weights of a linear score under (epsilon, delta)-DP."""

    epsilon: float = field(default=1.0, kw_only=False)
    delta: float | None = None
    data_norm: float | str | None = None
    algorithm: str = "auto"
    regularization: float | None = None
    max_iter: int | None = None
    batch_size: int | None = None
    radius: float | None = None
    fit_intercept: bool = True
    centering: float = 0.06
    adjacency: str = "replace-one"
    records: int | None = None
    cryptographic: bool = False
    random_state: int | None = None

    carries_guarantee = True

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # --- what subclasses say ---------------------------------------------------------------------
    def _loss(self) -> Loss:
        raise NotImplementedError("An estimator names its loss.")

    def _encoded(self, targets: ArrayLike) -> FloatArray:
        raise NotImplementedError("An estimator encodes its targets.")

    # --- the fit ---------------------------------------------------------------------------------
    def _learn(
        self,
        features: Features,
        targets: FloatArray,
        public: PublicRows | None,
        start: NDArray[np.float64] | None,
    ) -> None:
        """One private fit on checked features and encoded targets; sets the learned attributes."""
        self._learn_from(lambda at: ArrayData(features, targets, at), features, public, start)

    def fit_elsewhere(self, make: Callable[[Scaling], Data], rows: int) -> Self:
        """Fit on rows that are on other machines, their targets encoded: `make` places them."""
        if hasattr(self, "classes"):
            self.classes_ = np.asarray(self.classes)
        self._learn_from(make, np.empty((rows, 0)), None, None)
        return self

    def _learn_from(
        self,
        make: Callable[[Scaling], Data],
        features: Features,
        public: PublicRows | None,
        start: NDArray[np.float64] | None,
    ) -> None:
        counted = self._counted(features)
        budget = Budget(self.epsilon, self._delta(counted, first=start is None))
        if start is not None:
            check_promise(self._learned, budget, check_adjacency(self.adjacency))
            learned = self._learned_at(make, self._scaling, budget, public, start)
            self._keep(continued(self._learned, learned))
        else:
            if isinstance(self.data_norm, str):
                learned = self._with_private_norm(make, features, public, budget)
            else:
                scaling = Scaling(self._checked_norm(), INTERCEPT if self.fit_intercept else 0.0)
                learned = self._learned_at(make, scaling, budget, public, None)
            self._keep(learned)
        tell(self, features, learned.plan.guarantee, counted)

    def _learned_at(
        self,
        make: Callable[[Scaling], Data],
        scaling: Scaling,
        budget: Budget,
        public: PublicRows | None,
        start: NDArray[np.float64] | None,
    ) -> Learned:
        """What the algorithm learns from rows scaled so, within this budget."""
        data = make(scaling)
        if self._on_pass is not None:
            data = WatchedData(data, self._on_pass)
        problem = Problem(
            data,
            self._loss(),
            adjacency=check_adjacency(self.adjacency),
            public=public and ArrayData(public.features, public.targets, scaling),
            private_records=self.records,
            other_people=public is not None and public.other_people,
        )
        return learn(
            problem,
            budget,
            algorithm=self.algorithm,
            strength=self.regularization,
            expected=self._expected,
            options=self._options(),
            seed=self.random_state,
            cryptographic=self.cryptographic,
            start=start,
        )

    def _with_private_norm(
        self,
        make: Callable[[Scaling], Data],
        features: Features,
        public: PublicRows | None,
        budget: Budget,
    ) -> Learned:
        """The length of nine rows of ten is bought first; longer rows are shortened to it."""
        if self.data_norm != "auto" or public is not None:
            raise InvalidInput(
                f"data_norm must be a number or 'auto'; got {self.data_norm!r}. With public rows "
                "give a number: their lengths are public."
            )
        adjacency = check_rows(self.adjacency, "Learning from rows")
        share = shared(norm_release(adjacency), budget, adjacency, share=_NORM_SHARE)
        stream = open_stream("norm", seed=self.random_state, cryptographic=True)
        with reserved(share.booked, "fit with a private norm", private=stream.private):
            norm = released_norm(features, share.before[0], stream)
            scaling = Scaling(norm, INTERCEPT if self.fit_intercept else 0.0)
            inner = budget_of(share.mu, budget.delta)
            learned = self._learned_at(make, scaling, inner, None, None)
        process, guarantee = check_fit(share, learned.plan.process, learned.plan.guarantee, budget)
        plan = replace(learned.plan, process=process, guarantee=guarantee, budget=budget)
        return replace(learned, plan=plan, private=learned.private and stream.private)

    def _delta(self, counted: int, first: bool) -> float:
        if self.delta is not None:
            return self.delta
        return default_delta(counted) if first else float(self.delta_)

    def _counted(self, features: Features) -> int:
        """The public number of private rows: declared, or that of the rows where it is public."""
        if self.records is not None:
            return check_count(self.records, "records", low=2)
        if check_adjacency(self.adjacency) is Adjacency.REPLACE_ONE:
            check_two(int(features.shape[0]))
        return int(features.shape[0])  # public, or refused by Problem

    def _options(self) -> Options:
        share = check_real(self.centering, "centering", low=0.0, high=0.5)
        return Options(
            steps=self.max_iter,
            batch_size=self.batch_size,
            radius=self.radius,
            centring=share if self.fit_intercept else 0.0,  # a centre is an intercept
            row_reach=self._row_reach,
        )

    def _keep(self, learned: Learned) -> None:
        plan, self._learned = learned.plan, learned
        self._weights, self._scaling = learned.weights, learned.scaling
        coefficients, intercept = learned.scaling.unscale(learned.weights)
        self.coef_ = np.atleast_2d(coefficients.T) if self._outputs_kept else coefficients
        self.intercept_ = np.atleast_1d(intercept) if self._outputs_kept else float(intercept)
        self.guarantee_, self.process_ = plan.guarantee, plan.process
        self.delta_, self.private_ = plan.budget.delta, learned.private
        self.algorithm_, self.reason_ = plan.algorithm, plan.reason
        self.n_iter_ = getattr(plan.algorithm, "steps", getattr(plan.algorithm, "epochs", 1))

    def certificate(
        self, data: tuple[Any, ...] | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """The chained certificate of the fit; write it with tightrope.evidence.certificate.write.

        data, key: commit to these arrays under a secret key of evidence.commitment.new_key().
        """
        check_is_fitted(self)
        return certificate_of_fit(self._learned, data, key)

    _outputs_kept = True
    _on_pass: ClassVar[Any] = None  # called before each pass over the rows
    _expected = CLASSIFICATION
    # Directions matter to a classifier more than lengths, so most rows may be shortened.
    _row_reach = 0.8

    def _checked_norm(self) -> float:
        if self.data_norm is None:
            raise InvalidInput(
                f"{type(self).__name__} needs data_norm: a bound on the length (Euclidean norm) of "
                "a row, known without looking at the data. It sets the noise, and longer rows are "
                "shortened to it. If every feature lies in [0, 1] or [-1, 1], the square root of "
                "the number of features is such a bound. data_norm='auto' buys one with a small "
                "part of the budget."
            )
        norm = float(check_positive(self.data_norm, "data_norm"))
        if not _SMALLEST_NORM <= norm <= _LARGEST_NORM:
            raise InvalidInput(
                f"data_norm must lie in [{_SMALLEST_NORM:g}, {_LARGEST_NORM:g}]; got {norm!r}."
            )
        return norm

    def _checked_public(self, public: Features) -> PublicRows | None:
        """Checked rows and encoded targets of (rows, targets) or PublicRows."""
        if public is None:
            return None
        rows = public if isinstance(public, PublicRows) else PublicRows(*public)
        features, targets = self._checked(rows.features, rows.targets, reset=False)
        return PublicRows(features, self._encoded(targets), rows.other_people)

    # --- checked input and scores ----------------------------------------------------------------
    def _checked(self, features: Features, *targets: ArrayLike, reset: bool, **how: Any) -> Any:
        how |= {"accept_sparse": "csr", "dtype": (np.float64, np.float32)}
        return validate_data(self, features, *targets, reset=reset, **how)

    def _scores(self, features: Features) -> FloatArray:
        """Linear scores, of each row whatever the others are; rows are shortened as in the fit."""
        check_is_fitted(self)
        tell_of_prediction()
        rows = self._checked(features, reset=False)
        data = ArrayData(rows, np.zeros(rows.shape[0]), self._scaling)
        parts = [block.scores(self._weights, exactly=True) for block in data.blocks()]
        return np.concatenate(parts)
