"""From a raw table to a private model, in one budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from tightrope.accounting import account
from tightrope.convex import Budget
from tightrope.convex.counts import Shared, budget_of, check_fit, shared
from tightrope.convex.fit_certificate import certificate_of_run, not_private_because
from tightrope.convex.problem import check_two, public_count
from tightrope.entropy import WordStream, open_stream
from tightrope.errors import InvalidInput
from tightrope.estimators import PrivateLinearRegression, PrivateLogisticRegression
from tightrope.estimators.repeated_fits import LEDGER
from tightrope.estimators.watch import tell
from tightrope.evidence.run_facts import RunFacts
from tightrope.ledger.spending import in_force, reserved
from tightrope.process import Process, Sequence
from tightrope.process.adjacency import check_rows
from tightrope.tables.on_dask import DaskRows, is_of_dask
from tightrope.tables.releases import Preparation, prepared, released
from tightrope.tables.rows import MEMORY, Rows, read_rows
from tightrope.tables.schema import Number, TableSchema
from tightrope.tables.sources import open_source
from tightrope.validate import FloatArray, check_real, default_delta

_TAIL = 0.1  # of delta, for categories that are shown though one record alone has them


def _has(name: str) -> Any:
    return available_if(lambda self: hasattr(self._made(), name))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivatePipeline(BaseEstimator):  # type: ignore[misc]
    """A private model of a raw table: what a schema leaves unknown is bought, then a model fitted.

    Parameters
    ----------
    schema : TableSchema, or None for an array of numbers without known bounds.
    estimator : a private estimator; None is logistic regression for labels and a linear regression
        for numbers. Its budget, bounds, labels and neighbours are set here.
    epsilon, delta : the budget of everything together; delta=None is 1/n^1.1.
    preprocessing : share of the budget for bounds, ranks and categories. Nothing of it is taken
        where the schema leaves nothing to be bought.
    ranks : whether numbers enter with their private ranks, too, which makes curves of lines.
    adjacency, records : as in the estimators. Under "replace-one" the number of rows is public.
    memory : bytes of the table, and again of its encoded rows, that stay in memory; more of it is
        in a temporary file of this user.
    random_state : None for a private fit. A seed makes the noise known: `private_` is then False.

    Attributes
    ----------
    guarantee_, process_ : of everything together. delta_, private_, estimator_, design_ (how
    columns enter the rows of the model), preprocessing_epsilon_ and preprocessing_share_ (what was
    spent before the fit, at the same delta and as a part of mu^2), classes_ of a classifier.

    >>> from tightrope.tables import Category, Number, PrivatePipeline, TableSchema
    >>> table = {"age": [30, 61] * 300, "job": ["a", "b"] * 300, "rich": ["no", "yes"] * 300}
    >>> known = {"age": Number(0, 120), "job": Category(("a", "b")), "rich": "flag"}
    >>> model = PrivatePipeline(TableSchema(known, target="rich"), epsilon=1.0).fit(table)
    >>> model.guarantee_.epsilon(model.delta_).upper <= 1.0
    True
    """

    schema: TableSchema | None = field(default=None, kw_only=False)
    estimator: BaseEstimator | None = field(default=None, kw_only=False)
    epsilon: float = 1.0
    delta: float | None = None
    preprocessing: float = 0.12
    ranks: bool = True
    adjacency: str = "replace-one"
    records: int | None = None
    memory: int = MEMORY
    random_state: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        inner = get_tags(self._made())
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.target_tags = inner.target_tags
        tags.input_tags.sparse = True
        return tags

    _on_rows: ClassVar[Any] = None  # called with the number of rows read
    _on_pass: ClassVar[Any] = None

    # --- the fit ---------------------------------------------------------------------------------
    def fit(self, X: Any, y: ArrayLike | None = None) -> Self:
        """Fit on a table (see `open_source`); its target is a column, or `y`.

        Nothing is kept of the table but what was released.
        """
        schema = self._schema_for(X)
        if (schema.target is None) == (y is None):
            raise InvalidInput(
                "The target is a column that the schema names, or y, not both; a schema without a "
                "target requires y to be passed, but the target y is None."
                if y is None
                else "The schema names the target, and y was given, too: leave one of them out."
            )
        if is_of_dask(X):
            if y is not None:
                raise InvalidInput("On Dask the target is a column that the schema names.")
            away = DaskRows(X, schema)
            return self._fit_rows(away, schema, None, len(away))
        chunks = open_source(X, schema)
        rows = read_rows(chunks, schema, memory=self.memory, on_chunk=self._on_rows)
        targets = rows.targets(schema) if y is None else np.asarray(y)
        if len(targets) != len(rows):
            raise InvalidInput("The table and y have different numbers of rows.")
        return self._fit_rows(rows, schema, targets, len(rows))

    def _fit_rows(self, rows: Any, schema: TableSchema, targets: Any, count: int) -> Self:
        share, plan, counted = self.planned(schema, count)
        budget = Budget(self.epsilon, self.delta_)
        stream = open_stream("tables", seed=self.random_state, cryptographic=True)
        if plan.categories and in_force() is not None:
            raise InvalidInput(
                "A ledger adds up Renyi divergences, and a threshold for unknown categories has "
                "none. List the values of categories in the schema, or ignore such columns."
            )
        with (
            reserved(share.booked, "table", private=stream.private),
            LEDGER.accounted_together(),
        ):
            design = released(plan, rows, stream)
            fitted = self._fitted(share, design, rows, targets, schema, stream)
        process, guarantee = check_fit(share, fitted.process_, fitted.guarantee_, budget)
        self._share, self._schema, self._randomness = share, schema, stream.description
        self.design_, self.estimator_ = design, fitted
        self.process_, self.guarantee_ = process, guarantee
        self.private_ = bool(fitted.private_) and stream.private
        self.preprocessing_epsilon_ = self._spent_before()
        self.preprocessing_share_ = share.share
        self.n_features_in_, self.records_ = len(schema.features), counted
        if schema.classes is not None:
            self.classes_ = np.array(schema.classes)
        elif hasattr(fitted, "classes_"):
            self.classes_ = fitted.classes_
        if isinstance(rows, Rows):
            tell(self, rows.cells_for_keys(), guarantee, counted)
        return self

    def planned(self, schema: TableSchema, count: int) -> tuple[Shared, Preparation, int]:
        """How the budget is divided, before a value is used; sets delta_."""
        adjacency = check_rows(self.adjacency, "A private table")
        counted = public_count(adjacency, self.records, count)
        check_two(counted)
        self.delta_ = default_delta(counted) if self.delta is None else float(self.delta)
        budget = Budget(self.epsilon, self.delta_)
        part = check_real(self.preprocessing, "preprocessing", low=0.0, high=0.9)
        tail = _TAIL * self.delta_

        def preparation(mu: float) -> Preparation:
            return prepared(schema, mu, tail, adjacency, ranks=self.ranks)

        def processes(mu: float) -> tuple[Process, ...]:
            return preparation(mu if part else 0.0).processes

        share = shared(processes, budget, adjacency, share=part, rows=schema.rows)
        return share, preparation(share.mu_before if share.before else 0.0), counted

    def _fitted(
        self,
        share: Shared,
        design: Any,
        rows: Any,
        targets: Any,
        schema: TableSchema,
        stream: WordStream,
    ) -> Any:
        """The private estimator, fitted with its part of the budget."""
        inner = budget_of(share.mu, self.delta_)
        estimator = self._made(schema)
        seed = None if stream.private else int(stream.words(1)[0] >> np.uint64(33))
        wanted = {
            "epsilon": inner.epsilon,
            "delta": inner.delta,
            "data_norm": design.norm,
            "feature_ranges": (-1.0, 1.0),  # where all entries of encoded rows lie
            "adjacency": self.adjacency,
            "records": self.records,
            "random_state": seed,
        }
        if schema.classes is not None:
            wanted["classes"] = list(range(len(schema.classes)))
        elif schema.target is not None:
            wanted |= {"target_bound": 1.0, "target_range": (-1.0, 1.0)}
        known = estimator.get_params(deep=False)
        estimator.set_params(**{name: value for name, value in wanted.items() if name in known})
        estimator._on_pass = self._on_pass
        try:
            if isinstance(rows, Rows):
                return estimator.fit(rows.encoded(design, self.memory), targets)
            return rows.fit(estimator, design)
        finally:
            estimator._on_pass = None

    def _made(self, schema: TableSchema | None = None) -> Any:
        schema = schema or self.schema
        if self.estimator is None:
            number = schema is not None and isinstance(
                schema.columns.get(str(schema.target)), Number
            )
            return PrivateLinearRegression() if number else PrivateLogisticRegression()
        found: Any = clone(self.estimator)
        known = found.get_params(deep=False) if hasattr(found, "get_params") else {}
        if not {"epsilon", "delta", "random_state"} <= set(known):
            raise InvalidInput(
                f"estimator must be a private estimator of tightrope, with a budget of its own; "
                f"got {type(self.estimator).__name__}, which would learn without noise."
            )
        return found

    def _schema_for(self, X: Any) -> TableSchema:
        if isinstance(self.schema, TableSchema):
            return self.schema
        if self.schema is not None:
            raise InvalidInput(
                f"schema must be a TableSchema; got {type(self.schema).__name__}. Read one with "
                "TableSchema.read(path)."
            )
        from sklearn.utils.validation import check_array

        array = check_array(X, accept_sparse="csr", dtype=np.float64)
        numbered = (f"x{at}" for at in range(array.shape[1]))
        return TableSchema({str(name): Number() for name in getattr(X, "columns", numbered)})

    def _spent_before(self) -> float:
        if not self._share.before:
            return 0.0
        before = account(Sequence(self._share.before)).guarantee(self.delta_)
        return float(before.epsilon(self.delta_).upper)

    # --- what was learnt -------------------------------------------------------------------------
    @_has("predict")  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Predicted labels or numbers for each row of a table; its target is not needed."""
        found = self._of_rows(X, "predict")
        if self._schema.classes is not None:
            return self.classes_[found]
        if self._schema.target is not None:
            return self._number(np.clip(found, -1.0, 1.0))
        return found

    @_has("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of the classes, in the order of `classes_`."""
        return np.asarray(self._of_rows(X, "predict_proba"))

    @_has("decision_function")  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> FloatArray:
        """Scores of each row."""
        return np.asarray(self._of_rows(X, "decision_function"))

    def score(self, X: Any, y: ArrayLike | None = None) -> float:
        """Accuracy or R2, without noise: for rows that need no protection."""
        check_is_fitted(self)
        if y is None and self._schema.target is None:
            raise InvalidInput("This schema has no target: give y.")
        guess = self.predict(X)
        if y is None:
            rows = read_rows(open_source(X, self._schema), self._schema, memory=self.memory)
            truth = rows.targets(self._schema)
            y = self.classes_[truth] if self._schema.classes is not None else self._number(truth)
        return float(accuracy_score(y, guess) if hasattr(self, "classes_") else r2_score(y, guess))

    def _number(self, scaled: FloatArray) -> FloatArray:
        kind = self._schema.columns[str(self._schema.target)]
        assert isinstance(kind, Number) and kind.bounds is not None
        return 0.5 * sum(kind.bounds) + 0.5 * (kind.bounds[1] - kind.bounds[0]) * scaled

    def _of_rows(self, X: Any, name: str) -> Any:
        check_is_fitted(self)
        if self.schema is None:
            self._check_width(X)
        chunks = open_source(X, self._schema)
        rows = read_rows(chunks, self._schema, with_target=False, memory=self.memory)
        with LEDGER.accounted_together():
            return getattr(self.estimator_, name)(rows.encoded(self.design_, self.memory))

    def _check_width(self, X: Any) -> None:
        from sklearn.utils.validation import validate_data

        validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)

    def report(self) -> str:
        """What was spent on what, in words."""
        check_is_fitted(self)
        before = len(self._share.before)
        epsilon = self.guarantee_.epsilon(self.delta_).upper
        lines = [
            f"epsilon <= {epsilon:.6g} at delta = {self.delta_:.3g}, for "
            f"{self.guarantee_.unit_of_privacy} ({self.guarantee_.adjacency}).",
            f"Preprocessing: {before} releases, epsilon {self.preprocessing_epsilon_:.3g} of it; "
            f"{self.preprocessing_share_:.0%} of the budget (as squared mu)."
            if before
            else "Preprocessing: everything is public, so it took nothing of the budget.",
            f"Model: {type(self.estimator_).__name__} on {self.design_.width} entries of "
            f"{len(self.design_.codes)} columns.",
        ]
        return "\n".join(lines)

    def certificate(
        self, data: tuple[Any, ...] | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """The chained certificate of everything together; see the estimators' own."""
        check_is_fitted(self)
        facts = RunFacts(
            kind="convex fit",
            private=self.private_,
            not_private_because=not_private_because(self.private_),
            steps=None,
            clip=f"rows encoded by a public rule, shortened to norm {self.design_.norm:g}",
            sensitivity=None,
            noise="discrete Gaussian on counts, Gaussian in the fit",
            sampling=self._randomness,
            settings={
                "model": type(self.estimator_).__name__,
                "preprocessing_releases": len(self._share.before),
                "preprocessing_share": self.preprocessing_share_,
                "preprocessing_epsilon": self.preprocessing_epsilon_,
            },
        )
        budget = Budget(self.epsilon, self.delta_)
        return certificate_of_run(self.process_, budget, facts, data, key)
