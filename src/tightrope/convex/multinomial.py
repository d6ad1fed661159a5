"""Losses for more than two classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import log_softmax, softmax

from tightrope.convex.losses import Loss
from tightrope.validate import FloatArray, check_count, check_positive

__all__ = ["MultinomialLogistic", "OneVersusRest"]


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

    @property
    def curvature_bound(self) -> float:
        return 0.5

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
