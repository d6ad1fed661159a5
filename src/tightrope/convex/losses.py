"""Convex losses of a linear score, with constants derived from the bounds on the data.

A loss is a function of the score s = <row, weights> and the target. Only two facts about it enter
the privacy analysis, and both are known before any data is seen:

    slope_bound       sup |d loss / d score|       times the row norm = Lipschitz constant L
    curvature_bound   sup |d^2 loss / d score^2|   times its square   = smoothness beta

Rows are scaled to norm at most 1 (see `rows`), so on the scaled rows L = slope_bound and
beta = curvature_bound. L2 regularisation (strength/2) |weights|^2 touches no data: it adds
`strength` to beta and is the strong convexity, and leaves the sensitivity 2L alone.

Limiting the slope. Clipping one example's gradient of a linear model to norm C*|row| clips only its
scalar slope, and a clipped non-decreasing slope is the slope of another convex loss with the same
curvature bound. So for these losses, unlike for networks, clipping keeps every condition of the
hidden-state theorems (theory, rule 5): `slope_limit` is part of the loss, not a patch of the
gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from scipy.special import expit, log_softmax, softmax

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray, check_count, check_positive, check_real


class Loss(Protocol):
    """A convex function of the score (one column for each output)."""

    @property
    def outputs(self) -> int: ...
    @property
    def slope_bound(self) -> float: ...
    @property
    def curvature_bound(self) -> float: ...
    @property
    def convex(self) -> bool: ...
    def value(self, scores: FloatArray, targets: FloatArray) -> FloatArray: ...
    def slope(self, scores: FloatArray, targets: FloatArray) -> FloatArray: ...


class _OneOutput:
    outputs = 1
    convex = True


def _check_signs(targets: FloatArray) -> None:
    """Of other targets slope and curvature have other bounds."""
    if not (np.abs(targets) == 1.0).all():
        raise InvalidInput(
            "The targets of a two-class loss must be -1 or +1: its slope and curvature, and so "
            "noise and steps, are bounded for these. Encode the two labels as -1 and +1."
        )


@final
@dataclass(frozen=True)
class Logistic(_OneOutput):
    """ln(1 + exp(-m)) of the margin m = target * score, target -1 or +1.

    Below the margin where the slope reaches `slope_limit` the loss goes on as a straight line.
    """

    slope_limit: float = 1.0

    def __post_init__(self) -> None:
        limit = check_real(self.slope_limit, "slope_limit", low=0.0, high=1.0, open_low=True)
        object.__setattr__(self, "slope_limit", limit)

    @property
    def slope_bound(self) -> float:
        return self.slope_limit

    @property
    def curvature_bound(self) -> float:
        # p (1 - p) on the slopes p <= slope_limit that are left
        return min(self.slope_limit, 0.5) * (1.0 - min(self.slope_limit, 0.5))

    def value(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        margins = targets * scores
        if self.slope_limit == 1.0:
            return np.asarray(np.logaddexp(0.0, -margins))
        corner = math.log1p(-self.slope_limit) - math.log(self.slope_limit)
        beyond = np.maximum(corner - margins, 0.0)
        return np.asarray(
            np.logaddexp(0.0, -np.maximum(margins, corner)) + self.slope_limit * beyond
        )

    def slope(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        _check_signs(targets)
        return np.asarray(-targets * np.minimum(expit(-targets * scores), self.slope_limit))


@final
@dataclass(frozen=True)
class SmoothedHinge(_OneOutput):
    """max(0, 1 - m) with its corner replaced by a parabola of `width`; target -1 or +1."""

    width: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", check_positive(self.width, "width"))

    slope_bound = 1.0

    @property
    def curvature_bound(self) -> float:
        return 1.0 / self.width

    def value(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        short = np.maximum(1.0 - targets * scores, 0.0)
        return np.where(short < self.width, short**2 / (2 * self.width), short - self.width / 2)

    def slope(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        _check_signs(targets)
        short = (1.0 - targets * scores) / self.width
        return np.asarray(-targets * np.clip(short, 0.0, 1.0))


@final
@dataclass(frozen=True)
class Huber(_OneOutput):
    """Half the squared residual up to `threshold`, then a straight line."""

    threshold: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", check_positive(self.threshold, "threshold"))

    @property
    def slope_bound(self) -> float:
        return self.threshold

    curvature_bound = 1.0

    def value(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        size = np.abs(scores - targets)
        line = self.threshold * (size - self.threshold / 2)
        return np.where(size <= self.threshold, size**2 / 2, line)

    def slope(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        return np.clip(scores - targets, -self.threshold, self.threshold)


@final
@dataclass(frozen=True)
class Squared(_OneOutput):
    """Half the squared residual, for |target| <= target_bound and |weights| <= radius.

    The squared loss has no Lipschitz constant on the whole space; on the ball the score is at most
    `radius` (rows have norm at most 1), so the slope is at most radius + target_bound. The
    algorithm that runs must project on that ball.
    """

    target_bound: float
    radius: float

    def __post_init__(self) -> None:
        for name in ("target_bound", "radius"):
            value = check_positive(getattr(self, name), name)
            object.__setattr__(self, name, value)
        if not math.isfinite(self.slope_bound):
            raise InvalidInput("target_bound + radius overflows; give finite bounds.")

    @property
    def slope_bound(self) -> float:
        return self.radius + self.target_bound

    curvature_bound = 1.0

    def value(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        return np.asarray((scores - targets) ** 2 / 2)

    def slope(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        # The clip never bites on the ball (but for rounding); it makes the bound a fact.
        return np.clip(scores - targets, -self.slope_bound, self.slope_bound)


# ---- more than two classes -----------------------------------------------------------------------


@final
@dataclass(frozen=True)
class MultinomialLogistic:
    """-ln softmax(scores)[class]; targets are the numbers of the classes.

    The slope softmax - onehot has norm at most sqrt(2) and the curvature diag(p) - p p^T has norm
    at most 1/2. A vector slope clipped to a smaller norm is in general not the slope of any loss,
    so with `slope_limit` below sqrt(2) the loss is not `convex` to the hidden-state theorems:
    composition, which needs the norm bound only, still holds.
    """

    classes: int
    slope_limit: float = math.sqrt(2.0)

    def __post_init__(self) -> None:
        limit = min(check_positive(self.slope_limit, "slope_limit"), math.sqrt(2.0))
        object.__setattr__(self, "classes", check_count(self.classes, "classes", low=2))
        object.__setattr__(self, "slope_limit", limit)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def slope_bound(self) -> float:
        return self.slope_limit

    curvature_bound = 0.5

    @property
    def convex(self) -> bool:
        return self.slope_limit >= math.sqrt(2.0)

    def value(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        row = np.arange(len(scores))
        return np.asarray(-log_softmax(scores, axis=1)[row, targets.astype(int)])

    def slope(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        slopes = np.asarray(softmax(scores, axis=1))
        slopes[np.arange(len(scores)), targets.astype(int)] -= 1.0
        norms = np.linalg.norm(slopes, axis=1, keepdims=True)
        return np.asarray(slopes * np.minimum(1.0, self.slope_limit / np.maximum(norms, 1e-300)))


@final
@dataclass(frozen=True)
class OneVersusRest:
    """One two-class loss for each class against all others; targets are numbers of classes.

    The sum is separable: its slope has norm at most sqrt(classes) * inner.slope_bound and its
    curvature is diagonal, so every constant stays known and the loss stays convex.
    """

    inner: Loss
    classes: int

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def slope_bound(self) -> float:
        return math.sqrt(self.classes) * self.inner.slope_bound

    @property
    def curvature_bound(self) -> float:
        return self.inner.curvature_bound

    @property
    def convex(self) -> bool:
        return self.inner.convex

    def value(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        return np.asarray(self.inner.value(scores, self._signs(scores, targets)).sum(axis=1))

    def slope(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        return self.inner.slope(scores, self._signs(scores, targets))

    def _signs(self, scores: FloatArray, targets: FloatArray) -> FloatArray:
        signs = np.full(scores.shape, -1.0)
        signs[np.arange(len(scores)), targets.astype(int)] = 1.0
        return signs
