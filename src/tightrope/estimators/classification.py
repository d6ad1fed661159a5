"""Private linear classifiers: logistic regression and a support vector machine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from tightrope.convex import (
    Logistic,
    Loss,
    MultinomialLogistic,
    OneVersusRest,
    PublicRows,
    SmoothedHinge,
)
from tightrope.errors import InvalidInput
from tightrope.estimators.base import PrivateLinearModel
from tightrope.validate import FloatArray

_MOST_LABELS = 20  # of those that occur: more look like values that tell people apart


def _check_few(classes: NDArray[Any]) -> None:
    if len(classes) > _MOST_LABELS:
        raise InvalidInput(
            f"The target has more than {_MOST_LABELS} different values. If it is a number, use a "
            "regression (PrivateLinearRegression). If these are classes, "
            "list them all with classes=[...]: the values that occur are private."
        )


class DeclaredLabels(ClassifierMixin):  # type: ignore[misc]
    """Labels of a private classifier: the possible ones are declared, those that occur private."""

    classes: ArrayLike | None
    labels_public: bool
    _scores: Any  # of the model that this is mixed into

    def _known_classes(self, labels: ArrayLike, declared: ArrayLike | None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many labels: here they are refused
            check_classification_targets(labels)
        if declared is None and not self.labels_public:
            raise InvalidInput(
                f"{type(self).__name__} does not take the list of labels from private data: a "
                "rare label would show that its bearer is there. List all possible labels with "
                "classes=[...], or say labels_public=True if "
                "everybody may know which labels occur."
            )
        classes = np.unique(column_or_1d(labels) if declared is None else np.asarray(declared))
        if declared is None:
            _check_few(classes)
        if len(classes) < 2:
            raise InvalidInput(
                f"{type(self).__name__} needs labels of at least 2 classes; got 1 class. Declare "
                "all possible labels with classes=[...] if this part of the data has only one."
            )
        return classes

    def _encoded(self, labels: ArrayLike) -> FloatArray:
        known = np.isin(labels, self.classes_)
        if not known.all():
            raise InvalidInput(
                "Some labels are not among the declared classes. Declare every possible label."
            )
        numbers: FloatArray = np.searchsorted(self.classes_, labels).astype(np.float64)
        return 2.0 * numbers - 1.0 if len(self.classes_) == 2 else numbers

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Scores: one for each row (two classes), or one for each row and class."""
        return np.asarray(self._scores(X))

    def predict(self, X: ArrayLike) -> Any:
        """The most likely label of each row."""
        scores = self._scores(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[chosen]


class Probabilities:
    """Probabilities of a classifier whose scores are log-odds."""

    _scores: Any

    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Probabilities of the classes, in the order of `classes_`."""
        scores = self._scores(X)
        if scores.ndim == 2:
            return np.asarray(softmax(scores, axis=1))
        positive = expit(scores)
        return np.column_stack([1.0 - positive, positive])

    def predict_log_proba(self, X: ArrayLike) -> FloatArray:
        """Logarithms of `predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(float).tiny))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearClassifier(DeclaredLabels, PrivateLinearModel):
    """Labels are encoded as -1/+1 (two classes) or 0, 1, ... (more)."""

    classes: ArrayLike | None = None
    labels_public: bool = False

    def fit(
        self, X: ArrayLike, y: ArrayLike, public: PublicRows | tuple[Any, Any] | None = None
    ) -> Self:
        """Fit on private rows `X` with labels `y`; `public` = (rows, labels) need no protection.

        The possible labels are declared: `classes`, or `labels_public=True`.
        """
        X, y = self._checked(X, y, reset=True)
        self.classes_ = self._known_classes(y, self.classes)
        self._learn(X, self._encoded(y), self._checked_public(public), None)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Go on from the present weights with rows of people never seen before.

        Each call spends the whole budget on its own rows. While no person is in two calls,
        `guarantee_` holds for every person (parallel composition).
        """
        first = not hasattr(self, "classes_")
        X, y = self._checked(X, y, reset=first)
        if first:
            self.classes_ = self._known_classes(y, self.classes if classes is None else classes)
        self._learn(X, self._encoded(y), None, None if first else self._weights)
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLogisticRegression(Probabilities, PrivateLinearClassifier):
    """Logistic regression with an (epsilon, delta)-DP guarantee.

    Parameters
    ----------
    epsilon, delta : the budget of one fit; delta=None is 1/n^1.1, n the public number of rows.
    data_norm : bound on the Euclidean norm of a row, known without the data; "auto" buys the length
        of nine rows of ten with 5 % of the budget. Required.
    algorithm : "auto" (least predicted excess loss), "descent", "last-iterate", "cyclic", "pnsgd",
        "multi-epoch", "skip", "stop" or "poisson".
    regularization : L2 strength on rows scaled to norm 1; None is chosen from public numbers.
    slope_limit : the loss is straight where its slope (the probability of error) would exceed this.
        Halving it halves the noise. Labels profit; probabilities of badly misclassified rows are
        less calibrated, which 1.0 (two classes; sqrt(2) for more) avoids.
    max_iter, batch_size, radius : steps or epochs, rows in a batch, ball of the weights; None lets
        the algorithm choose.
    fit_intercept : fit a constant, which is part of the norm bound.
    centering : share of the budget that buys the mean of the rows (algorithm "descent"). Rows are
        then shortened around it, in `fit` and in prediction alike; 0 leaves them where they are.
    adjacency : "replace-one" (the number of rows is public) or "add-or-remove" (it is private, and
        `records` stands for it wherever a number of rows is needed).
    records : under "add-or-remove", a public number: about how many rows are expected. Required.
    classes : all possible labels, known without the data.
    labels_public : True declares that the set of labels that occur in `y` is public, and takes it
        from there. Without either of the two a fit is refused: a rare label is a private fact.
    cryptographic : noise from a cryptographic generator (SHAKE-256) instead of the ordinary one.
    random_state : None for a private fit (operating-system entropy). A seed makes the noise known
        to whoever knows the seed: `private_` is then False.

    Attributes
    ----------
    guarantee_ : the certified guarantee of the released model.
    process_ : what ran, as data; `tightrope.account(process_)` lists every analysis of it.
    private_, delta_, algorithm_, reason_, n_iter_, coef_, intercept_, classes_
    """

    slope_limit: float = 0.5

    def _loss(self) -> Loss:
        if len(self.classes_) == 2:
            return Logistic(self.slope_limit)
        # at zero weights the slope is sqrt(1 - 1/k) < 1 = 2 * 0.5: nothing is clipped at the start
        return MultinomialLogistic(len(self.classes_), 2.0 * self.slope_limit)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearSVC(PrivateLinearClassifier):
    """Linear classification with a smoothed hinge loss and an (epsilon, delta)-DP guarantee.

    `width` is the part of the margin over which the corner of the hinge is rounded: the hinge
    itself has no smoothness constant, which the hidden-state theorems need. More than two classes
    are learnt one against the rest, in one fit and one budget. All other parameters and the
    attributes are those of `PrivateLogisticRegression`.
    """

    width: float = 2.0

    def _loss(self) -> Loss:
        hinge = SmoothedHinge(self.width)
        classes = len(self.classes_)
        return hinge if classes == 2 else OneVersusRest(hinge, classes)
