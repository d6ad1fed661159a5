"""Private logistic regression, two classes or more."""

from __future__ import annotations

from numpy.typing import ArrayLike

from tightrope.convex import Logistic, Loss, MultinomialLogistic
from tightrope.estimators.classifier import PrivateLinearClassifier, Probabilities

__all__ = ["PrivateLogisticRegression"]


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

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        data_norm: float | str | None = None,
        algorithm: str = "auto",
        regularization: float | None = None,
        slope_limit: float = 0.5,
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
        self.slope_limit = slope_limit
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
        if len(self.classes_) == 2:
            return Logistic(self.slope_limit)
        # at zero weights the slope is sqrt(1 - 1/k) < 1 = 2 * 0.5: nothing is clipped at the start
        return MultinomialLogistic(len(self.classes_), 2.0 * self.slope_limit)
