"""Private additive models: one shape for each column, drawn and read as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from tightrope.convex import Budget, Entropy, Huber, Logistic, MultinomialLogistic, calibrated
from tightrope.convex.additive import STEPS, AdditiveData, CyclicBoosting, Slopes, slopes_of
from tightrope.convex.bins import Column, Numbers, categories, numbers
from tightrope.convex.fit_certificate import certificate_of_run, not_private_because
from tightrope.convex.problem import check_two, public_count
from tightrope.errors import InvalidInput, MissingTool
from tightrope.estimators.classification import DeclaredLabels, Probabilities
from tightrope.estimators.watch import tell, tell_of_prediction
from tightrope.evidence.run_facts import RunFacts
from tightrope.ledger.spending import reserved
from tightrope.process.adjacency import check_rows
from tightrope.validate import FloatArray, default_delta


@dataclass(eq=False, repr=False, kw_only=True)
class _PrivateAdditive(BaseEstimator):  # type: ignore[misc]
    epsilon: float = field(default=1.0, kw_only=False)
    delta: float | None = None
    feature_ranges: Any = None
    categories: Any = None
    max_bins: int = 32
    rounds: int = 12
    counting: float = 0.1
    adjacency: str = "replace-one"
    records: int | None = None
    cryptographic: bool = False
    random_state: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # missing values have a bin of their own
        tags.input_tags.categorical = True
        return tags

    def _slopes(self) -> Slopes:
        raise NotImplementedError("An estimator names its slopes.")

    _unit = 1.0  # of a score, in units of what is predicted

    # --- the fit ---------------------------------------------------------------------------------
    def _learn(self, features: Any, targets: Any) -> None:
        """One private fit; sets the learned attributes."""
        adjacency = check_rows(self.adjacency, "Learning from rows")
        records = public_count(adjacency, self.records, int(features.shape[0]))
        check_two(records)
        budget = Budget(self.epsilon, default_delta(records) if self.delta is None else self.delta)
        columns = self._columns(features.shape[1])
        plan = CyclicBoosting(self.rounds, len(columns), self.counting, self.max_bins, adjacency)
        ready, guarantee = calibrated(plan, None, budget)
        entropy = Entropy(self.random_state, cryptographic=self.cryptographic)
        process, slopes = ready.process(), self._slopes()
        with reserved(process, "cyclic boosting", private=entropy.private):
            data = AdditiveData(columns, _codes(columns, features), targets)
            self._model = ready.run(data, slopes, entropy)
        self._ran = RunFacts(
            kind="convex fit",
            private=entropy.private,
            not_private_because=not_private_because(entropy.private),
            steps=None,
            clip=f"slopes cut to {slopes.bound:g} and rounded to whole numbers; public columns",
            sensitivity=slopes.bound,
            noise="Gaussian, rounded to whole numbers" + ("" if entropy.private else " (seeded)"),
            sampling=entropy.description,
            settings={"algorithm": "cyclic boosting", "arithmetic": "whole", "rounds": self.rounds},
        )
        self._budget, self.process_, self.guarantee_ = budget, process, guarantee
        self.delta_, self.private_, self.n_iter_ = budget.delta, entropy.private, self.rounds
        self._describe()
        keyed = features if features.dtype.kind in "fiub" else np.column_stack(data.codes)
        tell(self, keyed, guarantee, records)

    def _columns(self, width: int) -> tuple[Column, ...]:
        """What is public about each column."""
        names = list(getattr(self, "feature_names_in_", range(width)))
        listed = _by_column({} if self.categories is None else self.categories, names, "categories")
        ranges = {} if self.feature_ranges is None else self.feature_ranges
        if not isinstance(ranges, Mapping):  # one range for all other columns
            ranges = {i: ranges for i in range(width) if i not in listed}
        bounded = _by_column(ranges, names, "feature_ranges")
        if both := [names[i] for i in listed if i in bounded]:
            raise InvalidInput(f"{both[0]!r} has bounds and categories; give one of the two.")
        if missing := [names[i] for i in range(width) if i not in listed and i not in bounded]:
            raise InvalidInput(
                f"{type(self).__name__} needs what is public about each column, known without the "
                "data: feature_ranges={column: (low, high)} or one pair for all, and "
                f"categories={{column: [...]}}. Nothing was given for {missing[:5]!r}. Bounds that "
                "are read off private rows would be covered by no epsilon."
            )
        named = [f"Column {name!r}" for name in names]
        return tuple(
            categories(listed[i], named[i]) if i in listed else numbers(bounded[i], named[i])
            for i in range(width)
        )

    def _describe(self) -> None:
        """Shapes and importances as arrays."""
        model, unit = self._model, self._unit
        one = len(model.intercept) == 1
        self.bins_ = [c.edges if isinstance(c, Numbers) else c.values for c in model.columns]
        self.shapes_ = [unit * (shape[:, 0] if one else shape) for shape in model.shapes]
        self.bin_counts_ = list(model.counts)
        sizes = [
            counts @ np.linalg.norm(shape, axis=1) / max(counts.sum(), 1.0)
            for counts, shape in zip(model.counts, model.shapes, strict=True)
        ]
        self.feature_importances_ = unit * np.array(sizes)

    def certificate(
        self, data: tuple[Any, ...] | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """The chained certificate of the fit; write it with tightrope.evidence.certificate.write.

        data, key: commit to these arrays under a secret key of evidence.commitment.new_key().
        """
        check_is_fitted(self)
        return certificate_of_run(self.process_, self._budget, self._ran, data, key)

    # --- rows and scores -------------------------------------------------------------------------
    def _checked(self, features: Any, *targets: Any, reset: bool, **how: Any) -> Any:
        kind = "numeric" if self.categories is None else None
        how |= {"reset": reset, "dtype": kind, "ensure_all_finite": False}
        try:
            return validate_data(self, features, *targets, **how)
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
        raise InvalidInput(
            "A column holds text, and no categories are declared. Name its categories: "
            "categories={column: [...]}, all that may occur, known without the data."
        )

    def _scores(self, features: Any) -> FloatArray:
        """Scores of each row, whatever the others are: (rows,) or (rows, outputs)."""
        check_is_fitted(self)
        tell_of_prediction()
        rows = self._checked(features, reset=False)
        scores = self._model.scores(_codes(self._model.columns, rows))
        return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores)

    def plot_shapes(self, columns: Any = None) -> Any:
        """A Matplotlib figure with the shape of each column (or of those listed, by number)."""
        check_is_fitted(self)
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise MissingTool("Pictures need Matplotlib: pip install 'tightrope[plot]'") from None
        chosen = list(range(len(self.shapes_)) if columns is None else columns)
        wide = min(3, len(chosen))
        high = -(-len(chosen) // wide)
        figure = Figure(figsize=(4.2 * wide, 2.8 * high), layout="constrained")
        axes = figure.subplots(high, wide, squeeze=False, sharey=True).ravel()
        names = getattr(self, "feature_names_in_", np.arange(len(self.shapes_)))
        for axis, number in zip(axes, chosen, strict=False):
            _draw(axis, self._model.columns[number], self.shapes_[number])
            axis.set_title(str(names[number]), fontsize=10)
            axis.axhline(0.0, color="#808080", linewidth=0.6)
        for axis in axes[len(chosen) :]:
            axis.set_visible(False)
        return figure


def _codes(columns: tuple[Column, ...], rows: Any) -> tuple[Any, ...]:
    return tuple(column.codes(rows[:, i]) for i, column in enumerate(columns))


def _by_column(facts: Any, names: list[Any], parameter: str) -> dict[int, Any]:
    """Facts by the number of their column, given by its name or number."""
    if not isinstance(facts, Mapping):
        raise InvalidInput(f"{parameter} must be {{column: [...]}}; got {facts!r:.100}.")
    places, found = {name: i for i, name in enumerate(names)}, {}
    for key, fact in facts.items():
        place = places.get(key, key)
        if not isinstance(place, int | np.integer) or not 0 <= place < len(names):
            raise InvalidInput(
                f"{parameter} names the column {key!r}, which is not among {names[:20]!r}. Use the "
                "names of a data frame's columns, or their numbers from 0."
            )
        found[int(place)] = fact
    return found


def _draw(axis: Any, column: Column, shape: FloatArray) -> None:
    known = shape[1:]
    if isinstance(column, Numbers):
        axis.step(column.edges, np.concatenate([known, known[-1:]]), where="post", linewidth=1.4)
        return
    names = [str(value) for value in column.values]
    lines = known if known.ndim == 2 else known[:, None]
    for line in lines.T:
        axis.plot(range(len(names)), line, "o", markersize=4)
    axis.set_xticks(range(len(names)), [name[:14] for name in names], rotation=90, fontsize=7)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateAdditiveClassifier(Probabilities, DeclaredLabels, _PrivateAdditive):
    """Additive boosting for classification with an (epsilon, delta)-DP guarantee.

    The score is an intercept plus one shape for each column: what the model does is its pictures.

    Parameters
    ----------
    epsilon, delta : the budget of one fit; delta=None is 1/n^1.1, n the public number of rows.
    feature_ranges : public bounds of the columns of numbers: (low, high) for all of them, or
        {column: (low, high)}. More than two numbers are the edges of the bins.
        Values beyond are taken for the nearest bound, missing ones have a bin of their own.
    categories : {column: [all its categories]}; others that occur count as missing.
    max_bins : bins of a column of numbers, of about equal weight by noisy counts.
    rounds : how often each column is visited. Rounds are averaged, so more cost little.
    counting : share of the budget that counts the rows in each bin.
    slope_limit, adjacency, records, classes, labels_public, cryptographic, random_state : as in
        `PrivateLogisticRegression`.

    Attributes
    ----------
    shapes_ : for each column the values of its bins; bin 0 is that of missing values.
    bins_ : for each column the edges of bins 1, 2, ..., or the categories.
    bin_counts_ : the noisy counts. intercept_, feature_importances_ (mean size of a shape).
    guarantee_, process_, private_, delta_, classes_, n_iter_
    """

    slope_limit: float = 0.5
    classes: ArrayLike | None = None
    labels_public: bool = False

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit on private rows `X` with labels `y`. The possible labels are declared."""
        X, y = self._checked(X, y, reset=True)
        self.classes_ = self._known_classes(y, self.classes)
        self._learn(X, self._encoded(y).astype(np.int64))
        self.intercept_ = self._model.intercept.copy()
        return self

    def _slopes(self) -> Slopes:
        if len(self.classes_) == 2:
            return slopes_of(Logistic(self.slope_limit))
        return slopes_of(MultinomialLogistic(len(self.classes_), 2.0 * self.slope_limit))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateAdditiveRegressor(RegressorMixin, _PrivateAdditive):  # type: ignore[misc]
    """Additive boosting for regression with an (epsilon, delta)-DP guarantee.

    `target_range` = (low, high) are public bounds of the target; targets beyond are clipped.
    Residuals above `residual_limit` (as a part of half that range) count linearly. All else is as
    in `PrivateAdditiveClassifier`; shapes are in units of the target.
    """

    target_range: tuple[float, float] | None = None
    residual_limit: float = 0.5

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit on private rows `X` and targets `y`."""
        X, y = self._checked(X, y, reset=True, y_numeric=True)
        if self.target_range is None:
            raise InvalidInput(
                f"{type(self).__name__} needs target_range=(low, high): bounds of the target that "
                "are known without looking at the data (targets beyond are clipped to them)."
            )
        bounds = numbers(self.target_range, "target_range").edges
        self._middle, self._unit = (bounds[0] + bounds[-1]) / 2.0, (bounds[-1] - bounds[0]) / 2.0
        scaled = np.clip((np.asarray(y, np.float64) - self._middle) / self._unit, -1.0, 1.0)
        self._learn(X, np.rint(scaled * STEPS).astype(np.int64))
        self.intercept_ = float(self._middle + self._unit * self._model.intercept[0])
        return self

    def _slopes(self) -> Slopes:
        return slopes_of(Huber(self.residual_limit))

    def predict(self, X: ArrayLike) -> FloatArray:
        """Predicted targets."""
        scores = self._scores(X)
        return np.asarray(self._middle + self._unit * scores)
