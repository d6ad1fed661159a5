"""Private linear support vector classification."""

from __future__ import annotations

from numpy.typing import ArrayLike

from tightrope.convex import Loss, OneVersusRest, SmoothedHinge
from tightrope.estimators.classifier import PrivateLinearClassifier

__all__ = ["PrivateLinearSVC"]


class PrivateLinearSVC(PrivateLinearClassifier):
    """Linear classification with a smoothed hinge loss and an (epsilon, delta)-DP guarantee.

    `width` is the part of the margin over which the corner of the hinge is rounded: the hinge
    itself has no smoothness constant, which the hidden-state theorems need. More than two classes
    are learnt one against the rest, in one fit and one budget. All other parameters and the
    attributes are those of `PrivateLogisticRegression`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        data_norm: float | str | None = None,
        algorithm: str = "auto",
        regularization: float | None = None,
        width: float = 2.0,
        max_iter: int | None = None,
        batch_size: int | None = None,
        radius: float | None = None,
        fit_intercept: bool = True,
        centering: float = 0.06,
        adjacency: str = "replace-one",
        records: int | None = None,
        classes: ArrayLike | None = None,
        labels_public: bool = False,
        cryptographic: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.data_norm = data_norm
        self.algorithm = algorithm
        self.regularization = regularization
        self.width = width
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.radius = radius
        self.fit_intercept = fit_intercept
        self.centering = centering
        self.adjacency = adjacency
        self.records = records
        self.classes = classes
        self.labels_public = labels_public
        self.cryptographic = cryptographic
        self.random_state = random_state

    def _loss(self) -> Loss:
        hinge = SmoothedHinge(self.width)
        classes = len(self.classes_)
        return hinge if classes == 2 else OneVersusRest(hinge, classes)
