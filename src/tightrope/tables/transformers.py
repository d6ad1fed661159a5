"""scikit-learn transformers that learn with noise and carry their guarantee.

Each spends a budget of its own on the rows of `fit`, and says afterwards what ran (`process_`), so
that a whole Pipeline or ColumnTransformer of them is accounted exactly (`account_of`), in one
budget (`share_budget`) and with one certificate (`certificate_of`). What is public costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils.validation import check_is_fitted, validate_data

from tightrope.accounting import account
from tightrope.convex import Budget
from tightrope.convex.counts import Whole, budget_of, moved_by, noisy, whole_of, whole_scale
from tightrope.convex.fit_certificate import not_private_because
from tightrope.convex.problem import public_count
from tightrope.entropy import WordStream, open_stream
from tightrope.errors import InvalidInput, NotCertified
from tightrope.estimators.watch import learns, tell
from tightrope.evidence.certificate import certify
from tightrope.evidence.run_facts import RunFacts
from tightrope.ledger.spending import reserved
from tightrope.process import Adjacency, DiscreteGaussianVector, Process
from tightrope.process.adjacency import check_rows
from tightrope.tables.releases import Preparation, prepared, released
from tightrope.tables.rows import Rows, read_rows
from tightrope.tables.schema import Category, Number, TableSchema, text_of
from tightrope.validate import check_real, default_delta

_TAIL = 0.1  # of delta, for categories that one record alone has
_STEPS = 1 << 20  # of the grid on which sums of values are whole numbers


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What the transformers share: one release of noisy counts, and its account."""

    epsilon: float = field(default=1.0, kw_only=False)
    delta: float | None = None
    adjacency: str = "replace-one"
    records: int | None = None
    random_state: int | None = None

    carries_guarantee = True
    _numeric = True

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = not self._numeric
        tags.non_deterministic = self.random_state is None
        return tags

    # --- what subclasses say ---------------------------------------------------------------------
    def _kind(self, at: int, columns: int) -> Any:
        """The kind of one column."""
        raise NotImplementedError("A transformer says what is public of a column.")

    def _plan(self, schema: TableSchema, mu: float, adjacency: Adjacency) -> Any:
        """(plan, processes) of a budget of mu."""
        plan = prepared(schema, mu, _TAIL * self.delta_, adjacency)
        return plan, plan.processes

    def _release(self, plan: Any, rows: Rows, stream: WordStream) -> None:
        self.design_ = released(plan, rows, stream)

    # --- the fit ---------------------------------------------------------------------------------
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from the rows of X, within the budget; y is not used."""
        array = self._array(X, reset=True)
        adjacency = check_rows(self.adjacency, type(self).__name__)
        one = adjacency is Adjacency.REPLACE_ONE  # then `records` says nothing
        counted = max(public_count(adjacency, None if one else self.records, len(array)), 2)
        self.delta_ = default_delta(counted) if self.delta is None else float(self.delta)
        budget = Budget(self.epsilon, self.delta_)
        names = [f"x{at}" for at in range(array.shape[1])]
        kinds = {name: self._kind(at, len(names)) for at, name in enumerate(names)}
        self._schema = TableSchema(kinds)
        stream = open_stream("tables", seed=self.random_state, cryptographic=True)
        plan, processes = self._affordable(self._schema, budget, adjacency)
        process: Any = whole_of(processes) if processes else None
        guarantee: Any = account(process).guarantee(self.delta_) if processes else None
        self.process_, self.guarantee_ = process, guarantee
        self.private_ = stream.private
        self._records = counted
        if processes:
            with reserved(process, type(self).__name__, private=stream.private):
                self._release(plan, self._rows(array), stream)
            tell(self, array if self._numeric else np.zeros((2, 0)), guarantee, counted)
        else:
            self._release(plan, self._rows(array), stream)
        return self

    def _affordable(
        self, schema: TableSchema, budget: Budget, adjacency: Adjacency
    ) -> tuple[Any, tuple[Process, ...]]:
        """The releases with the least noise that meet the budget."""
        plan, processes = self._plan(schema, budget.mu, adjacency)
        if not processes:
            return plan, ()

        def meets(mu: float) -> bool:
            process = whole_of(self._plan(schema, mu, adjacency)[1])
            return budget.met_by(account(process).guarantee(budget.delta))

        low = high = budget.mu
        while not meets(low):
            low, high = 0.9 * low, low
            if low < 1e-6 * budget.mu:
                raise NotCertified("No noise was certified for this budget; raise epsilon.")
        while high > low * 1.001:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if meets(middle) else (low, middle)
        plan, processes = self._plan(schema, low, adjacency)
        return plan, tuple(processes)

    def transform(self, X: Any) -> Any:
        """The rows in the form that was learnt; each row by itself."""
        check_is_fitted(self)
        array = self._array(X, reset=False)
        return self._rows(array).encoded(self.design_).astype(np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """A name for each column of the output."""
        check_is_fitted(self)
        given = getattr(self, "feature_names_in_", None) if input_features is None else None
        given = input_features if given is None else given
        found = list(self.design_.names)
        if given is not None:
            for at in reversed(range(len(given))):
                found = [_renamed(name, f"x{at}", str(given[at])) for name in found]
        return np.array(found, dtype=object)

    def _array(self, X: Any, reset: bool) -> Any:
        kind: Any = np.float64 if self._numeric else None
        how: dict[str, Any] = {"dtype": kind, "ensure_all_finite": "allow-nan"}
        if not self._numeric:
            how["ensure_all_finite"] = False
        return validate_data(self, X, reset=reset, **how)

    def _rows(self, array: Any) -> Rows:
        columns = {f"x{at}": array[:, at] for at in range(array.shape[1])}
        return read_rows(iter([columns]), self._schema)

    def certificate(self) -> dict[str, Any]:
        """The certificate of this part alone; `certificate_of` has that of a whole pipeline."""
        check_is_fitted(self)
        return certificate_of(self, self.delta_)


def _renamed(name: str, old: str, new: str) -> str:
    rest = name.removeprefix(old)
    return new + rest if name.startswith(old) and rest[:1] in ("", " ", "=") else name


def _bounds(given: Any, at: int, columns: int) -> Number:
    """Public bounds of one column: a pair for all, or a list of pairs (None: unknown)."""
    if given is None:
        return Number()
    pairs = list(given)
    if len(pairs) == 2 and not any(pair is None or np.ndim(pair) for pair in pairs):
        pairs = [given] * columns
    if len(pairs) != columns:
        raise InvalidInput(f"bounds has {len(pairs)} pairs for {columns} columns.")
    return Number() if pairs[at] is None else Number(*pairs[at])


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateScaler(PrivateTransformer):
    """Numbers in [-1, 1] between private or public bounds, their private ranks, and missing ones.

    bounds: (low, high) for all columns, or one pair for each, None where unknown. ranks: add the
    share of rows below each value. Without ranks and with all bounds public it costs nothing.
    """

    bounds: Any = None
    ranks: bool = True

    def _kind(self, at: int, columns: int) -> Number:
        return _bounds(self.bounds, at, columns)

    def _plan(self, schema: TableSchema, mu: float, adjacency: Adjacency) -> Any:
        plan = prepared(schema, mu, 0.0, adjacency, ranks=bool(self.ranks))
        return plan, plan.processes


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateOneHotEncoder(PrivateTransformer):
    """One column for each category, one for all others and one for missing values.

    categories: a list of public ones for each column, None where they are unknown: then those are
    shown whose noisy count reaches a threshold, and rarer ones count as others.
    """

    categories: Any = None

    _numeric = False

    def _kind(self, at: int, columns: int) -> Category:
        if self.categories is None:
            return Category()
        if len(self.categories) != columns:
            raise InvalidInput(
                f"categories has {len(self.categories)} lists for {columns} columns."
            )
        known = self.categories[at]
        return Category() if known is None else Category(tuple(map(text_of, known)))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateStandardScaler(PrivateTransformer):
    """Numbers less their private mean, over their private standard deviation; missing ones are 0.

    bounds: as in `PrivateScaler`; values are clipped to them, and unknown ones are bought first.
    """

    bounds: Any = None

    def _kind(self, at: int, columns: int) -> Number:
        return _bounds(self.bounds, at, columns)

    def _plan(self, schema: TableSchema, mu: float, adjacency: Adjacency) -> Any:
        """Unknown bounds get half of the budget; sums of values, squares and rows the rest."""
        known = all(kind.bounds is not None for kind in schema.columns.values())  # type: ignore[union-attr]
        part = mu if known else mu * math.sqrt(0.5)
        before = prepared(schema, part, 0.0, adjacency, ranks=False)
        moved = moved_by(len(schema.features), adjacency) * _STEPS * math.sqrt(3.0)
        if adjacency is Adjacency.REPLACE_ONE:  # values move by 2, squares and rows by 1
            moved = math.sqrt(6.0 * len(schema.features)) * _STEPS
        moved *= 1.0 + 2.0 / _STEPS  # squares are rounded
        scale = whole_scale(moved, part)
        sums = DiscreteGaussianVector(scale, moved, 3 * len(schema.features), adjacency)
        return (before, scale), (*before.processes, sums)

    def _release(self, plan: tuple[Preparation, int], rows: Rows, stream: WordStream) -> None:
        before, scale = plan
        self.design_ = released(before, rows, stream)
        codes = self.design_.codes.values()
        self._low = np.array([code.low for code in codes])
        self._high = np.array([code.high for code in codes])
        sums = noisy(sum(rows.map(self._sums)), scale, stream) / _STEPS
        count = np.maximum(sums[2], 1.0)
        mean = np.clip(sums[0] / count, -1.0, 1.0)
        spread = np.clip(sums[1] / count - mean**2, 1e-6, 1.0)
        half = 0.5 * (self._high - self._low)
        self.mean_ = 0.5 * (self._low + self._high) + half * mean
        self.scale_ = half * np.sqrt(spread)

    def _sums(self, cells: Any) -> Whole:
        """Sums of values and of squares on a grid of whole numbers, and of rows."""
        values = cells[:, 1:]
        present = ~np.isnan(values)
        low, high = self._low, self._high
        clipped = np.clip(np.where(present, values, low), low, high)
        scaled = np.clip((clipped - 0.5 * (low + high)) / (0.5 * (high - low)), -1.0, 1.0)
        whole = np.where(present, np.rint(scaled * _STEPS), 0.0).astype(np.int64)
        squares = np.where(present, np.rint(scaled**2 * _STEPS), 0.0).astype(np.int64)
        return np.stack([whole.sum(0), squares.sum(0), present.sum(0) * _STEPS])

    def transform(self, X: Any) -> Any:
        """The rows, standardised."""
        check_is_fitted(self)
        array = np.clip(self._array(X, reset=False), self._low, self._high)
        return np.where(np.isnan(array), 0.0, (array - self.mean_) / self.scale_)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """The names of the columns."""
        return _same_names(self, input_features)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateImputer(PrivateTransformer):
    """Numbers clipped to their bounds, missing ones at the private median, and an indicator.

    The indicators are columns of their own after the numbers. bounds: as in `PrivateScaler`.
    """

    bounds: Any = None

    def _kind(self, at: int, columns: int) -> Number:
        return _bounds(self.bounds, at, columns)

    def _release(self, plan: Any, rows: Rows, stream: WordStream) -> None:
        super()._release(plan, rows, stream)
        codes = self.design_.codes.values()
        self._low = np.array([code.edges[0] for code in codes])
        self._high = np.array([code.edges[-1] for code in codes])
        self.statistics_ = np.array(
            [np.interp(0.0, *_increasing(code.ranks, code.edges)) for code in codes]
        )

    def transform(self, X: Any) -> Any:
        """The numbers, then an indicator of a missing value for each."""
        check_is_fitted(self)
        array = self._array(X, reset=False)
        absent = np.isnan(array)
        filled = np.where(absent, self.statistics_, np.clip(array, self._low, self._high))
        return np.hstack([filled, absent.astype(np.float64)])

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """The names of the columns, then those of the indicators."""
        names = _same_names(self, input_features)
        return np.concatenate([names, np.array([f"{name} missing" for name in names], object)])


def _increasing(ranks: tuple[float, ...], edges: tuple[float, ...]) -> tuple[Any, Any]:
    """Ranks as they must be to be inverted: the first of equal ones is kept."""
    kept = np.concatenate([[True], np.diff(ranks) > 0.0])
    return np.array(ranks)[kept], np.array(edges)[kept]


def _same_names(part: Any, given: Any) -> Any:
    check_is_fitted(part)
    known = getattr(part, "feature_names_in_", None) if given is None else given
    names = [f"x{at}" for at in range(part.n_features_in_)] if known is None else list(known)
    return np.array(names, dtype=object)


# ---- whole pipelines ----------------------------------------------------------------------------


def parts_of_pipeline(whole: Any, fitted: bool = False) -> Iterator[Any]:
    """The private parts of a pipeline, in order; another part that learns is refused."""
    if whole is None or isinstance(whole, str):
        return
    if isinstance(whole, Pipeline):
        for _, part in whole.steps:
            yield from parts_of_pipeline(part, fitted)
    elif isinstance(whole, FeatureUnion):
        for _, part in whole.transformer_list:
            yield from parts_of_pipeline(part, fitted)
    elif isinstance(whole, ColumnTransformer):
        for _, part, _ in whole.transformers_ if fitted else whole.transformers:
            yield from parts_of_pipeline(part, fitted)
    elif getattr(whole, "carries_guarantee", False):
        yield whole
    elif learns(whole):
        raise InvalidInput(
            f"{type(whole).__name__} learns from the rows without noise, so the pipeline has no "
            "guarantee. Replace it by a transformer of tightrope.tables, or by a public rule."
        )


def account_of(pipeline: Any) -> Any:
    """The process of all private parts of a fitted pipeline together; None if all is public."""
    parts = [part.process_ for part in parts_of_pipeline(pipeline, fitted=True)]
    parts = [part for part in parts if part is not None]
    return whole_of(tuple(parts)) if parts else None


def certificate_of(pipeline: Any, delta: float) -> dict[str, Any]:
    """One certificate for everything that a fitted pipeline released."""
    process = account_of(pipeline)
    if process is None:
        raise InvalidInput("Nothing here learnt from private rows: there is nothing to certify.")
    found = list(parts_of_pipeline(pipeline, fitted=True))
    private = all(part.private_ for part in found)
    facts = RunFacts(
        kind="convex fit",
        private=private,
        not_private_because=not_private_because(private),
        steps=None,
        clip="values clipped to public or released bounds",
        sensitivity=None,
        noise="discrete Gaussian on counts, Gaussian in fits",
        sampling="operating-system entropy" if private else "seeded (not private)",
        settings={"parts": ", ".join(type(part).__name__ for part in found)},
    )
    return certify(process, delta, facts)


def share_budget(
    pipeline: Any, epsilon: float, delta: float, *, preprocessing: float = 0.12
) -> Any:
    """A copy of a pipeline whose private parts meet one budget together.

    The last part, if it is an estimator, gets all but `preprocessing` of it (of mu^2); the
    transformers share that equally. `account_of` says afterwards what was spent.
    """
    budget = Budget(epsilon, delta)
    share = check_real(preprocessing, "preprocessing", low=0.0, high=0.9, open_low=True)
    whole = clone(pipeline)
    parts = list(parts_of_pipeline(whole))
    if not parts:
        raise InvalidInput("The pipeline has no private part that a budget could be shared among.")
    first = [part for part in parts if isinstance(part, PrivateTransformer)]
    last = [part for part in parts if not isinstance(part, PrivateTransformer)]
    # thresholds and the smoothing of discrete noise take from delta: they get a part of it
    mu = Budget(budget.epsilon, (0.5 if first else 1.0) * budget.delta).mu
    for group, of_mu in ((first, share if last else 1.0), (last, 1.0 - share if first else 1.0)):
        for part in group:
            own_delta = 0.5 * budget.delta / len(first) if group is first else budget.delta
            own = budget_of(mu * math.sqrt(of_mu / len(group)), own_delta)
            part.set_params(epsilon=own.epsilon, delta=own.delta)
    return whole
